//! Resizing a crop and normalising it, in one pass over its rows.
//!
//! The filter is Pillow's bilinear one (`Resample.c`): a triangle as wide as two source pixels, and wider by the factor
//! where the image shrinks, so that no source pixel is left out. It is separable. Each output row is first summed over its
//! source rows, which are contiguous bytes, then over columns, where the three channels of a pixel go together in a
//! vector of four. What comes out is one plane a channel.

use super::{Crop, Normalisation, Pixels, Scale, View};

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
        let taps = (2 * (reach.ceil() as usize) + 1).min(from);
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

    /// Each output pixel's first neighbour and weights.
    fn iter(&self) -> impl Iterator<Item = (usize, &[f32])> {
        self.firsts.iter().copied().zip(self.weights.chunks_exact(self.taps))
    }
}

impl Resample {
    /// A part of an image, channel by channel.
    pub(super) fn run(&self, pixels: &Pixels, view: View) -> Vec<f32> {
        let View { crop, is_mirrored } = view;
        let plane = self.width * self.height;
        let mut values = vec![0.0; 3 * plane];
        if crop.width == 0 || crop.height == 0 || plane == 0 {
            return values;
        }
        let columns = Filter::triangle(crop.width, self.width);
        let rows = Filter::triangle(crop.height, self.height);
        let scales: [Scale; 3] = std::array::from_fn(|channel| self.normalisation.of_channel(channel));
        let (red, rest) = values.split_at_mut(plane);
        let (green, blue) = rest.split_at_mut(plane);
        let planes = red.chunks_exact_mut(self.width).zip(green.chunks_exact_mut(self.width));
        let planes = planes.zip(blue.chunks_exact_mut(self.width));
        // One more value than pixels have, for the last vector of four.
        let mut sums = vec![0.0; 3 * crop.width + 1];
        let mut mixed = vec![[0.0; 4]; self.width];
        for ((first, weights), ((red, green), blue)) in rows.iter().zip(planes) {
            sum_rows(&mut sums, weights, |row| pixels.row(crop, first + row));
            match columns.taps {
                2 => sum_columns::<2>(&mut mixed, &sums, &columns),
                3 => sum_columns::<3>(&mut mixed, &sums, &columns),
                5 => sum_columns::<5>(&mut mixed, &sums, &columns),
                7 => sum_columns::<7>(&mut mixed, &sums, &columns),
                _ => sum_many_columns(&mut mixed, &sums, &columns),
            }
            for (channel, (row, scale)) in [red, green, blue].into_iter().zip(scales).enumerate() {
                row.iter_mut().zip(&mixed).for_each(|(value, pixel)| *value = scale.of(pixel[channel]));
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

/// The weighted sum of rows, two at a time.
fn sum_rows<'a>(sums: &mut [f32], weights: &[f32], row: impl Fn(usize) -> &'a [u8]) {
    let (pairs, odd) = weights.as_chunks::<2>();
    for (place, [first, second]) in pairs.iter().enumerate() {
        let bytes = row(2 * place).iter().zip(row(2 * place + 1));
        let weighted = bytes.map(|(a, b)| first * f32::from(*a) + second * f32::from(*b));
        match place {
            0 => sums.iter_mut().zip(weighted).for_each(|(sum, value)| *sum = value),
            _ => sums.iter_mut().zip(weighted).for_each(|(sum, value)| *sum += value),
        }
    }
    for weight in odd {
        let weighted = row(weights.len() - 1).iter().map(|byte| weight * f32::from(*byte));
        match weights.len() {
            1 => sums.iter_mut().zip(weighted).for_each(|(sum, value)| *sum = value),
            _ => sums.iter_mut().zip(weighted).for_each(|(sum, value)| *sum += value),
        }
    }
}

/// The weighted sums of pixels, for a number of neighbours that the compiler knows. The fourth value is the next
/// pixel's, and means nothing.
fn sum_columns<const TAPS: usize>(mixed: &mut [[f32; 4]], sums: &[f32], columns: &Filter) {
    let weights = columns.weights.as_chunks::<TAPS>().0;
    for ((pixel, weights), first) in mixed.iter_mut().zip(weights).zip(&columns.firsts) {
        let Some(sums) = sums.get(3 * first..3 * (first + TAPS) + 1) else { continue };
        let mut sum = [0.0; 4];
        for place in 0..TAPS {
            for channel in 0..4 {
                sum[channel] += weights[place] * sums[3 * place + channel];
            }
        }
        *pixel = sum;
    }
}

/// The same for any number of neighbours.
fn sum_many_columns(mixed: &mut [[f32; 4]], sums: &[f32], columns: &Filter) {
    for (pixel, (first, weights)) in mixed.iter_mut().zip(columns.iter()) {
        *pixel = [0.0; 4];
        let neighbours = sums.get(3 * first..).unwrap_or_default().windows(4).step_by(3);
        for (neighbour, weight) in neighbours.zip(weights) {
            pixel.iter_mut().zip(neighbour).for_each(|(sum, value)| *sum += weight * value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Normalisation = Normalisation { mean: [0.0; 3], deviation: [1.0 / 255.0; 3] };

    fn pixels(width: usize, height: usize, of: impl Fn(usize, usize) -> [u8; 3]) -> Pixels {
        let rgb = (0..height).flat_map(|row| (0..width).map(move |column| (row, column)));
        Pixels { width, height, rgb: rgb.flat_map(|(row, column)| of(row, column)).collect() }
    }

    fn whole(pixels: &Pixels, is_mirrored: bool) -> View {
        View { crop: Crop { left: 0, top: 0, width: pixels.width, height: pixels.height }, is_mirrored }
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
        let values = resample(3, 2).run(&image, whole(&image, false));
        let expected =
            [0., 1., 2., 10., 11., 12., 100., 100., 100., 100., 100., 100., 200., 201., 202., 200., 201., 202.];
        assert!(close(&values, &expected), "{values:?}");
        let mirrored = resample(3, 2).run(&image, whole(&image, true));
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
            let values = resample(width, height).run(&image, View { crop, is_mirrored: false });
            assert!(close(&values, &vec![50.0; 3 * width * height]), "{width} × {height}: {values:?}");
        }
    }

    /// What Pillow 13 gives for `Image.resize` with `BILINEAR` (and rounds to bytes).
    #[test]
    fn a_ramp_is_resized_as_pillow_does() {
        let image = pixels(8, 1, |_, column| [(column * column * 4) as u8; 3]);
        let values = resample(3, 1).run(&image, whole(&image, false));
        assert!(values[..3].iter().zip(PILLOW_3).all(|(found, pillow)| (found - pillow).abs() <= 0.51), "{values:?}");
        let values = resample(13, 1).run(&image, whole(&image, false));
        assert!(values[..13].iter().zip(PILLOW_13).all(|(found, pillow)| (found - pillow).abs() <= 0.51), "{values:?}");
    }

    const PILLOW_3: [f32; 3] = [8.0, 54.0, 142.0];
    const PILLOW_13: [f32; 13] = [0.0, 2.0, 4.0, 12.0, 21.0, 34.0, 50.0, 68.0, 90.0, 115.0, 142.0, 174.0, 196.0];

    #[test]
    fn normalised_values_have_the_channel_s_mean_and_deviation() {
        let image = pixels(2, 2, |_, _| [0, 128, 255]);
        let resample = Resample { width: 1, height: 1, normalisation: Normalisation::IMAGENET };
        let values = resample.run(&image, whole(&image, false));
        let expected = [-0.485 / 0.229, (128.0 / 255.0 - 0.456) / 0.224, (1.0 - 0.406) / 0.225];
        assert!(values.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-4), "{values:?}");
    }
}
