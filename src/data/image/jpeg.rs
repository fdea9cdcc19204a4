//! JPEG files: the common kind by a decoder of our own, which makes the crop and nothing else, and all others by
//! `zune-jpeg`.
//!
//! Half of a training crop's image is thrown away, on average. A decoder that knows the crop transforms, smooths, and
//! converts what is kept; only the codes in front of it must be read. Other kinds (progressive, CMYK, …) are decoded whole.
//! Both refuse data that ends early or is broken, where libjpeg would fill the rest with grey and warn. Orientation in
//! Exif is ignored, as torchvision's `ImageFolder` does.

use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::{Choose, Crop, MAX_SIDE, Pixels, View, check_size};

mod codes;
mod colours;
mod data;
mod entropy;
mod header;
mod planes;
mod scan;
mod transform;

use header::Header;
pub(super) use scan::Decoder;

/// Pixels of a block.
const BLOCK_PIXELS: usize = 64;

/// Decodes at least the view, which is returned.
pub(super) fn decode(
    file: &[u8],
    decoder: &mut Decoder,
    pixels: &mut Pixels,
    choose: &Choose<'_>,
) -> Result<View, String> {
    if is_cut_off(file) {
        return Err(format!("it ends before its image does, at offset {}", file.len()));
    }
    let Some(header) = Header::find(file) else { return decode_any(file, pixels, choose) };
    check(header.width, header.height, file)?;
    let view = choose(header.width, header.height);
    decoder.decode(file, &header, view.crop, pixels)?;
    Ok(view)
}

/// A block takes one bit at least, so that a short file cannot promise a large image.
fn check(width: usize, height: usize, file: &[u8]) -> Result<(), String> {
    check_size(width, height)?;
    if width * height / BLOCK_PIXELS > 8 * file.len() {
        return Err(format!("it ends before its {width} × {height} pixels do, at offset {}", file.len()));
    }
    Ok(())
}

/// The same for every kind of JPEG.
fn decode_any(file: &[u8], pixels: &mut Pixels, choose: &Choose<'_>) -> Result<View, String> {
    let options = DecoderOptions::default()
        .jpeg_set_out_colorspace(ColorSpace::RGB)
        .set_max_width(MAX_SIDE)
        .set_max_height(MAX_SIDE)
        .set_strict_mode(true);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    decoder.decode_headers().map_err(|error| format!("{error:?}"))?;
    let (width, height) = decoder.dimensions().ok_or("it has no size")?;
    check(width, height, file)?;
    let bytes = decoder.output_buffer_size().ok_or("it has no size")?;
    if bytes != 3 * width * height {
        return Err("its colours cannot be turned into red, green, and blue".to_owned());
    }
    let mut rgb = Vec::new();
    rgb.try_reserve_exact(bytes).map_err(|_| format!("there is no memory for its {width} × {height} pixels"))?;
    rgb.resize(bytes, 0);
    decoder.decode_into(&mut rgb).map_err(|error| format!("{error:?}"))?;
    let view = choose(width, height);
    let Crop { left, top, width: columns, .. } = view.crop;
    let rows = rgb.chunks_exact(3 * width).skip(top);
    for (to, from) in pixels.begin(view.crop)?.zip(rows) {
        super::take_apart(from.as_chunks::<3>().0.iter().skip(left).take(columns).copied(), to);
    }
    Ok(view)
}

/// Whether a JPEG's data has no end.
///
/// Within the data of a scan no marker but a restart can stand, so the end has to come after the start of the last scan.
/// A thumbnail in the header has both before.
fn is_cut_off(file: &[u8]) -> bool {
    if file.ends_with(&[0xff, 0xd9]) {
        return false;
    }
    let last = |marker: u8| file.windows(2).rposition(|bytes| bytes == [0xff, marker]);
    match (last(0xda), last(0xd9)) {
        (Some(scan), Some(end)) => end < scan,
        _ => true,
    }
}
