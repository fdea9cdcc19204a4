//! Resizing a crop and normalising it, in one pass over its rows.
//!
//! The filter is Pillow's bilinear one (`Resample.c`): a triangle as wide as two source pixels, and wider by the factor
//! where the image shrinks, so that no source pixel is left out. It is separable. Each output row is first summed over its
//! source rows, which are contiguous bytes, then over columns, where the three channels of a pixel go together in a
//! vector of four. What comes out is one plane a channel.

use std::ops::Range;

use super::{Crop, Normalisation, Pixels, Scale};

/// A resampler to images of one size.
#[derive(Clone, Copy, Debug)]
pub(in crate::data) struct Resample {
    pub(in crate::data) width: usize,
    pub(in crate::data) height: usize,
    pub(in crate::data) normalisation: Normalisation,
}

/// Which pixels make up one output pixel, and how much each counts.
#[derive(Debug)]
struct Taps {
    first: usize,
    weights: Range<usize>,
}

/// All output pixels of one direction.
#[derive(Debug)]
struct Filter {
    taps: Vec<Taps>,
    weights: Vec<f32>,
}

impl Filter {
    /// From `from` pixels to `to`.
    fn triangle(from: usize, to: usize) -> Self {
        let scale = from as f32 / to as f32;
        let reach = scale.max(1.0);
        let mut filter = Self { taps: Vec::with_capacity(to), weights: Vec::new() };
        for place in 0..to {
            let centre = (place as f32 + 0.5) * scale;
            let first = ((centre - reach + 0.5).max(0.0) as usize).min(from - 1);
            let end = ((centre + reach + 0.5) as usize).clamp(first + 1, from);
            let start = filter.weights.len();
            let weight = |source: usize| (1.0 - ((source as f32 + 0.5 - centre) / reach).abs()).max(0.0);
            let sum: f32 = (first..end).map(weight).sum();
            if sum > 0.0 {
                filter.weights.extend((first..end).map(|source| weight(source) / sum));
            } else {
                filter.weights.push(1.0);
            }
            filter.taps.push(Taps { first, weights: start..filter.weights.len() });
        }
        filter
    }

    /// Each output pixel's first source pixel and weights.
    fn iter(&self) -> impl Iterator<Item = (usize, &[f32])> {
        self.taps.iter().map(|taps| (taps.first, self.weights.get(taps.weights.clone()).unwrap_or_default()))
    }
}

impl Resample {
    /// The crop of an image, channel by channel, from left to right or mirrored.
    pub(in crate::data) fn run(&self, pixels: &Pixels, crop: Crop, is_mirrored: bool) -> Vec<f32> {
        let plane = self.width * self.height;
        let mut values = vec![0.0; 3 * plane];
        if crop.width == 0 || crop.height == 0 || plane == 0 {
            return values;
        }
        let (columns, rows) = (Filter::triangle(crop.width, self.width), Filter::triangle(crop.height, self.height));
        let scales: [Scale; 3] = std::array::from_fn(|channel| self.normalisation.of_channel(channel));
        let (red, rest) = values.split_at_mut(plane);
        let (green, blue) = rest.split_at_mut(plane);
        let planes = red.chunks_exact_mut(self.width).zip(green.chunks_exact_mut(self.width));
        let planes = planes.zip(blue.chunks_exact_mut(self.width));
        // One more value than pixels have, for the last vector of four.
        let mut sums = vec![0.0; 3 * crop.width + 1];
        for ((first, weights), ((red, green), blue)) in rows.iter().zip(planes) {
            sum_rows(&mut sums, weights, |row| pixels.row(crop, first + row));
            let outputs = red.iter_mut().zip(green).zip(blue);
            for ((first, weights), ((red, green), blue)) in columns.iter().zip(outputs) {
                let [r, g, b, _] = sum_columns(sums.get(3 * first..).unwrap_or_default(), weights);
                (*red, *green, *blue) = (scales[0].of(r), scales[1].of(g), scales[2].of(b));
            }
        }
        if is_mirrored {
            values.chunks_exact_mut(self.width).for_each(<[f32]>::reverse);
        }
        values
    }
}

impl Pixels {
    /// The bytes of a row of a crop.
    fn row(&self, crop: Crop, row: usize) -> &[u8] {
        let start = 3 * ((crop.top + row) * self.width + crop.left);
        self.rgb.get(start..start + 3 * crop.width).unwrap_or_default()
    }
}

/// The weighted sum of rows.
fn sum_rows<'a>(sums: &mut [f32], weights: &[f32], row: impl Fn(usize) -> &'a [u8]) {
    for (place, weight) in weights.iter().enumerate() {
        let bytes = row(place).iter();
        if place == 0 {
            sums.iter_mut().zip(bytes).for_each(|(sum, byte)| *sum = weight * f32::from(*byte));
        } else {
            sums.iter_mut().zip(bytes).for_each(|(sum, byte)| *sum += weight * f32::from(*byte));
        }
    }
}

/// The weighted sum of pixels; the fourth value is the next pixel's, and means nothing.
fn sum_columns(sums: &[f32], weights: &[f32]) -> [f32; 4] {
    let mut sum = [0.0; 4];
    for (place, weight) in weights.iter().enumerate() {
        if let Some(pixel) = sums.get(3 * place..).and_then(|sums| sums.first_chunk::<4>()) {
            for (sum, value) in sum.iter_mut().zip(pixel) {
                *sum += weight * value;
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Normalisation = Normalisation { mean: [0.0; 3], deviation: [1.0 / 255.0; 3] };

    fn pixels(width: usize, height: usize, of: impl Fn(usize, usize) -> [u8; 3]) -> Pixels {
        let rgb = (0..height).flat_map(|row| (0..width).map(move |column| (row, column)));
        Pixels { width, height, rgb: rgb.flat_map(|(row, column)| of(row, column)).collect() }
    }

    fn whole(pixels: &Pixels) -> Crop {
        Crop { left: 0, top: 0, width: pixels.width, height: pixels.height }
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
        let values = resample(3, 2).run(&image, whole(&image), false);
        let expected =
            [0., 1., 2., 10., 11., 12., 100., 100., 100., 100., 100., 100., 200., 201., 202., 200., 201., 202.];
        assert!(close(&values, &expected), "{values:?}");
        let mirrored = resample(3, 2).run(&image, whole(&image), true);
        assert!(close(&mirrored[..6], &[2., 1., 0., 12., 11., 10.]), "{mirrored:?}");
    }

    #[test]
    fn a_crop_sees_nothing_around_it() {
        let image = pixels(
            6,
            6,
            |row, column| if (2..4).contains(&row) && (1..4).contains(&column) { [50; 3] } else { [255; 3] },
        );
        let crop = Crop { left: 1, top: 2, width: 3, height: 2 };
        for (width, height) in [(1, 1), (2, 2), (7, 9)] {
            let values = resample(width, height).run(&image, crop, false);
            assert!(close(&values, &vec![50.0; 3 * width * height]), "{width} × {height}: {values:?}");
        }
    }

    /// What Pillow 13 gives for `Image.resize` with `BILINEAR` (and rounds to bytes).
    #[test]
    fn a_ramp_is_resized_as_pillow_does() {
        let image = pixels(8, 1, |_, column| [(column * column * 4) as u8; 3]);
        let values = resample(3, 1).run(&image, whole(&image), false);
        assert!(values[..3].iter().zip(PILLOW_3).all(|(found, pillow)| (found - pillow).abs() <= 0.51), "{values:?}");
        let values = resample(13, 1).run(&image, whole(&image), false);
        assert!(values[..13].iter().zip(PILLOW_13).all(|(found, pillow)| (found - pillow).abs() <= 0.51), "{values:?}");
    }

    const PILLOW_3: [f32; 3] = [8.0, 54.0, 142.0];
    const PILLOW_13: [f32; 13] = [0.0, 2.0, 4.0, 12.0, 21.0, 34.0, 50.0, 68.0, 90.0, 115.0, 142.0, 174.0, 196.0];

    #[test]
    fn normalised_values_have_the_channel_s_mean_and_deviation() {
        let image = pixels(2, 2, |_, _| [0, 128, 255]);
        let resample = Resample { width: 1, height: 1, normalisation: Normalisation::IMAGENET };
        let values = resample.run(&image, whole(&image), false);
        let expected = [-0.485 / 0.229, (128.0 / 255.0 - 0.456) / 0.224, (1.0 - 0.406) / 0.225];
        assert!(values.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-4), "{values:?}");
    }
}
