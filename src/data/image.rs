//! Images: from a JPEG or PNG file to the pixels of a crop, resized and normalised.
//!
//! Decoding is `zune-jpeg`'s and `png`'s work, both in safe Rust with SIMD. Both formats can promise a size that no memory
//! holds, so sizes are checked before pixels are made. What torchvision does in three passes over the crop (resize to
//! bytes, to floats, normalise) is one here: see [`resample`].

use std::cell::RefCell;
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::DataError;
use super::files::append;
use crate::units::MIB;

mod frame;
mod resample;

use frame::Frame;
pub(super) use resample::Resample;

/// The largest file.
const MAX_FILE_BYTES: u64 = 256 * MIB;
/// The most pixels of an image: the size at which Pillow suspects a decompression bomb, twice (`Image.open`).
const MAX_PIXELS: usize = 178_956_970;
/// The longest side.
const MAX_SIDE: usize = 65_535;

/// Pixels as decoders give them: rows of red, green, and blue bytes.
#[derive(Debug, Default)]
pub(super) struct Pixels {
    pub(super) width: usize,
    pub(super) height: usize,
    rgb: Vec<u8>,
}

/// A rectangle of pixels that lies within its image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Crop {
    pub(super) left: usize,
    pub(super) top: usize,
    pub(super) width: usize,
    pub(super) height: usize,
}

/// Mean and deviation of each channel, for pixels from 0 to 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Normalisation {
    pub(super) mean: [f32; 3],
    pub(super) deviation: [f32; 3],
}

impl Normalisation {
    /// ImageNet's, which torchvision's pretrained models expect.
    pub(super) const IMAGENET: Self = Self { mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225] };

    /// What is done to the bytes of a channel; none beyond blue.
    pub(super) fn of_channel(&self, channel: usize) -> Scale {
        let mean = self.mean.get(channel).copied().unwrap_or(0.0);
        let deviation = self.deviation.get(channel).copied().unwrap_or(1.0);
        Scale { factor: 1.0 / (255.0 * deviation), offset: -mean / deviation }
    }
}

/// A byte becomes `factor · byte + offset`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    factor: f32,
    offset: f32,
}

impl Scale {
    pub(super) fn of(self, byte: f32) -> f32 {
        self.factor * byte + self.offset
    }
}

/// Memory that a thread keeps from one image to the next.
#[derive(Default)]
struct Scratch {
    file: Vec<u8>,
    pixels: Pixels,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Which part of an image is wanted, from its width and height.
pub(super) type Choose<'a> = dyn Fn(usize, usize) -> View + 'a;

/// A part of an image, from left to right or mirrored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) crop: Crop,
    pub(super) is_mirrored: bool,
}

/// Decodes a file and resamples the part of it that `choose` wants.
pub(super) fn load(path: &Path, resample: &Resample, choose: &Choose<'_>) -> Result<Vec<f32>, DataError> {
    SCRATCH.with_borrow_mut(|Scratch { file, pixels }| {
        file.clear();
        append(path, path, MAX_FILE_BYTES, file)?;
        let broken = |reason| DataError::BrokenImage { path: path.to_owned(), reason };
        // A decoder is somebody else's code, and its input is anybody's: a panic there is a broken image here.
        let decoded = catch_unwind(AssertUnwindSafe(|| decode(file, pixels, choose)));
        let view = decoded.unwrap_or_else(|_| Err("its decoder panicked".to_owned())).map_err(broken)?;
        Ok(resample.run(pixels, view))
    })
}

/// Decodes at least the rows of the view, which is returned. A JPEG's header is changed on the way.
fn decode(file: &mut [u8], pixels: &mut Pixels, choose: &Choose<'_>) -> Result<View, String> {
    match file {
        [0xff, 0xd8, ..] => decode_jpeg(file, pixels, choose),
        [0x89, b'P', b'N', b'G', ..] => {
            decode_png(file, pixels)?;
            Ok(choose(pixels.width, pixels.height))
        }
        [] => Err("it is empty".to_owned()),
        _ => Err("it is neither JPEG nor PNG".to_owned()),
    }
}

fn check_size(width: usize, height: usize) -> Result<(), String> {
    if width == 0 || height == 0 || width > MAX_SIDE || height > MAX_SIDE || width * height > MAX_PIXELS {
        return Err(format!("{width} × {height} pixels are none or too many"));
    }
    Ok(())
}

fn decode_jpeg(file: &mut [u8], pixels: &mut Pixels, choose: &Choose<'_>) -> Result<View, String> {
    if is_cut_off(file) {
        return Err("it ends before its image does".to_owned());
    }
    let view = Frame::find(file).map(|frame| {
        check_size(frame.width, frame.height)?;
        let view = choose(frame.width, frame.height);
        frame.end_after(view.crop.top + view.crop.height, file);
        Ok::<View, String>(view)
    });
    let view = view.transpose()?;
    let options = DecoderOptions::default()
        .jpeg_set_out_colorspace(ColorSpace::RGB)
        .set_max_width(MAX_SIDE)
        .set_max_height(MAX_SIDE);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(&*file), options);
    decoder.decode_headers().map_err(|error| format!("{error:?}"))?;
    let (width, height) = decoder.dimensions().ok_or("it has no size")?;
    check_size(width, height)?;
    let bytes = decoder.output_buffer_size().ok_or("it has no size")?;
    if bytes != 3 * width * height {
        return Err("its colours cannot be turned into red, green, and blue".to_owned());
    }
    pixels.rgb.resize(bytes, 0);
    decoder.decode_into(&mut pixels.rgb).map_err(|error| format!("{error:?}"))?;
    (pixels.width, pixels.height) = (width, height);
    Ok(view.unwrap_or_else(|| choose(width, height)))
}

/// Whether a JPEG's data has no end: the decoder would fill what is missing with grey.
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

fn decode_png(file: &[u8], pixels: &mut Pixels) -> Result<(), String> {
    let mut decoder = png::Decoder::new(Cursor::new(file));
    // Palettes, grey of less than eight bits and colours of sixteen become bytes.
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(|error| error.to_string())?;
    let (width, height) = (reader.info().width as usize, reader.info().height as usize);
    check_size(width, height)?;
    let bytes = reader.output_buffer_size().ok_or("it is too large")?;
    let mut raw = vec![0; bytes];
    let frame = reader.next_frame(&mut raw).map_err(|error| error.to_string())?;
    let raw = raw.get(..frame.buffer_size()).unwrap_or_default();
    pixels.rgb.clear();
    pixels.rgb.reserve(3 * width * height);
    match frame.color_type {
        png::ColorType::Rgb => pixels.rgb.extend_from_slice(raw),
        png::ColorType::Rgba => raw.as_chunks::<4>().0.iter().for_each(|[r, g, b, _]| pixels.rgb.extend([r, g, b])),
        png::ColorType::Grayscale => raw.iter().for_each(|grey| pixels.rgb.extend([grey; 3])),
        png::ColorType::GrayscaleAlpha => {
            raw.as_chunks::<2>().0.iter().for_each(|[grey, _]| pixels.rgb.extend([grey; 3]));
        }
        png::ColorType::Indexed => return Err("its palette cannot be read".to_owned()),
    }
    if pixels.rgb.len() != 3 * width * height {
        return Err("it ends before its image does".to_owned());
    }
    (pixels.width, pixels.height) = (width, height);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three pixels by two, in a colour type's own bytes.
    fn png_of(color: png::ColorType, depth: png::BitDepth, bytes: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, 3, 2);
        encoder.set_color(color);
        encoder.set_depth(depth);
        if color == png::ColorType::Indexed {
            encoder.set_palette(vec![0, 0, 0, 9, 8, 7]);
        }
        encoder.write_header().unwrap().write_image_data(bytes).unwrap();
        file
    }

    fn jpeg_of(width: u16, height: u16, rgb: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        jpeg_encoder::Encoder::new(&mut file, 95).encode(rgb, width, height, jpeg_encoder::ColorType::Rgb).unwrap();
        file
    }

    fn whole(width: usize, height: usize) -> View {
        View { crop: Crop { left: 0, top: 0, width, height }, is_mirrored: false }
    }

    fn decoded(file: &[u8]) -> Result<Pixels, String> {
        let mut pixels = Pixels::default();
        decode(&mut file.to_vec(), &mut pixels, &whole).map(|_| pixels)
    }

    #[test]
    fn every_colour_type_of_a_png_becomes_red_green_and_blue() {
        let grey: Vec<u8> = [1, 2, 3, 4, 5, 6].iter().flat_map(|grey| [*grey; 3]).collect();
        let rgb: Vec<u8> = (0..18).collect();
        let rgba: Vec<u8> = rgb.chunks(3).flat_map(|pixel| [pixel, &[200]].concat()).collect();
        let wide: Vec<u8> = rgb.iter().flat_map(|byte| [*byte, 99]).collect();
        let indexed: Vec<u8> = [0, 1, 0, 1, 0, 1].iter().flat_map(|index| [[0, 0, 0], [9, 8, 7]][*index]).collect();
        for (color, depth, bytes, expected) in [
            (png::ColorType::Rgb, png::BitDepth::Eight, rgb.clone(), &rgb),
            (png::ColorType::Rgb, png::BitDepth::Sixteen, wide, &rgb),
            (png::ColorType::Rgba, png::BitDepth::Eight, rgba, &rgb),
            (png::ColorType::Grayscale, png::BitDepth::Eight, vec![1, 2, 3, 4, 5, 6], &grey),
            (png::ColorType::GrayscaleAlpha, png::BitDepth::Eight, vec![1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0], &grey),
            (png::ColorType::Indexed, png::BitDepth::Eight, vec![0, 1, 0, 1, 0, 1], &indexed),
        ] {
            let pixels = decoded(&png_of(color, depth, &bytes)).unwrap();
            assert_eq!((pixels.width, pixels.height), (3, 2));
            assert_eq!(&pixels.rgb, expected, "{color:?} {depth:?}");
        }
    }

    #[test]
    fn a_jpeg_is_about_what_was_drawn() {
        let rgb: Vec<u8> = (0..40 * 30).flat_map(|place| [(place % 40) as u8 * 6, 100, 40]).collect();
        let pixels = decoded(&jpeg_of(40, 30, &rgb)).unwrap();
        assert_eq!((pixels.width, pixels.height, pixels.rgb.len()), (40, 30, rgb.len()));
        let worst = pixels.rgb.iter().zip(&rgb).map(|(found, drawn)| found.abs_diff(*drawn)).max();
        assert!(worst.is_some_and(|worst| worst < 24), "{worst:?}");
    }

    #[test]
    fn a_grey_jpeg_becomes_red_green_and_blue() {
        let mut file = Vec::new();
        let encoder = jpeg_encoder::Encoder::new(&mut file, 100);
        encoder.encode(&[120; 64], 8, 8, jpeg_encoder::ColorType::Luma).unwrap();
        let pixels = decoded(&file).unwrap();
        assert_eq!(pixels.rgb.len(), 192);
        assert!(pixels.rgb.iter().all(|byte| byte.abs_diff(120) < 3));
    }

    #[test]
    fn rows_below_the_view_are_not_decoded_and_those_above_are_what_they_would_be() {
        let noise: Vec<u8> =
            (0..90 * 120 * 3_u32).map(|place| (place.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for sampling in [jpeg_encoder::SamplingFactor::F_1_1, jpeg_encoder::SamplingFactor::F_2_2] {
            for is_progressive in [false, true] {
                let mut file = Vec::new();
                let mut encoder = jpeg_encoder::Encoder::new(&mut file, 90);
                encoder.set_sampling_factor(sampling);
                encoder.set_progressive(is_progressive);
                encoder.encode(&noise, 90, 120, jpeg_encoder::ColorType::Rgb).unwrap();
                let all = decoded(&file).unwrap();
                assert_eq!(all.height, 120);
                for bottom in [1, 15, 16, 17, 40, 100, 119, 120] {
                    let mut pixels = Pixels::default();
                    let choose =
                        |width, _| View { crop: Crop { left: 0, top: 0, width, height: bottom }, is_mirrored: false };
                    decode(&mut file.clone(), &mut pixels, &choose).unwrap();
                    let is_shorter = pixels.height < 120;
                    assert!(is_shorter || is_progressive || bottom > 80, "{sampling:?}, {bottom}");
                    assert!(pixels.rgb[..3 * 90 * bottom] == all.rgb[..3 * 90 * bottom], "{sampling:?}, {bottom}");
                }
            }
        }
    }

    #[test]
    fn a_file_that_is_cut_off_anywhere_is_refused() {
        let noise: Vec<u8> =
            (0..64 * 64 * 3_u32).map(|place| (place.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut png = Vec::new();
        let mut encoder = png::Encoder::new(&mut png, 64, 64);
        encoder.set_color(png::ColorType::Rgb);
        encoder.write_header().unwrap().write_image_data(&noise).unwrap();
        for file in [jpeg_of(64, 64, &noise), png] {
            assert!(decoded(&file).is_ok());
            for end in (0..file.len() - 20).step_by(101) {
                assert!(decoded(&file[..end]).is_err(), "{end} of {} bytes", file.len());
            }
        }
    }

    #[test]
    fn bytes_that_are_wrong_never_panic_beyond_the_decoder() {
        let noise: Vec<u8> =
            (0..48 * 48 * 3_u32).map(|place| (place.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let file = jpeg_of(48, 48, &noise);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("broken.jpg");
        for place in (2..file.len()).step_by(37) {
            let mut broken = file.clone();
            broken[place] ^= 0x55;
            std::fs::write(&path, broken).unwrap();
            // Some changes leave an image; whatever comes is an image or an error that names the file.
            let resample = Resample { width: 4, height: 4, normalisation: Normalisation::IMAGENET };
            match load(&path, &resample, &whole) {
                Ok(values) => assert_eq!(values.len(), 48),
                Err(error) => assert!(error.to_string().contains("broken.jpg"), "{error}"),
            }
        }
    }

    #[test]
    fn a_bomb_is_refused_by_its_size() {
        let mut file = png_of(png::ColorType::Grayscale, png::BitDepth::Eight, &[0; 6]);
        file[16..24].copy_from_slice(&[0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff]);
        let crc = {
            // The checksum of the header chunk, bit by bit.
            let mut crc = u32::MAX;
            for byte in &file[12..29] {
                crc ^= u32::from(*byte);
                for _ in 0..8 {
                    crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
                }
            }
            !crc
        };
        file[29..33].copy_from_slice(&crc.to_be_bytes());
        let error = decoded(&file).unwrap_err();
        assert!(error.contains("65535 × 65535 pixels"), "{error}");
        assert!(decoded(b"").unwrap_err().contains("empty"));
        assert!(decoded(b"GIF89a").unwrap_err().contains("neither"));
    }
}
