//! PNG files, row by row, so that no more is in memory than the crop. Every row is read all the same: the check of the
//! data comes at its end.
//!
//! Palettes, grey of less than eight bits, and colours of sixteen become bytes. Transparency is left out.

use std::io::Cursor;
use std::ops::Range;

use png::{ColorType, Transformations};

use super::{Choose, Pixels, View, check_size, take_apart};

/// How many bytes a byte of compressed data becomes at most (258 for two bits, by the format of deflate).
const MOST_INFLATED: u64 = 1032;

/// Decodes the view, which is returned.
pub(super) fn decode(file: &[u8], pixels: &mut Pixels, choose: &Choose<'_>) -> Result<View, String> {
    let told = |error: png::DecodingError| error.to_string();
    let mut decoder = png::Decoder::new(Cursor::new(file));
    decoder.set_transformations(Transformations::normalize_to_color8());
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(told)?;
    let (width, height) = (reader.info().width as usize, reader.info().height as usize);
    check_size(width, height)?;
    let cut_off = || format!("it ends before its {width} × {height} pixels do, at offset {}", file.len());
    let stored_bits = (width * height * reader.info().bits_per_pixel()) as u64;
    if stored_bits / 8 > MOST_INFLATED * file.len() as u64 {
        return Err(cut_off());
    }
    let view = choose(width, height);
    let crop = view.crop;
    let columns = crop.left..crop.left + crop.width;
    let color = reader.output_color_type().0;
    let mut rows = pixels.begin(crop)?;
    if reader.info().interlaced {
        let bytes = reader.output_buffer_size().ok_or("it is too large")?;
        let mut whole = Vec::new();
        whole.try_reserve_exact(bytes).map_err(|_| format!("there is no memory for its {width} × {height} pixels"))?;
        whole.resize(bytes, 0);
        let line_bytes = reader.next_frame(&mut whole).map_err(told)?.line_size.max(1);
        for (to, line) in rows.zip(whole.chunks_exact(line_bytes).skip(crop.top)) {
            take_columns(color, line, &columns, to)?;
        }
        return Ok(view);
    }
    for row in 0..height {
        let line = reader.next_row().map_err(told)?.ok_or_else(cut_off)?;
        if row >= crop.top
            && let Some(to) = rows.next()
        {
            take_columns(color, line.data(), &columns, to)?;
        }
    }
    // What follows the last row is the check.
    match reader.next_row().map_err(told)? {
        None => Ok(view),
        Some(_) => Err("it has more rows than it says".to_owned()),
    }
}

/// Takes red, green, and blue of some columns out of a row.
fn take_columns(color: ColorType, line: &[u8], columns: &Range<usize>, to: &mut [u8]) -> Result<(), String> {
    let pixels = line.chunks_exact(color.samples()).skip(columns.start).take(columns.len());
    match color {
        ColorType::Rgb | ColorType::Rgba => {
            take_apart(pixels.filter_map(|pixel| pixel.first_chunk::<3>().copied()), to);
        }
        ColorType::Grayscale | ColorType::GrayscaleAlpha => {
            take_apart(pixels.filter_map(|pixel| pixel.first().map(|grey| [*grey; 3])), to);
        }
        ColorType::Indexed => return Err("its palette cannot be read".to_owned()),
    }
    Ok(())
}
