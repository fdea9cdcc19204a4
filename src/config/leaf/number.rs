//! Numbers with bounds.

use std::fmt;

use serde::Serialize;

use super::{Leaf, deserialize_leaf, leaf_schema};

/// The largest count of samples or steps that is taken seriously: sums and products of a few stay far from overflow.
pub const MANY: u64 = 1_000_000;

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Whole<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Whole<MIN, MAX> {
    /// The number, moved into the bounds.
    pub fn clamped(number: u64) -> Self {
        Self(number.max(MIN).min(MAX))
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The number as a count.
    pub fn count(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// The number as a count of steps.
    pub fn steps(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }
}

impl<const MIN: u64, const MAX: u64> Leaf for Whole<MIN, MAX> {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let example = 8.clamp(MIN, MAX.max(MIN));
        if MAX == u64::MAX {
            write!(f, "a whole number from {MIN}, such as `{example}`")
        } else {
            write!(f, "a whole number from {MIN} to {MAX}, such as `{example}`")
        }
    }

    fn from_whole(number: u64) -> Option<Self> {
        (MIN..=MAX).contains(&number).then_some(Self(number))
    }
}

/// A step size of an optimizer: a positive number up to 100.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct LearningRate(pub f64);

impl Leaf for LearningRate {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a positive number up to 100, such as `0.0003` or `3e-4`")
    }

    fn from_whole(number: u64) -> Option<Self> {
        Self::from_real(number as f64)
    }

    fn from_real(number: f64) -> Option<Self> {
        (number > 0.0 && number <= 100.0).then_some(Self(number))
    }
}

/// The share of its last step that an optimizer keeps: a number from 0 to below 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Momentum(pub f64);

impl Leaf for Momentum {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number from 0 to below 1, such as `0.9`")
    }

    fn from_whole(number: u64) -> Option<Self> {
        Self::from_real(number as f64)
    }

    fn from_real(number: f64) -> Option<Self> {
        (0.0..1.0).contains(&number).then_some(Self(number))
    }
}

/// A multiple: a number from 0 to 100.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Factor(pub f64);

impl Leaf for Factor {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number from 0 to 100, such as `1.5`")
    }

    fn from_whole(number: u64) -> Option<Self> {
        Self::from_real(number as f64)
    }

    fn from_real(number: f64) -> Option<Self> {
        (0.0..=100.0).contains(&number).then_some(Self(number))
    }
}

/// The version of the configuration format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Version(pub u32);

impl Version {
    /// The one that this program reads.
    pub const CURRENT: Self = Self(1);
}

impl Leaf for Version {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`, the only version that this tune reads", Self::CURRENT.0)
    }

    fn from_whole(number: u64) -> Option<Self> {
        (number == u64::from(Self::CURRENT.0)).then_some(Self::CURRENT)
    }
}

deserialize_leaf! {
    [const MIN: u64, const MAX: u64] Whole<MIN, MAX>;
    [] LearningRate;
    [] Momentum;
    [] Factor;
    [] Version;
}

leaf_schema! {
    [const MIN: u64, const MAX: u64] Whole<MIN, MAX> => { "type": "integer", "minimum": MIN, "maximum": MAX };
    [] LearningRate => { "type": "number", "exclusiveMinimum": 0, "maximum": 100 };
    [] Momentum => { "type": "number", "minimum": 0, "exclusiveMaximum": 1 };
    [] Factor => { "type": "number", "minimum": 0, "maximum": 100 };
    [] Version => { "type": "integer", "const": 1 };
}
