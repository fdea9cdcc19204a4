//! Images: from a JPEG or PNG file to the pixels of a crop, resized and normalised.
//!
//! Both formats can promise a size that no memory holds, so sizes are checked before pixels are made. What torchvision does
//! in three passes over the crop (resize to bytes, to floats, normalise) is one here: see [`resample`].

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use super::DataError;
use super::files::append;
use crate::units::MIB;

mod jpeg;
mod png;
mod resample;

pub(super) use resample::Resample;

/// The largest file.
const MAX_FILE_BYTES: u64 = 256 * MIB;
/// The most pixels of an image: the size at which Pillow suspects a decompression bomb, twice (`Image.open`).
pub(super) const MAX_PIXELS: usize = 178_956_970;
/// The longest side.
const MAX_SIDE: usize = 65_535;
/// What a thread keeps of its memory after a large image.
const KEPT_PIXELS: usize = 4096 * 4096;

/// A part of an image.
#[derive(Debug, Default)]
pub(super) struct Pixels {
    crop: Crop,
    /// Row by row, in red, then green, then blue.
    rgb: Vec<u8>,
}

impl Pixels {
    /// Makes room for a crop, and gives its rows, each to be filled with red, then green, then blue.
    fn begin(&mut self, crop: Crop) -> Result<std::slice::ChunksExactMut<'_, u8>, String> {
        let row_bytes = 3 * crop.width;
        let bytes = row_bytes * crop.height;
        let refused = |_| format!("there is no memory for {} × {} of its pixels", crop.width, crop.height);
        self.rgb.try_reserve_exact(bytes.saturating_sub(self.rgb.len())).map_err(refused)?;
        self.rgb.resize(bytes, 0);
        self.crop = crop;
        Ok(self.rgb.chunks_exact_mut(row_bytes.max(1)))
    }

    /// A row of the crop.
    fn row(&self, row: usize) -> &[u8] {
        let bytes = 3 * self.crop.width;
        self.rgb.get(row * bytes..(row + 1) * bytes).unwrap_or_default()
    }
}

/// Pixels to a row of red, then green, then blue.
fn take_apart(pixels: impl Iterator<Item = [u8; 3]>, row: &mut [u8]) {
    let width = row.len() / 3;
    let (red, rest) = row.split_at_mut(width);
    let (green, blue) = rest.split_at_mut(width);
    for (([r, g, b], red), (green, blue)) in pixels.zip(red).zip(green.iter_mut().zip(blue)) {
        (*red, *green, *blue) = (r, g, b);
    }
}

/// A rectangle of pixels that lies within its image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

    /// The same for bytes that were multiplied.
    fn in_shares_of(self, byte: f32) -> Self {
        Self { factor: self.factor / byte, ..self }
    }
}

/// Memory that a thread keeps from one image to the next.
#[derive(Default)]
struct Scratch {
    file: Vec<u8>,
    /// All pixels of a JPEG.
    whole: Vec<u8>,
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
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.file.clear();
        append(path, path, MAX_FILE_BYTES, &mut scratch.file)?;
        // A decoder is somebody else's code, and its input is anybody's: a panic there is a broken image here.
        let decoded = catch_unwind(AssertUnwindSafe(|| decode(scratch, choose)));
        let decoded = decoded.unwrap_or_else(|_| Err("its decoder panicked".to_owned()));
        let values = decoded.map(|view| resample.run(&scratch.pixels, view.is_mirrored));
        let is_large = |bytes: &Vec<u8>| bytes.capacity() > 3 * KEPT_PIXELS;
        if is_large(&scratch.pixels.rgb) || is_large(&scratch.whole) || scratch.file.capacity() > KEPT_PIXELS {
            *scratch = Scratch::default();
        }
        values.map_err(|reason| DataError::BrokenImage { path: path.to_owned(), reason })
    })
}

/// Decodes the file's part that is wanted.
fn decode(scratch: &mut Scratch, choose: &Choose<'_>) -> Result<View, String> {
    let Scratch { file, whole, pixels } = scratch;
    match &file[..] {
        [0xff, 0xd8, ..] => jpeg::decode(file, whole, pixels, choose),
        [0x89, b'P', b'N', b'G', ..] => png::decode(file, pixels, choose),
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

#[cfg(test)]
mod tests;
