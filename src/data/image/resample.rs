//! Resizing a crop and normalising it, in one pass over its rows.
//!
//! The filter is Pillow's bilinear one (`Resample.c`): a triangle as wide as two source pixels, and wider by the factor
//! where the image shrinks, so that no source pixel is left out. It is separable. Each output row is first summed over its
//! source rows, byte by byte in whole numbers of sixteen bits with eight behind the point; then over columns, where the
//! three channels of a pixel go together in a vector of four. What comes out is one plane a channel.

use super::{Normalisation, Pixels, Scale};

/// The most rows that are summed in sixteen bits: what is rounded away of each adds up.
const MOST_ROWS: usize = 16;
/// What a weight is multiplied by in such a sum: all of them together stay within sixteen bits.
const WEIGHT: f32 = 65_535.0;
/// What a byte is multiplied by in a sum, which holds the upper halves of products.
const BYTE: f32 = 256.0 * WEIGHT / 65_536.0;
/// What is added to a byte's sixteen bits, so that their lower half is not known to be 0. Otherwise the compiler multiplies
/// 24 bits, and vectors hold half as many.
const BELOW: u16 = 128;

/// A resampler to images of one size.
#[derive(Clone, Copy, Debug)]
pub(in crate::data) struct Resample {
    pub(in crate::data) width: usize,
    pub(in crate::data) height: usize,
    pub(in crate::data) normalisation: Normalisation,
}

/// How each pixel of a row (or a column) is summed from pixels of the source: the same number of neighbours for each, some
/// of which count nothing.
#[derive(Debug)]
struct Filter {
    /// The first neighbour of each output pixel.
    firsts: Vec<usize>,
    /// What each neighbour counts, output pixel by output pixel.
    weights: Vec<f32>,
    /// Neighbours of an output pixel.
    taps: usize,
}

impl Filter {
    /// From `from` pixels to `to`, neither of them 0.
    fn triangle(from: usize, to: usize) -> Self {
        let scale = from as f32 / to as f32;
        let reach = scale.max(1.0);
        // So many pixels' centres can lie within the triangle.
        let taps = ((2.0 * reach).ceil() as usize).min(from);
        let mut filter = Self { firsts: Vec::with_capacity(to), weights: Vec::with_capacity(to * taps), taps };
        for place in 0..to {
            let centre = (place as f32 + 0.5) * scale;
            let first = ((centre - reach + 0.5).max(0.0) as usize).min(from - taps);
            let weight = |source: usize| (1.0 - ((source as f32 + 0.5 - centre) / reach).abs()).max(0.0);
            let sum: f32 = (first..first + taps).map(weight).sum();
            filter.weights.extend((first..first + taps).map(|source| weight(source) / sum));
            filter.firsts.push(first);
        }
        filter
    }

    /// The same from right to left.
    fn mirrored(mut self) -> Self {
        self.firsts.reverse();
        self.weights = self.weights.chunks_exact(self.taps).rev().flatten().copied().collect();
        self
    }

    /// Each output pixel's first neighbour and weights.
    fn iter(&self) -> impl Iterator<Item = (usize, &[f32])> {
        self.firsts.iter().copied().zip(self.weights.chunks_exact(self.taps))
    }
}

/// The weighted sum of some rows.
#[derive(Default)]
struct Sums {
    /// Of few rows: red, then green, then blue, in shares of [`BYTE`].
    fine: Vec<u16>,
    /// Of many rows, in the same order.
    coarse: Vec<f32>,
    /// The channels of a pixel together, in shares of [`BYTE`]; the fourth means nothing.
    pixels: Vec<[f32; 4]>,
}

impl Resample {
    /// A crop of an image, channel by channel.
    pub(super) fn run(&self, pixels: &Pixels, is_mirrored: bool) -> Vec<f32> {
        let crop = pixels.crop;
        let plane = self.width * self.height;
        let mut values = vec![0.0; 3 * plane];
        if crop.width == 0 || crop.height == 0 || plane == 0 {
            return values;
        }
        let columns = Filter::triangle(crop.width, self.width);
        let columns = if is_mirrored { columns.mirrored() } else { columns };
        let rows = Filter::triangle(crop.height, self.height);
        let scales: [Scale; 3] =
            std::array::from_fn(|channel| self.normalisation.of_channel(channel).in_shares_of(BYTE));
        let (red, rest) = values.split_at_mut(plane);
        let (green, blue) = rest.split_at_mut(plane);
        let planes = red.chunks_exact_mut(self.width).zip(green.chunks_exact_mut(self.width));
        let planes = planes.zip(blue.chunks_exact_mut(self.width));
        let mut sums = Sums::default();
        let mut mixed = vec![[0.0; 4]; self.width];
        for ((first, weights), ((red, green), blue)) in rows.iter().zip(planes) {
            sums.of_rows(pixels, first, weights);
            match columns.taps {
                1 => sum_columns::<1>(&mut mixed, &sums.pixels, &columns),
                2 => sum_columns::<2>(&mut mixed, &sums.pixels, &columns),
                3 => sum_columns::<3>(&mut mixed, &sums.pixels, &columns),
                4 => sum_columns::<4>(&mut mixed, &sums.pixels, &columns),
                5 => sum_columns::<5>(&mut mixed, &sums.pixels, &columns),
                6 => sum_columns::<6>(&mut mixed, &sums.pixels, &columns),
                _ => sum_many_columns(&mut mixed, &sums.pixels, &columns),
            }
            for (channel, (row, scale)) in [red, green, blue].into_iter().zip(scales).enumerate() {
                row.iter_mut().zip(&mixed).for_each(|(value, pixel)| *value = scale.of(pixel[channel]));
            }
        }
        values
    }
}

impl Sums {
    fn of_rows(&mut self, pixels: &Pixels, first: usize, weights: &[f32]) {
        let width = pixels.crop.width;
        if weights.len() <= MOST_ROWS {
            self.fine.resize(3 * width, 0);
            sum_few_rows(&mut self.fine, weights, |row| pixels.row(first + row));
            take_together(&mut self.pixels, &self.fine, width, |sum| f32::from(sum) - f32::from(BELOW));
        } else {
            self.coarse.clear();
            self.coarse.resize(3 * width, 0.0);
            for (row, weight) in weights.iter().enumerate() {
                let bytes = pixels.row(first + row);
                self.coarse.iter_mut().zip(bytes).for_each(|(sum, byte)| *sum += weight * BYTE * f32::from(*byte));
            }
            take_together(&mut self.pixels, &self.coarse, width, |sum| sum);
        }
    }
}

/// The weighted sum of rows, two at a time.
fn sum_few_rows<'a>(sums: &mut [u16], weights: &[f32], row: impl Fn(usize) -> &'a [u8]) {
    // Each product is rounded down, by half a unit on average.
    let start = (weights.len() / 2) as u16;
    // Rounded so that all of them together are what they should be.
    let (mut sum, mut rounded) = (0.0, 0);
    let mut whole = |weight: f32| {
        sum += weight * WEIGHT;
        let before = std::mem::replace(&mut rounded, sum.round() as u16);
        rounded.saturating_sub(before)
    };
    let part = |byte: u8, weight: u16| ((u32::from(u16::from(byte) << 8 | BELOW) * u32::from(weight)) >> 16) as u16;
    let (pairs, odd) = weights.as_chunks::<2>();
    for (place, [first, second]) in pairs.iter().enumerate() {
        let (first, second) = (whole(*first), whole(*second));
        let bytes = row(2 * place).iter().zip(row(2 * place + 1));
        let parts = bytes.map(|(a, b)| part(*a, first) + part(*b, second));
        match place {
            0 => sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum = start + part),
            _ => sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part),
        }
    }
    for weight in odd {
        let weight = whole(*weight);
        let parts = row(weights.len() - 1).iter().map(|byte| part(*byte, weight));
        match weights.len() {
            1 => sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum = start + part),
            _ => sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part),
        }
    }
}

/// From three channels one after the other to pixels.
fn take_together<T: Copy>(pixels: &mut Vec<[f32; 4]>, channels: &[T], width: usize, to_float: impl Fn(T) -> f32) {
    let (red, rest) = channels.split_at(width);
    let (green, blue) = rest.split_at(width);
    pixels.resize(width, [0.0; 4]);
    for ((pixel, red), (green, blue)) in pixels.iter_mut().zip(red).zip(green.iter().zip(blue)) {
        *pixel = [to_float(*red), to_float(*green), to_float(*blue), 0.0];
    }
}

/// The weighted sums of pixels, for a number of neighbours that the compiler knows.
fn sum_columns<const TAPS: usize>(mixed: &mut [[f32; 4]], sums: &[[f32; 4]], columns: &Filter) {
    let weights = columns.weights.as_chunks::<TAPS>().0;
    for ((pixel, weights), first) in mixed.iter_mut().zip(weights).zip(&columns.firsts) {
        let Some(neighbours) = sums.get(*first..).and_then(|sums| sums.first_chunk::<TAPS>()) else { continue };
        let mut sum = [0.0; 4];
        for (weight, neighbour) in weights.iter().zip(neighbours) {
            for (sum, value) in sum.iter_mut().zip(neighbour) {
                *sum += weight * value;
            }
        }
        *pixel = sum;
    }
}

/// The same for any number of neighbours.
fn sum_many_columns(mixed: &mut [[f32; 4]], sums: &[[f32; 4]], columns: &Filter) {
    for (pixel, (first, weights)) in mixed.iter_mut().zip(columns.iter()) {
        *pixel = [0.0; 4];
        for (neighbour, weight) in sums.get(first..).unwrap_or_default().iter().zip(weights) {
            pixel.iter_mut().zip(neighbour).for_each(|(sum, value)| *sum += weight * value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Crop;
    use super::*;

    const PLAIN: Normalisation = Normalisation { mean: [0.0; 3], deviation: [1.0 / 255.0; 3] };

    fn pixels(width: usize, height: usize, of: impl Fn(usize, usize) -> [u8; 3]) -> Pixels {
        let places = (0..height).flat_map(|row| (0..3).map(move |channel| (row, channel)));
        let rgb = places.flat_map(|(row, channel)| (0..width).map(move |column| (row, column, channel)));
        let rgb = rgb.map(|(row, column, channel)| of(row, column)[channel]).collect();
        Pixels { crop: Crop { left: 0, top: 0, width, height }, rgb }
    }

    fn resample(width: usize, height: usize) -> Resample {
        Resample { width, height, normalisation: PLAIN }
    }

    fn close(found: &[f32], expected: &[f32]) -> bool {
        found.len() == expected.len()
            && found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 0.01)
    }

    #[test]
    fn the_same_size_gives_the_same_pixels_plane_by_plane() {
        let image = pixels(3, 2, |row, column| [10 * row as u8 + column as u8, 100, 200 + column as u8]);
        let values = resample(3, 2).run(&image, false);
        let expected =
            [0., 1., 2., 10., 11., 12., 100., 100., 100., 100., 100., 100., 200., 201., 202., 200., 201., 202.];
        assert!(close(&values, &expected), "{values:?}");
        let mirrored = resample(3, 2).run(&image, true);
        assert!(close(&mirrored[..6], &[2., 1., 0., 12., 11., 10.]), "{mirrored:?}");
    }

    #[test]
    fn an_even_image_stays_even() {
        for byte in [0, 50, 255] {
            for (from, to) in
                [((3, 2), (1, 1)), ((3, 2), (2, 2)), ((3, 2), (7, 9)), ((300, 200), (7, 9)), ((1, 1), (3, 3))]
            {
                let image = pixels(from.0, from.1, |_, _| [byte; 3]);
                let values = resample(to.0, to.1).run(&image, false);
                let expected = vec![f32::from(byte); 3 * to.0 * to.1];
                assert!(close(&values, &expected), "{from:?} to {to:?}: {values:?}");
            }
        }
    }

    /// What Pillow 13 gives for `Image.resize` with `BILINEAR` (and rounds to bytes).
    #[test]
    fn a_ramp_is_resized_as_pillow_does() {
        let image = pixels(8, 1, |_, column| [(column * column * 4) as u8; 3]);
        let values = resample(3, 1).run(&image, false);
        assert!(values[..3].iter().zip(PILLOW_3).all(|(found, pillow)| (found - pillow).abs() <= 0.51), "{values:?}");
        let values = resample(13, 1).run(&image, false);
        assert!(values[..13].iter().zip(PILLOW_13).all(|(found, pillow)| (found - pillow).abs() <= 0.51), "{values:?}");
    }

    const PILLOW_3: [f32; 3] = [8.0, 54.0, 142.0];
    const PILLOW_13: [f32; 13] = [0.0, 2.0, 4.0, 12.0, 21.0, 34.0, 50.0, 68.0, 90.0, 115.0, 142.0, 174.0, 196.0];

    #[test]
    fn normalised_values_have_the_channel_s_mean_and_deviation() {
        let image = pixels(2, 2, |_, _| [0, 128, 255]);
        let resample = Resample { width: 1, height: 1, normalisation: Normalisation::IMAGENET };
        let values = resample.run(&image, false);
        let expected = [-0.485 / 0.229, (128.0 / 255.0 - 0.456) / 0.224, (1.0 - 0.406) / 0.225];
        assert!(values.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-4), "{values:?}");
    }
}
