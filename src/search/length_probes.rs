//! The handful of tiny shapes at which probes show how memory follows the length of samples.
//!
//! A size is a polynomial of the batch B and the length T over 1, B, T, BT, T² and BT² (see
//! [`shape`](crate::memory::forecast::shape)). Seven shapes determine all six of its numbers and leave one to check them
//! with; three different batches and five different lengths keep them apart. All are far smaller than what is trained, and
//! shorter than the longest: at its full length a model may take another path (all of a table of positions is no slice of
//! it), which no shorter sample shows.

use crate::data::{DataSpec, LengthSpec, Padding};

/// (B, T) of the probes where lengths are long enough. From these a real run of other shapes was forecast to the byte.
const SHAPES: [(usize, usize); 7] = [(2, 64), (3, 64), (2, 96), (3, 96), (2, 160), (4, 128), (3, 200)];
/// The different lengths in them, the shortest first.
const LENGTHS: [usize; 5] = [64, 96, 128, 160, 200];
/// The longest of them.
const LONGEST: usize = LENGTHS[LENGTHS.len() - 1];
/// Shorter ranges have no five different lengths of two tokens and more.
const FEWEST_TOKENS: usize = 8;

/// A batch size and a length.
pub type ProbeShape = (usize, usize);

/// The shapes for this data: none where all batches have the same length, and a reason where there cannot be enough.
pub fn shapes(data: &DataSpec) -> Result<Vec<ProbeShape>, String> {
    let Some(LengthSpec::Range { max, .. }) = data.sequence_length.filter(|_| data.padding == Padding::Longest) else {
        return Ok(Vec::new());
    };
    if max < FEWEST_TOKENS {
        return Err(format!(
            "samples of up to {max} tokens are too short to tell how memory follows their length (it takes \
             {FEWEST_TOKENS})"
        ));
    }
    let lengths = lengths(max - 1, data.pad_to_multiple_of.unwrap_or(1));
    let scaled = |length: usize| LENGTHS.iter().zip(&lengths).find(|(of, _)| **of == length).map(|(_, to)| *to);
    Ok(SHAPES.iter().filter_map(|(batch_size, length)| Some((*batch_size, scaled(*length)?))).collect())
}

/// Five different lengths up to a highest one: multiples where rows are filled up to one and there are as many, as the run
/// has hardly any others.
fn lengths(max: usize, multiple: usize) -> Vec<usize> {
    let of_multiple = max.checked_div(multiple).filter(|count| multiple > 1 && *count >= LENGTHS.len());
    if of_multiple.is_some() {
        let least = LENGTHS.map(|length| length.div_ceil(multiple));
        let mut next = 0;
        let ascending: Vec<usize> = least
            .into_iter()
            .map(|count| {
                next = count.max(next + 1);
                next * multiple
            })
            .collect();
        if ascending.last().is_some_and(|longest| *longest <= max) {
            return ascending;
        }
        return (1..=LENGTHS.len()).map(|count| count * multiple).collect();
    }
    let longest = max.min(LONGEST);
    LENGTHS.iter().map(|length| length * longest / LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::data::LengthDistribution;

    fn data(max: usize, pad_to_multiple_of: Option<usize>) -> DataSpec {
        let range = LengthSpec::Range { min: 1, max, distribution: LengthDistribution::Uniform };
        DataSpec { sequence_length: Some(range), pad_to_multiple_of, ..DataSpec::default() }
    }

    #[test]
    fn every_range_has_seven_shapes_of_three_batches_and_five_lengths_within_it() {
        for max in (FEWEST_TOKENS..300).chain([512, 1024, 1 << 24]) {
            for multiple in [None, Some(1), Some(8), Some(64), Some(1000)] {
                let found = shapes(&data(max, multiple)).unwrap();
                let of = |axis: fn(&ProbeShape) -> usize| found.iter().map(axis).collect::<BTreeSet<_>>();
                assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), 7, "{max}, {multiple:?}: {found:?}");
                let lengths = of(|shape| shape.1);
                assert_eq!((of(|shape| shape.0).len(), lengths.len()), (3, 5), "{max}, {multiple:?}: {found:?}");
                assert!(lengths.iter().all(|length| (2..max).contains(length)), "{max}, {multiple:?}: {found:?}");
            }
        }
    }

    #[test]
    fn rows_of_a_multiple_are_probed_at_multiples_where_there_are_enough() {
        let lengths = |max, multiple| {
            let found = shapes(&data(max, Some(multiple))).unwrap();
            found.into_iter().map(|(_, length)| length).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
        };
        assert_eq!(lengths(1024, 64), [64, 128, 192, 256, 320]);
        assert_eq!(lengths(1024, 16), [64, 96, 128, 160, 208]);
        assert_eq!(lengths(48, 8), [8, 16, 24, 32, 40]);
        assert_eq!(lengths(201, 64), LENGTHS);
    }

    #[test]
    fn one_length_needs_none_and_a_range_that_is_too_narrow_says_so() {
        assert_eq!(shapes(&DataSpec::default()), Ok(Vec::new()));
        assert_eq!(shapes(&DataSpec { padding: Padding::Maximum, ..data(512, None) }), Ok(Vec::new()));
        let reason = shapes(&data(7, None)).unwrap_err();
        assert!(reason.starts_with("samples of up to 7 tokens are too short"), "{reason}");
    }
}
