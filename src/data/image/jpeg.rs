//! JPEG files, by `zune-jpeg`: baseline and progressive, grey, YCbCr, RGB, and CMYK.
//!
//! The image is decoded whole, and the crop is taken out of it. The decoder is told to be strict: a file that ends early or
//! makes no sense is an error, where libjpeg would fill the rest with grey and warn. Two things it cannot tell: that some
//! of the last 30 bytes are missing, and that an end-of-image marker stands in the middle of the data; what it lacks is
//! filled then. Orientation in Exif is ignored, as torchvision's `ImageFolder` does.

use std::io::Cursor;

use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::{Choose, Crop, MAX_SIDE, Pixels, View, check_size, take_apart};

/// Pixels of a block, which takes one bit at least.
const BLOCK_PIXELS: usize = 64;

/// Decodes the view, which is returned; `whole` keeps its memory from one image to the next.
pub(super) fn decode(
    file: &[u8],
    whole: &mut Vec<u8>,
    pixels: &mut Pixels,
    choose: &Choose<'_>,
) -> Result<View, String> {
    let options = DecoderOptions::default()
        .jpeg_set_out_colorspace(ColorSpace::RGB)
        .set_max_width(MAX_SIDE)
        .set_max_height(MAX_SIDE)
        .set_strict_mode(true);
    let mut at = Cursor::new(file);
    let mut decoder = JpegDecoder::new_with_options(&mut at, options);
    if let Err(error) = decoder.decode_headers() {
        return Err(told(&error, &at));
    }
    let (width, height) = decoder.dimensions().ok_or("it has no size")?;
    check_size(width, height)?;
    if width * height / BLOCK_PIXELS > 8 * file.len() {
        return Err(format!("it ends before its {width} × {height} pixels do, at offset {}", file.len()));
    }
    let bytes = decoder.output_buffer_size().ok_or("it has no size")?;
    if bytes != 3 * width * height {
        return Err("its colours cannot be turned into red, green, and blue".to_owned());
    }
    let refused = |_| format!("there is no memory for its {width} × {height} pixels");
    whole.try_reserve_exact(bytes.saturating_sub(whole.len())).map_err(refused)?;
    whole.resize(bytes, 0);
    if let Err(error) = decoder.decode_into(whole) {
        return Err(told(&error, &at));
    }
    let view = choose(width, height);
    let Crop { left, top, width: columns, .. } = view.crop;
    for (to, row) in pixels.begin(view.crop)?.zip(whole.chunks_exact(3 * width).skip(top)) {
        take_apart(row.as_chunks::<3>().0.iter().skip(left).take(columns).copied(), to);
    }
    Ok(view)
}

/// What the decoder said, and where it was when it gave up, which may be some bytes beside the fault.
fn told(error: &DecodeErrors, at: &Cursor<&[u8]>) -> String {
    let reason = match error {
        // In memory nothing else keeps it from reading.
        DecodeErrors::ExhaustedData | DecodeErrors::IoErrors(_) => "it ends before its image does".to_owned(),
        _ => error.to_string(),
    };
    format!("{reason}, at offset {}", at.position())
}
