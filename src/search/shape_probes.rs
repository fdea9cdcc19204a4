//! The handful of tiny shapes at which probes show how memory follows the size of samples: the length of a text, the side of
//! an image.
//!
//! A size of memory is a polynomial of the batch B and the size of samples T over 1, B, T, BT, T² and BT² (see
//! [`shape`](crate::memory::forecast::shape)). Seven shapes determine all six of its numbers and leave one to check them
//! with; three different batches and five different sizes keep them apart. All are far smaller than what is trained, and
//! shorter than the longest: at its full length a model may take another path (all of a table of positions is no slice of
//! it), which no shorter sample shows.
//!
//! Sides are multiples of what the run's sides are multiples of. A net halves an image several times and rounds what does
//! not divide, which no polynomial follows; where every side of the run can be halved as often, so can those of the probes.

use crate::data::sides::Sides;
use crate::data::{DataSpec, LengthSpec, Padding, SampleSize};

/// The batch of each probe, and which of five sizes its samples have, the smallest being 0. From such shapes real runs of
/// other shapes were forecast to the byte.
const SHAPES: [(usize, usize); 7] = [(2, 0), (3, 0), (2, 1), (3, 1), (2, 3), (4, 2), (3, 4)];
/// The lengths where samples are long enough, the shortest first.
const LENGTHS: [usize; 5] = [64, 96, 128, 160, 200];
/// The longest of them.
const LONGEST: usize = LENGTHS[LENGTHS.len() - 1];
/// Shorter ranges have no five different lengths of two tokens and more.
const FEWEST_TOKENS: usize = 8;

/// The sides where images are large enough, the smallest first.
const SIDES: [usize; 5] = [64, 96, 128, 160, 192];

/// A batch size, and how large all samples are.
pub type ProbeShape = (usize, SampleSize);

/// The shapes for this data: none where all batches have samples of the same size, and a reason where there cannot be enough.
pub fn shapes(data: &DataSpec) -> Result<Vec<ProbeShape>, String> {
    if let Some(sides) = Sides::of(data, 0) {
        return Ok(of_sizes(&multiples_below(&sides)?.map(SampleSize::Side)));
    }
    let Some(LengthSpec::Range { max, .. }) = data.sequence_length.filter(|_| data.padding == Padding::Longest) else {
        return Ok(Vec::new());
    };
    if max < FEWEST_TOKENS {
        return Err(format!(
            "samples of up to {max} tokens are too short to tell how memory follows their length (it takes \
             {FEWEST_TOKENS})"
        ));
    }
    Ok(of_sizes(&lengths(max - 1, data.pad_to_multiple_of.unwrap_or(1)).map(SampleSize::Tokens)))
}

fn of_sizes(sizes: &[SampleSize; 5]) -> Vec<ProbeShape> {
    SHAPES.iter().filter_map(|(batch_size, place)| Some((*batch_size, *sizes.get(*place)?))).collect()
}

/// Five different sides below the largest: small ones where there are enough, else from a fifth of the largest on. The
/// smallest multiple is left out where there are others, and so are images of a few pixels: of an image that is halved down
/// to a pixel some operations need no memory, and a border is most of it.
fn multiples_below(sides: &Sides) -> Result<[usize; 5], String> {
    let (multiple, largest) = (sides.multiple(), sides.largest());
    let below = (largest / multiple).saturating_sub(1);
    if below < SIDES.len() {
        return Err(format!(
            "below {largest} pixels there are {below} multiples of {multiple}, too few to tell how memory follows the side of \
             an image (it takes {})",
            SIDES.len()
        ));
    }
    let small = ascending(SIDES.map(|side| side.div_ceil(multiple).max(2)));
    let first = if below == SIDES.len() { 1 } else { (below / 5).max(2) };
    let spread = [0, 1, 2, 3, 4].map(|place| first + (below - first) * place / 4);
    let counts = if small.iter().all(|count| *count <= below) { small } else { spread };
    Ok(counts.map(|count| count * multiple))
}

/// The least numbers that ascend and are no lower than these.
fn ascending(least: [usize; 5]) -> [usize; 5] {
    let mut next = 0;
    least.map(|count| {
        next = count.max(next + 1);
        next
    })
}

/// Five different lengths up to a highest one: multiples where rows are filled up to one and there are as many, as the run
/// has hardly any others.
fn lengths(max: usize, multiple: usize) -> [usize; 5] {
    let of_multiple = max.checked_div(multiple).filter(|count| multiple > 1 && *count >= LENGTHS.len());
    if let Some(most) = of_multiple {
        let counts = ascending(LENGTHS.map(|length| length.div_ceil(multiple)));
        let counts = if counts.iter().all(|count| *count <= most) { counts } else { [1, 2, 3, 4, 5] };
        return counts.map(|count| count * multiple);
    }
    let longest = max.min(LONGEST);
    LENGTHS.map(|length| length * longest / LONGEST)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::data::{ImageSizeSpec, LengthDistribution};

    fn data(max: usize, pad_to_multiple_of: Option<usize>) -> DataSpec {
        let range = LengthSpec::Range { min: 1, max, distribution: LengthDistribution::Uniform };
        DataSpec { sequence_length: Some(range), pad_to_multiple_of, ..DataSpec::default() }
    }

    fn images(max: usize, multiple_of: usize) -> DataSpec {
        let range = ImageSizeSpec::Range { min: multiple_of, max, multiple_of, every: 1 };
        DataSpec { image_size: Some(range), ..DataSpec::default() }
    }

    fn sizes(data: &DataSpec) -> Vec<usize> {
        let sizes: BTreeSet<SampleSize> = shapes(data).unwrap().into_iter().map(|(_, size)| size).collect();
        sizes.into_iter().map(SampleSize::value).collect()
    }

    #[test]
    fn every_range_has_seven_shapes_of_three_batches_and_five_lengths_within_it() {
        for max in (FEWEST_TOKENS..300).chain([512, 1024, 1 << 24]) {
            for multiple in [None, Some(1), Some(8), Some(64), Some(1000)] {
                let found = shapes(&data(max, multiple)).unwrap();
                assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), 7, "{max}, {multiple:?}: {found:?}");
                let batches: BTreeSet<usize> = found.iter().map(|shape| shape.0).collect();
                let lengths = sizes(&data(max, multiple));
                assert_eq!((batches.len(), lengths.len()), (3, 5), "{max}, {multiple:?}: {found:?}");
                assert!(lengths.iter().all(|length| (2..max).contains(length)), "{max}, {multiple:?}: {found:?}");
            }
        }
    }

    #[test]
    fn rows_of_a_multiple_are_probed_at_multiples_where_there_are_enough() {
        let lengths = |max, multiple| sizes(&data(max, Some(multiple)));
        assert_eq!(lengths(1024, 64), [64, 128, 192, 256, 320]);
        assert_eq!(lengths(1024, 16), [64, 96, 128, 160, 208]);
        assert_eq!(lengths(48, 8), [8, 16, 24, 32, 40]);
        assert_eq!(lengths(201, 64), LENGTHS);
    }

    #[test]
    fn sides_are_probed_at_five_multiples_below_the_largest() {
        assert_eq!(sizes(&images(320, 32)), [64, 96, 128, 160, 192]);
        assert_eq!(sizes(&images(192, 32)), [32, 64, 96, 128, 160]);
        assert_eq!(sizes(&images(2048, 8)), SIDES);
        assert_eq!(sizes(&images(640, 64)), [128, 192, 256, 320, 384]);
        assert_eq!(sizes(&images(112, 16)), [32, 48, 64, 80, 96]);
        assert_eq!(sizes(&images(100, 1)), [19, 39, 59, 79, 99]);
        for multiple in [1, 2, 7, 32, 100] {
            for count in 6..60 {
                let found = sizes(&images(multiple * count, multiple));
                let is_below = |side: &usize| side.is_multiple_of(multiple) && *side < multiple * count;
                assert!(found.len() == 5 && found.iter().all(is_below), "{count} × {multiple}: {found:?}");
            }
        }
        let found = shapes(&images(320, 32)).unwrap();
        let expected = [(2, 64), (3, 64), (2, 96), (3, 96), (2, 160), (4, 128), (3, 192)];
        assert_eq!(found, expected.map(|(batch_size, side)| (batch_size, SampleSize::Side(side))));
        let reason = shapes(&images(160, 32)).unwrap_err();
        assert!(reason.starts_with("below 160 pixels there are 4 multiples of 32, too few"), "{reason}");
        assert_eq!(shapes(&images(32, 32)), Ok(Vec::new()));
    }

    #[test]
    fn one_length_needs_none_and_a_range_that_is_too_narrow_says_so() {
        assert_eq!(shapes(&DataSpec::default()), Ok(Vec::new()));
        assert_eq!(shapes(&DataSpec { padding: Padding::Maximum, ..data(512, None) }), Ok(Vec::new()));
        let reason = shapes(&data(7, None)).unwrap_err();
        assert!(reason.starts_with("samples of up to 7 tokens are too short"), "{reason}");
    }
}
