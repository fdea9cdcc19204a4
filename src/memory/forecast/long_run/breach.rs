//! What a long run must not do.
//!
//! | breach | when |
//! |---|---|
//! | out of memory | a request did not fit |
//! | rate | the rate that gates is over its threshold in some step after the first ones |
//! | growth | V has no plateau and would meet C within the horizon |
//!
//! A rate gates as in the rule `fragmentation` of a search: `peak` is held against the highest need so far, and bytes under
//! 1 % of the limit do not count.
//!
//! Growth is judged as the rule `growth` does, from what a forecast knows better than a soak: all of the steps, without
//! noise. V has a plateau if it reached no new height in the last quarter of the run, and one more segment in it is chance: so
//! growth is a new height in the third quarter and another one in the last. Its pace is that of the second half, and the run
//! breaks if that pace meets C within [`Terms::horizon_steps`] of its end. Live bytes need no line of their own here: what
//! leaks shows in V within thousands of steps.

use serde::Serialize;

use super::{LongRunEnd, LongRunFigures};
use crate::memory::spec::FragmentationMetric;
use crate::units::{Bytes, Fraction};

/// Runs of fewer steps have no quarters that say anything.
const FEWEST_STEPS: u32 = 40;

/// What a run is held to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// The rate that gates.
    pub metric: FragmentationMetric,
    /// What it must not exceed.
    pub threshold: f64,
    /// How many steps beyond its end a run that grows is followed.
    pub horizon_steps: u32,
}

/// What a run did, or would do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "breach", rename_all = "snake_case")]
pub enum Breach {
    /// It ran out of memory.
    OutOfMemory(LongRunEnd),
    /// Its memory lay in pieces.
    Rate {
        /// The first step in which it did, counted from 0.
        step: u32,
        /// The rate there.
        rate: f64,
        /// What it must not exceed.
        threshold: f64,
    },
    /// Its memory never stopped growing.
    Growth {
        /// Where it would meet the limit, counted from 0.
        step: u32,
        /// By how much it grew.
        bytes_a_step: u64,
        /// Where it had got to.
        reserved_bytes: u64,
        /// C.
        limit_bytes: u64,
    },
}

impl Breach {
    /// The step that is to blame, counted from 0.
    pub fn step(&self) -> u32 {
        match self {
            Self::OutOfMemory(end) => end.step,
            Self::Rate { step, .. } | Self::Growth { step, .. } => *step,
        }
    }
}

impl std::fmt::Display for Breach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OutOfMemory(end) => write!(
                f,
                "out of memory at step {}: {} more with {} allocated and {} reserved",
                end.step,
                Bytes(end.requested_bytes),
                Bytes(end.allocated_bytes),
                Bytes(end.reserved_bytes)
            ),
            Self::Rate { step, rate, threshold } => write!(
                f,
                "{} of memory fragmented at step {step}, above the threshold of {}",
                Fraction(*rate),
                Fraction(*threshold)
            ),
            Self::Growth { step, bytes_a_step, reserved_bytes, limit_bytes } => write!(
                f,
                "reserved memory has no plateau: it grows by {} a step from {} and would reach the limit of {} at step {step}",
                Bytes(*bytes_a_step),
                Bytes(*reserved_bytes),
                Bytes(*limit_bytes)
            ),
        }
    }
}

/// The first thing that a run did against its terms, if any: what happened comes before what would.
pub fn judge(figures: &LongRunFigures, terms: &Terms) -> Option<Breach> {
    let above_threshold = || {
        let (step, rate) = figures.heights.first_above(terms.metric, terms.threshold)?;
        Some(Breach::Rate { step, rate, threshold: terms.threshold })
    };
    let ended = figures.out_of_memory.map(Breach::OutOfMemory);
    match (above_threshold(), ended) {
        (Some(rate), Some(ended)) if ended.step() <= rate.step() => Some(ended),
        (Some(rate), _) => Some(rate),
        (None, Some(ended)) => Some(ended),
        (None, None) => growth(figures, terms.horizon_steps),
    }
}

fn growth(figures: &LongRunFigures, horizon_steps: u32) -> Option<Breach> {
    let (steps, limit_bytes) = (figures.steps, figures.limit_bytes);
    if steps < FEWEST_STEPS {
        return None;
    }
    let height_before = |step: u32| {
        let before = figures.points.iter().take_while(|point| point.step < step);
        before.map(|point| point.peak_reserved_bytes).max().unwrap_or(0)
    };
    let half = steps / 2;
    let quarter = half + steps.div_ceil(4);
    let heights = [height_before(half), height_before(quarter), figures.peak_reserved_bytes];
    let [at_half, at_quarter, reserved_bytes] = heights;
    if at_half >= at_quarter || at_quarter >= reserved_bytes {
        return None;
    }
    let a_step = (reserved_bytes - at_half) as f64 / f64::from(steps - half);
    let left = limit_bytes.saturating_sub(reserved_bytes) as f64 / a_step;
    if left > f64::from(horizon_steps) {
        return None;
    }
    let step = steps.saturating_add(left.ceil() as u32);
    Some(Breach::Growth { step, bytes_a_step: a_step as u64, reserved_bytes, limit_bytes })
}
