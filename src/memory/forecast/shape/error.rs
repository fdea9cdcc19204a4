//! Why probes at a handful of shapes do not make a forecast.

use std::fmt;

use super::{Axes, NamedMonomial, NamedShape, Shape};
use crate::memory::forecast::align::Difference;
use crate::units::plural;

/// Why there is no forecast.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Too few shapes.
    #[error(
        "{found} probes at different shapes, and {needed} are needed (hint: vary every axis, the batch from 2 on; the axes \
         are {axes})"
    )]
    TooFewProbes {
        /// Those there are.
        found: usize,
        /// Those it takes.
        needed: usize,
        /// What is to vary.
        axes: Axes,
    },
    /// A shape that has other axes.
    #[error("a probe has the shape `{shape}`, and the axes are {axes}")]
    OtherAxes {
        /// The shape.
        shape: Shape,
        /// The axes.
        axes: Axes,
    },
    /// An axis that does not vary.
    #[error(
        "all probes have `{axis} {value}`, which does not tell how sizes follow it (hint: vary it, or leave it out)"
    )]
    Constant {
        /// The name of the axis.
        axis: String,
        /// Its one value.
        value: u64,
    },
    /// The probes did other things.
    #[error(transparent)]
    Misaligned(Box<Misalignment>),
    /// There is nothing in them.
    #[error("the probes recorded no allocation")]
    NothingRecorded,
    /// Sizes that follow no polynomial, and are large.
    #[error("{count} allocations with {percent} % of all bytes follow no polynomial of the shape{told}")]
    Misfits {
        /// How many.
        count: usize,
        /// Their share.
        percent: Percent,
        /// What the probes could have told.
        told: Told,
    },
    /// Large sizes that follow several.
    #[error(
        "{count} allocations with {percent} % of all bytes follow more than one polynomial of the shape: the probes do not \
         tell `{one}` from `{other}` (hint: vary {} more, and each apart from the others)",
        axes.join(" and ")
    )]
    Ambiguous {
        /// How many.
        count: usize,
        /// Their share.
        percent: Percent,
        /// What the first of them may follow.
        one: NamedMonomial,
        /// And may follow as well.
        other: NamedMonomial,
        /// The names of the axes in which these differ.
        axes: Vec<String>,
    },
}

/// Two probes that did other things.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the probes at `{}` and `{}` {}", shapes[0], shapes[1], difference.place())]
pub struct Misalignment {
    /// Their shapes.
    pub shapes: [NamedShape; 2],
    /// Where and how they differ.
    pub difference: Difference,
}

/// How large a polynomial so many probes can determine and confirm. It is said where larger ones were not looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The probes.
    pub(super) probes: usize,
    /// Terms of the largest polynomial that they tell.
    pub(super) terms: usize,
    /// Terms of the largest that is looked for at all.
    pub(super) sought: usize,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { probes, terms, sought } = *self;
        if terms >= sought {
            return Ok(());
        }
        let (terms, enough) = (plural(terms, "term"), 2 * sought);
        write!(f, " with up to {terms}, which is all that {probes} probes tell (hint: {enough} probes tell {sought})")
    }
}

/// A share for a message, in tenths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percent(u32);

impl Percent {
    pub(super) fn of(part: u128, whole: u128) -> Self {
        Self(if whole == 0 { 0 } else { (part as f64 / whole as f64 * 1000.0).round() as u32 })
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{}", self.0 / 10, self.0 % 10))
    }
}
