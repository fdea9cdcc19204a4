//! The samples of a run, by their extents on each axis.

use std::fmt;

use serde::Serialize;

use crate::memory::forecast::shape::{Axes, LENGTH, MAX_AXES, SIDE, Shape};

/// The most axes that a sample has: those of a shape without the batch.
pub const MAX_EXTENTS: usize = MAX_AXES - 1;

/// How far a sample, or the rows of a batch, go on each axis but the batch. Axes that are not there have 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extents([u64; MAX_EXTENTS]);

impl Extents {
    /// 1 on every axis.
    pub const ONE: Self = Self([1; MAX_EXTENTS]);

    /// Of these values, in the order of the axes; each is at least 1, and those beyond the last axis are left out.
    pub fn of(values: &[u64]) -> Self {
        let mut extents = Self::ONE;
        for (place, value) in extents.0.iter_mut().zip(values) {
            *place = (*value).max(1);
        }
        extents
    }

    /// The values.
    pub fn values(&self) -> &[u64; MAX_EXTENTS] {
        &self.0
    }
}

/// What the samples of a run are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// The one axis is a length.
    #[default]
    Tokens,
    /// The axes are the sides of an image.
    Pixels,
    /// Anything else.
    Positions,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tokens => "tokens",
            Self::Pixels => "pixels",
            Self::Positions => "positions",
        })
    }
}

/// The axes of samples, and what counts along them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    axes: usize,
    /// Whether an axis is both sides of a square.
    squared: [bool; MAX_EXTENTS],
    unit: Unit,
    /// Whether each batch has a value of its own on an axis, rather than each sample.
    per_batch: [bool; MAX_EXTENTS],
}

impl Layout {
    /// Tokens along one length.
    pub const LENGTH: Self =
        Self { axes: 1, squared: [false; MAX_EXTENTS], unit: Unit::Tokens, per_batch: [false; MAX_EXTENTS] };

    /// The layout of these axes, of which some have a value for each batch. A `side` is both sides of a square, so its
    /// pixels are its square.
    pub fn of(axes: &Axes, is_per_batch: impl Fn(&str) -> bool) -> Self {
        let mut layout = Self { axes: axes.count() - 1, ..Self::LENGTH };
        let names: Vec<&str> = axes.names().skip(1).collect();
        for ((name, squared), per_batch) in names.iter().zip(&mut layout.squared).zip(&mut layout.per_batch) {
            *squared = *name == SIDE;
            *per_batch = is_per_batch(name);
        }
        layout.unit = match names.as_slice() {
            [] | [LENGTH] => Unit::Tokens,
            [SIDE] | ["height", "width"] | ["width", "height"] => Unit::Pixels,
            _ => Unit::Positions,
        };
        layout
    }

    /// What positions are called.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// How many axes there are.
    pub fn axes(&self) -> usize {
        self.axes
    }

    /// The positions within these extents, which stand in the order of the axes.
    pub fn positions(&self, extents: &[u64]) -> u64 {
        extents.iter().zip(self.squared).fold(1, |product: u64, (extent, squared)| {
            let product = product.saturating_mul(*extent);
            if squared { product.saturating_mul(*extent) } else { product }
        })
    }

    /// Whether a sample differs from others of its batch on any axis.
    pub fn varies_by_sample(&self) -> bool {
        self.per_batch.iter().take(self.axes).any(|per_batch| !per_batch)
    }

    /// The shape of so many samples of these extents.
    pub fn shape(&self, samples: u64, extents: &Extents) -> Shape {
        let [one, two, three] = extents.0;
        match self.axes {
            0 => Shape::of([samples]),
            1 => Shape::of([samples, one]),
            2 => Shape::of([samples, one, two]),
            _ => Shape::of([samples, one, two, three]),
        }
    }
}

impl Default for Layout {
    fn default() -> Self {
        Self::LENGTH
    }
}

/// The samples of a run, in the order in which it takes them.
pub trait Samples: Sync {
    /// The extents of a sample; samples are counted from 0 and never end.
    fn extents(&self, sample: u64) -> Extents;

    /// What all samples of a batch have at least, on the axes that are chosen for each batch. Batches are counted from 0.
    fn extents_of_batch(&self, _batch: u64) -> Extents {
        Extents::ONE
    }

    /// The largest that a sample can be on each axis.
    fn largest(&self) -> Extents;

    /// The axes.
    fn layout(&self) -> Layout {
        Layout::LENGTH
    }
}

/// Samples that have a length and nothing else.
pub trait Lengths: Sync {
    /// The tokens of a sample, at least 1; samples are counted from 0 and never end.
    fn of(&self, sample: u64) -> u64;

    /// The longest that a sample can be.
    fn longest(&self) -> u64;
}

impl<L: Lengths> Samples for L {
    fn extents(&self, sample: u64) -> Extents {
        Extents::of(&[self.of(sample)])
    }

    fn largest(&self) -> Extents {
        Extents::of(&[self.longest()])
    }
}

/// Lengths one after another, again and again.
impl Lengths for Vec<u64> {
    fn of(&self, sample: u64) -> u64 {
        let place = sample.checked_rem(self.len() as u64).unwrap_or(0);
        self.get(place as usize).copied().unwrap_or(1).max(1)
    }

    fn longest(&self) -> u64 {
        self.iter().copied().max().unwrap_or(1).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(names: &[&'static str]) -> Layout {
        Layout::of(&Axes::of(names.iter().copied()).unwrap(), |name| name == "side")
    }

    #[test]
    fn a_side_counts_as_its_square_and_two_sides_as_their_product() {
        let (side, image) = (layout(&["batch", "side"]), layout(&["batch", "height", "width"]));
        assert_eq!((side.positions(&[32]), side.unit()), (1024, Unit::Pixels));
        assert_eq!((image.positions(&[32, 48]), image.unit()), (1536, Unit::Pixels));
        assert_eq!((side.varies_by_sample(), image.varies_by_sample()), (false, true));
        let video = layout(&["batch", "frames", "side"]);
        assert_eq!((video.positions(&[8, 32]), video.unit()), (8192, Unit::Positions));
        assert!(video.varies_by_sample(), "in its frames");
        assert_eq!(layout(&["batch", "length"]), Layout::LENGTH);
        assert_eq!(image.positions(&[u64::MAX, 2]), u64::MAX);
        assert_eq!(image.shape(8, &Extents::of(&[32, 48])), Shape::of([8, 32, 48]));
    }
}
