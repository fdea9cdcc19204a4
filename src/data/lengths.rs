//! Samples of varying length: how long each one is, and how a batch of them is padded.
//!
//! A dataset is opened at the longest length. Here each sample is cut to a length that (seed, epoch, index) decide, and
//! those of a batch are filled up with [`PADDING`] again: to the longest among them, or to the longest there can be.
//! Padded places count in the loss like any other (input and target are token 0), as the time and the memory of a
//! padded batch are what a trial measures.
//!
//! # The worst case
//! What the memory of a run needs is decided by its longest batch, which comes once in a while: with eight samples
//! drawn from 64 to 512, one batch in five is shorter than 400 tokens and one in sixty is as long as it can be. A trial
//! of a dozen steps would miss it, so [`Longest`] puts it in: a batch of whole, uncut samples. It comes after shorter
//! ones on purpose. An allocator that served the largest shape first reuses its blocks for all others; one that
//! meets it later has to find room for it among what is cached.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::order::mix;
use super::{DataSpec, LengthDistribution, LengthSpec, Padding, Place};

/// The token behind the end of a sample.
pub const PADDING: u32 = 0;

/// How samples of varying length are drawn and padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    min: usize,
    max: usize,
    distribution: LengthDistribution,
    padding: Padding,
    /// Rows are filled up to a multiple of it.
    multiple: usize,
    seed: u64,
}

impl Lengths {
    /// The lengths of a specification; `None` where all are the same.
    pub fn of(spec: &DataSpec, seed: u64) -> Option<Self> {
        match spec.sequence_length {
            Some(LengthSpec::Range { min, max, distribution }) => {
                let (padding, multiple) = (spec.padding, spec.pad_to_multiple_of.unwrap_or(1).max(1));
                Some(Self { min: min.min(max), max, distribution, padding, multiple, seed: mix(seed, LENGTHS) })
            }
            Some(LengthSpec::Fixed(_)) | None => None,
        }
    }

    /// Every sample cut to one length: what a probe at that length trains on.
    pub fn all(length: usize) -> Self {
        let (distribution, padding) = (LengthDistribution::Uniform, Padding::Longest);
        Self { min: length, max: length, distribution, padding, multiple: 1, seed: 0 }
    }

    /// The longest that rows can be.
    pub(super) fn longest(&self) -> usize {
        self.max
    }

    /// The length of one sample.
    pub(super) fn of_sample(&self, place: Place) -> usize {
        let mut rng = StdRng::seed_from_u64(mix(mix(self.seed, place.epoch), place.index as u64));
        match self.distribution {
            LengthDistribution::Uniform => rng.random_range(self.min..=self.max),
        }
    }

    /// The length of the rows of a batch whose longest sample has `longest` tokens.
    pub(super) fn of_rows(&self, longest: usize) -> usize {
        match self.padding {
            // A model takes no more than the longest.
            Padding::Longest => longest.checked_next_multiple_of(self.multiple).unwrap_or(self.max).min(self.max),
            Padding::Maximum => self.max,
        }
    }
}

/// Keeps the lengths apart from everything else that the seed decides.
const LENGTHS: u64 = 0x6c65_6e67_7468_7321;

/// Which batches are as long as any can be, or have images as large as any can be. Means nothing where all samples have the
/// same size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Longest {
    /// Those that come out so by chance.
    #[default]
    ByChance,
    /// All: a probe, whose traces must be alike, and an evaluation pass, which is short.
    Always,
    /// One in so many, the first of them being batch `first`.
    Every {
        /// Counted from 0.
        first: u64,
        /// From one to the next.
        period: u64,
    },
}

impl Longest {
    /// Whether batch `number` is one.
    pub fn includes(self, number: u64) -> bool {
        match self {
            Self::ByChance => false,
            Self::Always => true,
            Self::Every { first, period } => {
                number.checked_sub(first).is_some_and(|after| after.checked_rem(period).unwrap_or(after) == 0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(min: usize, max: usize, padding: Padding) -> Lengths {
        let range = LengthSpec::Range { min, max, distribution: LengthDistribution::Uniform };
        Lengths::of(&DataSpec { sequence_length: Some(range), padding, ..DataSpec::default() }, 3).unwrap()
    }

    #[test]
    fn every_length_is_drawn_about_equally_often_and_depends_on_the_place_alone() {
        let lengths = lengths(3, 6, Padding::Longest);
        let mut counts = [0_u32; 7];
        for index in 0..4000 {
            let place = Place { index, epoch: 1 };
            counts[lengths.of_sample(place)] += 1;
            assert_eq!(lengths.of_sample(place), lengths.of_sample(place));
        }
        assert_eq!(counts[..3], [0, 0, 0]);
        assert!(counts[3..].iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        let of_epoch = |epoch| (0..50).map(|index| lengths.of_sample(Place { index, epoch })).collect::<Vec<_>>();
        assert_ne!(of_epoch(0), of_epoch(1));
    }

    #[test]
    fn rows_are_as_long_as_the_padding_says() {
        assert_eq!(lengths(3, 6, Padding::Longest).of_rows(4), 4);
        assert_eq!(lengths(3, 6, Padding::Maximum).of_rows(4), 6);
        let of_eight = Lengths { multiple: 8, ..lengths(3, 20, Padding::Longest) };
        let rows: Vec<usize> = [3, 8, 9, 16, 17, 20].map(|longest| of_eight.of_rows(longest)).into();
        assert_eq!(rows, [8, 8, 16, 16, 20, 20]);
    }

    #[test]
    fn fixed_lengths_are_none() {
        assert_eq!(Lengths::of(&DataSpec::default(), 0), None);
        let fixed = DataSpec { sequence_length: Some(LengthSpec::Fixed(4)), ..DataSpec::default() };
        assert_eq!(Lengths::of(&fixed, 0), None);
    }

    #[test]
    fn the_longest_batches_come_at_their_period() {
        let of = |longest: Longest| (0..12).filter(|number| longest.includes(*number)).collect::<Vec<u64>>();
        assert_eq!(of(Longest::ByChance), [0; 0]);
        assert_eq!(of(Longest::Always).len(), 12);
        assert_eq!(of(Longest::Every { first: 2, period: 4 }), [2, 6, 10]);
        assert_eq!(of(Longest::Every { first: 2, period: 0 }), [2]);
    }
}
