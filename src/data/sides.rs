//! Images of varying side: all images of a batch have one, and every so many batches it is drawn anew.
//!
//! This is multi-scale training as YOLOv2 has it ("YOLO9000: Better, Faster, Stronger", Redmon and Farhadi, 2017, section
//! 2): every ten batches another multiple of 32, by which its net divides the sides of an image. A net that ends in a mean
//! over its last image takes any of them.
//!
//! The side of a batch depends on the seed and the batch's number alone. So all replicas have the same one in the same
//! step, whichever samples are theirs, and a forecast knows the sides of a run before it starts.
//!
//! A dataset is opened at the largest side, at which evaluation passes are; the batches that
//! [`Longest`](super::lengths::Longest) puts in have it too.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::order::mix;
use super::{DataSpec, ImageSizeSpec};

/// How the sides of images are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sides {
    multiple: usize,
    /// In multiples.
    smallest: usize,
    /// In multiples, more than the smallest.
    largest: usize,
    /// Batches from one draw to the next.
    every: u64,
    seed: u64,
}

impl Sides {
    /// The sides of a specification; `None` where all are the same.
    pub fn of(spec: &DataSpec, seed: u64) -> Option<Self> {
        let Some(ImageSizeSpec::Range { min, max, multiple_of, every }) = spec.image_size else { return None };
        let multiple = multiple_of.max(1);
        let (smallest, largest) = (min.div_ceil(multiple).max(1), max / multiple);
        let every = u64::from(every).max(1);
        (smallest < largest).then_some(Self { multiple, smallest, largest, every, seed: mix(seed, SIDES) })
    }

    /// All images of one side: what a probe at that side trains on.
    pub fn all(side: usize) -> Self {
        Self { multiple: side, smallest: 1, largest: 1, every: 1, seed: 0 }
    }

    /// What all sides are multiples of.
    pub fn multiple(&self) -> usize {
        self.multiple
    }

    /// The largest side that can be.
    pub fn largest(&self) -> usize {
        self.multiple * self.largest
    }

    /// The side of the images of batch `number`, counted from 0.
    pub fn of_batch(&self, number: u64) -> usize {
        let mut rng = StdRng::seed_from_u64(mix(self.seed, number / self.every));
        self.multiple * rng.random_range(self.smallest..=self.largest)
    }
}

/// Keeps the sides apart from everything else that the seed decides.
const SIDES: u64 = 0x7369_6465_7321_2121;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spec(min: usize, max: usize, multiple_of: usize, every: u32) -> DataSpec {
        DataSpec { image_size: Some(ImageSizeSpec::Range { min, max, multiple_of, every }), ..DataSpec::default() }
    }

    proptest! {
        #[test]
        fn a_side_is_a_multiple_between_the_bounds_and_changes_after_so_many_batches_alone(
            multiple in 1_usize..64, least in 1_usize..10, more in 1_usize..10, every in 1_u32..20, seed: u64,
            number in 0_u64..1 << 40,
        ) {
            let (min, max) = (multiple * least, multiple * (least + more));
            let sides = Sides::of(&spec(min, max, multiple, every), seed).unwrap();
            let side = sides.of_batch(number);
            prop_assert!((min..=max).contains(&side) && side.is_multiple_of(multiple), "{side}");
            prop_assert_eq!(sides.largest(), max);
            let first = number - number % u64::from(every);
            prop_assert!((first..first + u64::from(every)).all(|other| sides.of_batch(other) == side));
            // Nothing else decides it.
            prop_assert_eq!(Sides::of(&spec(min, max, multiple, every), seed).unwrap().of_batch(number), side);
        }
    }

    #[test]
    fn every_side_is_drawn_about_equally_often_and_each_seed_has_its_own_order() {
        let drawn = |seed| {
            let sides = Sides::of(&spec(64, 160, 32, 10), seed).unwrap();
            (0..4000).map(|draw| sides.of_batch(10 * draw)).collect::<Vec<_>>()
        };
        for side in [64, 96, 128, 160] {
            let count = drawn(5).into_iter().filter(|other| *other == side).count();
            assert!((850..1150).contains(&count), "{side}: {count}");
        }
        assert_ne!(drawn(5), drawn(6));
    }

    #[test]
    fn bounds_that_are_no_multiples_are_moved_inwards_and_one_multiple_alone_is_no_variation() {
        let sides = Sides::of(&spec(150, 310, 32, 1), 1).unwrap();
        let drawn: std::collections::BTreeSet<usize> = (0..200).map(|number| sides.of_batch(number)).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [160, 192, 224, 256, 288]);
        for none in [spec(64, 64, 32, 1), spec(50, 80, 32, 1), spec(33, 63, 32, 1), DataSpec::default()] {
            assert_eq!(Sides::of(&none, 1), None);
        }
        let all = Sides::all(96);
        assert!(all.largest() == 96 && (0..50).all(|number| all.of_batch(number) == 96));
    }
}
