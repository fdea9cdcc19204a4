//! From the planes of a JPEG to rows of red, green, and blue.
//!
//! Colours of half the resolution are smoothed as libjpeg does by default ("fancy upsampling"): a pixel takes three
//! quarters of the nearer value and one of the farther, along each direction that is halved. The colours are those of
//! JFIF, rounded as libjpeg does. Whole numbers of sixteen bits, so that a vector holds eight.

use super::planes::Plane;

/// The value of no colour.
const MIDDLE: i16 = 128;

/// Rows that are kept from one row of an image to the next.
#[derive(Debug, Default)]
pub(super) struct Rows {
    mixed: Vec<i16>,
    blue: Vec<i16>,
    red: Vec<i16>,
}

/// Where a row lies in an image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    pub(super) row: usize,
    pub(super) left: usize,
    pub(super) width: usize,
}

impl Rows {
    /// A row of an image in red, then green, then blue.
    pub(super) fn convert(&mut self, planes: &[Plane], stretch: Stretch, rgb: &mut [u8]) -> Option<()> {
        let (red, rest) = rgb.split_at_mut_checked(stretch.width)?;
        let (green, blue) = rest.split_at_mut_checked(stretch.width)?;
        match planes {
            [grey] => {
                let grey = grey.stretch(stretch)?;
                for colour in [red, green, blue] {
                    colour.copy_from_slice(grey);
                }
            }
            [luminance, blueness, redness] => {
                upsample(blueness, stretch, &mut self.mixed, &mut self.blue)?;
                upsample(redness, stretch, &mut self.mixed, &mut self.red)?;
                let shades = luminance.stretch(stretch)?.iter().zip(self.blue.iter().zip(&self.red));
                let colours = red.iter_mut().zip(green).zip(blue);
                for ((shade, (blueness, redness)), ((red, green), blue)) in shades.zip(colours) {
                    (*red, *green, *blue) = to_rgb(i16::from(*shade), *blueness, *redness);
                }
            }
            _ => return None,
        }
        Some(())
    }
}

/// JFIF's conversion, with 16 bits behind the point. `blueness` and `redness` are from −128 to 127.
fn to_rgb(luminance: i16, blueness: i16, redness: i16) -> (u8, u8, u8) {
    // 1.402 and 1.772 are 1 and 2 but for a share that sixteen bits hold; and so is 0.71414.
    const RED: i32 = 26_345;
    const BLUE: i32 = -14_942;
    const GREEN_OF_BLUE: i32 = -22_554;
    const GREEN_OF_RED: i32 = 18_734;
    const HALF: i32 = 1 << 15;
    let share = |sum: i32| ((sum + HALF) >> 16) as i16;
    let red = luminance + redness + share(i32::from(redness) * RED);
    let blue = luminance + 2 * blueness + share(i32::from(blueness) * BLUE);
    let green = luminance - redness + share(i32::from(blueness) * GREEN_OF_BLUE + i32::from(redness) * GREEN_OF_RED);
    let to_byte = |value: i16| value.clamp(0, 255) as u8;
    (to_byte(red), to_byte(green), to_byte(blue))
}

/// A stretch of a plane at the image's resolution, from −128 to 127.
fn upsample(plane: &Plane, stretch: Stretch, mixed: &mut Vec<i16>, out: &mut Vec<i16>) -> Option<()> {
    let near = stretch.row / plane.rows_of_a_value;
    // The upper of two rows of a value leans on the row above it.
    let is_upper = stretch.row.is_multiple_of(2);
    let far = match plane.rows_of_a_value {
        1 => near,
        _ if is_upper => near.saturating_sub(1),
        _ => (near + 1).min(plane.last_row()),
    };
    if plane.columns_of_a_value == 1 {
        let of = |row| plane.stretch(Stretch { row, ..stretch });
        let half = if is_upper { 1 } else { 2 };
        out.clear();
        let mix = |(near, far): (&u8, &u8)| ((3 * i16::from(*near) + i16::from(*far) + half) >> 2) - MIDDLE;
        out.extend(of(near)?.iter().zip(of(far)?).map(mix));
        return Some(());
    }
    // One value more on either side, the outermost ones twice.
    let (left, right) = (stretch.left / 2, (stretch.left + stretch.width - 1) / 2);
    let of = |row| {
        let first = left.saturating_sub(1);
        let last = (right + 1).min(plane.last_column());
        plane.stretch(Stretch { row, left: first, width: last + 1 - first })
    };
    let (near, far) = (of(near)?, of(far)?);
    let mix = |(near, far): (&u8, &u8)| 3 * i16::from(*near) + i16::from(*far);
    mixed.clear();
    if left == 0 {
        mixed.extend(near.iter().zip(far).map(mix).next());
    }
    mixed.extend(near.iter().zip(far).map(mix));
    if right == plane.last_column() {
        mixed.extend(mixed.last().copied());
    }
    // Sixteenths, or quarters of four where rows are not halved: libjpeg rounds the two differently.
    let (before, after) = if plane.rows_of_a_value == 1 { (4, 8) } else { (8, 7) };
    out.resize(2 * (right + 1 - left), 0);
    let values = mixed.iter().zip(mixed.get(1..)?).zip(mixed.get(2..)?);
    for (pair, ((last, this), next)) in out.as_chunks_mut::<2>().0.iter_mut().zip(values) {
        *pair = [((3 * this + last + before) >> 4) - MIDDLE, ((3 * this + next + after) >> 4) - MIDDLE];
    }
    if stretch.left % 2 == 1 {
        out.remove(0);
    }
    Some(())
}
