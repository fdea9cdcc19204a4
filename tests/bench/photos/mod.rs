//! Generated photographs of the size and weight of ImageNet's: 500 × 375 pixels in about 100 KB.

use std::fs;
use std::io;
use std::path::Path;

/// Class folders that photos are spread over.
pub(crate) const CLASSES: usize = 10;
const WIDTH: usize = 500;
const HEIGHT: usize = 375;
/// Pixels between two points of the coarse noise.
const CELL: usize = 16;
/// As cameras and ImageNet have it, with colour at half the resolution.
const QUALITY: u8 = 90;

/// Writes so many photos into class folders.
pub(crate) fn write(root: &Path, count: usize) -> io::Result<()> {
    for photo in 0..count {
        let folder = root.join(format!("class-{}", photo % CLASSES));
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(format!("{photo:06}.jpg")), jpeg(photo as u64)?)?;
    }
    Ok(())
}

fn jpeg(seed: u64) -> io::Result<Vec<u8>> {
    let mut file = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut file, QUALITY);
    encoder.set_sampling_factor(jpeg_encoder::SamplingFactor::F_2_2);
    let written = encoder.encode(&pixels(seed), WIDTH as u16, HEIGHT as u16, jpeg_encoder::ColorType::Rgb);
    written.map_err(io::Error::other)?;
    Ok(file)
}

/// Smooth colours with grain over them.
fn pixels(seed: u64) -> Vec<u8> {
    let mut pixels = Vec::with_capacity(3 * WIDTH * HEIGHT);
    for row in 0..HEIGHT {
        for column in 0..WIDTH {
            let grain = noise(seed, row * WIDTH + column, 3) % 44;
            pixels.extend((0..3).map(|channel| (smooth(seed, row, column, channel) * 200.0) as u8 + grain as u8));
        }
    }
    pixels
}

/// Bilinear between random points of a coarse grid, from 0 to 1.
fn smooth(seed: u64, row: usize, column: usize, channel: usize) -> f32 {
    let point = |row: usize, column: usize| (noise(seed, row * WIDTH + column, channel) % 1000) as f32 / 1000.0;
    let part = |at: usize| ((at / CELL), (at % CELL) as f32 / CELL as f32);
    let ((top, down), (left, right)) = (part(row), part(column));
    let mix = |from: f32, to: f32, share: f32| from + (to - from) * share;
    let upper = mix(point(top, left), point(top, left + 1), right);
    let lower = mix(point(top + 1, left), point(top + 1, left + 1), right);
    mix(upper, lower, down)
}

fn noise(seed: u64, place: usize, channel: usize) -> u64 {
    let mut mixed = (seed << 40 ^ (place as u64) << 3 ^ channel as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
