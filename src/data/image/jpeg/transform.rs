//! From the values of a block to its pixels: the inverse cosine transform.
//!
//! The factorisation is that of Arai, Agui, and Nakajima ("A fast DCT-SQ scheme for images", 1988): five multiplications for
//! eight values, since most of the scaling is the dequantiser's. In floats it is more exact than what libjpeg does in whole
//! numbers by default, and no byte differs from that by more than one. Each loop is over eight independent lanes,
//! which the compiler makes vectors of.

use std::f32::consts::SQRT_2;

/// The side of a block, in pixels.
pub(super) const BLOCK: usize = 8;
const VALUES: usize = BLOCK * BLOCK;
/// What black is away from the middle of the range.
const MIDDLE: f32 = 128.0;
/// Adding it rounds a float to a whole number, which is then in its lowest bits.
const ROUNDING: f32 = 8_388_608.0;

/// cos(kπ/16)·√2, and 1 for k = 0.
const SCALES: [f32; BLOCK] = [1.0, 1.387_039_8, 1.306_562_9, 1.175_875_6, 1.0, 0.785_694_96, 0.541_196_1, 0.275_899_38];

/// What the values of a block are multiplied by, column by column.
#[derive(Clone, Debug)]
pub(super) struct Dequantiser {
    factors: [f32; VALUES],
}

impl Dequantiser {
    /// From a table in the order of the file.
    pub(super) fn new(quantiser: &[u16; VALUES]) -> Self {
        let mut factors = [0.0; VALUES];
        for (value, place) in quantiser.iter().zip(super::entropy::COLUMN_WISE) {
            let place = usize::from(place);
            let scale = SCALES[place / BLOCK] * SCALES[place % BLOCK] / BLOCK as f32;
            factors[place] = f32::from(*value) * scale;
        }
        Self { factors }
    }

    /// The pixels of a block of one value, the first.
    pub(super) fn flat(&self, first: i32) -> u8 {
        to_byte(first as f32 * self.factors[0] + MIDDLE)
    }

    /// The pixels of a block, row by row, whose first value is `first`.
    pub(super) fn pixels(&self, first: i32, values: &[i16; VALUES]) -> [[u8; BLOCK]; BLOCK] {
        let mut columns = [0.0; VALUES];
        for ((column, value), factor) in columns.iter_mut().zip(values).zip(&self.factors) {
            *column = f32::from(*value) * factor;
        }
        columns[0] = first as f32 * self.factors[0] + MIDDLE;
        let mut turned = [0.0; VALUES];
        transform(&columns, &mut turned);
        let mut rows = [0.0; VALUES];
        for row in 0..BLOCK {
            for column in 0..BLOCK {
                rows[BLOCK * row + column] = turned[BLOCK * column + row];
            }
        }
        transform(&rows, &mut turned);
        let mut pixels = [[0; BLOCK]; BLOCK];
        for (row, values) in pixels.iter_mut().zip(turned.as_chunks::<BLOCK>().0) {
            *row = values.map(to_byte);
        }
        pixels
    }
}

fn to_byte(value: f32) -> u8 {
    // Comparisons instead of `clamp`: single instructions, and what is no number becomes black.
    let value = if value > 0.0 { value } else { 0.0 };
    let value = if value < 255.0 { value } else { 255.0 };
    (value + ROUNDING).to_bits() as u8
}

/// The transform along the first index, for each of the second.
fn transform(from: &[f32; VALUES], to: &mut [f32; VALUES]) {
    const COS_1: f32 = 1.847_759_1;
    const COS_2: f32 = 1.082_392_2;
    const COS_3: f32 = 2.613_126;
    for lane in 0..BLOCK {
        let at = |index: usize| from[BLOCK * index + lane];
        // Even values: a transform of four.
        let (sum, difference) = (at(0) + at(4), at(0) - at(4));
        let side_sum = at(2) + at(6);
        let side = (at(2) - at(6)) * SQRT_2 - side_sum;
        let even = [sum + side_sum, difference + side, difference - side, sum - side_sum];
        // Odd values.
        let (inner_sum, inner) = (at(5) + at(3), at(5) - at(3));
        let (outer_sum, outer) = (at(1) + at(7), at(1) - at(7));
        let common = (inner + outer) * COS_1;
        let odd_0 = outer_sum + inner_sum;
        let odd_1 = common - inner * COS_3 - odd_0;
        let odd_2 = (outer_sum - inner_sum) * SQRT_2 - odd_1;
        let odd_3 = common - outer * COS_2 - odd_2;
        for (index, (even, odd)) in even.into_iter().zip([odd_0, odd_1, odd_2, odd_3]).enumerate() {
            to[BLOCK * index + lane] = even + odd;
            to[BLOCK * (BLOCK - 1 - index) + lane] = even - odd;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::PI;

    use super::*;

    /// The definition (T.81, A.3.3).
    fn defined(values: &[f64; VALUES]) -> [f64; VALUES] {
        let scale = |index: usize| if index == 0 { 0.5_f64.sqrt() } else { 1.0 };
        let wave = |at: usize, index: usize| ((2 * at + 1) as f64 * index as f64 * PI / 16.0).cos();
        std::array::from_fn(|place| {
            let (row, column) = (place / BLOCK, place % BLOCK);
            let terms = (0..VALUES).map(|place| {
                let (across, down) = (place / BLOCK, place % BLOCK);
                scale(across) * scale(down) * values[place] * wave(column, across) * wave(row, down)
            });
            terms.sum::<f64>() / 4.0 + 128.0
        })
    }

    #[test]
    fn pixels_are_what_the_transform_s_definition_gives() {
        let noise = |counter: u32| (counter.wrapping_mul(2_654_435_761) >> 16).cast_signed() % 41 - 20;
        for seed in 0..50_u32 {
            let quantiser: [u16; VALUES] = std::array::from_fn(|place| 1 + (place as u16 * 3 + seed as u16) % 9);
            let values: [i16; VALUES] = std::array::from_fn(|place| {
                if place % 3 == seed as usize % 3 { noise(seed * 64 + place as u32) as i16 } else { 0 }
            });
            let mut dequantised = [0.0; VALUES];
            for (factor, place) in quantiser.iter().zip(super::super::entropy::COLUMN_WISE) {
                dequantised[usize::from(place)] = f64::from(values[usize::from(place)]) * f64::from(*factor);
            }
            let pixels = Dequantiser::new(&quantiser).pixels(values[0].into(), &values);
            for (found, expected) in pixels.as_flattened().iter().zip(defined(&dequantised)) {
                assert!((f64::from(*found) - expected.clamp(0.0, 255.0)).abs() < 0.501, "{found} for {expected}");
            }
        }
    }

    #[test]
    fn a_block_of_one_value_is_flat_and_no_value_leaves_the_range_of_bytes() {
        for quantiser in [1, 16, u16::MAX] {
            let dequantiser = Dequantiser::new(&[quantiser; VALUES]);
            for first in [i32::MIN, -40_000, -1024, -3, 0, 7, 1000, i32::MAX] {
                let flat = dequantiser.flat(first);
                assert_eq!(dequantiser.pixels(first, &[0; VALUES]), [[flat; BLOCK]; BLOCK]);
            }
            dequantiser.pixels(i32::MAX, &[i16::MIN; VALUES]);
        }
    }
}
