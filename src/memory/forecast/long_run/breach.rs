//! What a long run must not do.
//!
//! | breach | when |
//! |---|---|
//! | out of memory | a request did not fit |
//! | rate | the rate that gates is over its threshold in some step after the first ones |
//! | growth | V has no plateau and would meet C within the horizon |
//!
//! A rate gates as in the rule `fragmentation` of a search: bytes under 1 % of the limit do not count, and `peak` is held
//! against the highest need. A soak knows that of the steps so far, a forecast that of the whole run.
//!
//! Growth is judged as the rule `growth` does, from what a forecast knows better than a soak: all of the steps, without
//! noise. V has a plateau if it reached no new height in the last quarter of the run, and one more segment in it is chance: so
//! growth is a new height in the third quarter and another one in the last. Its pace is that of the second half, and the run
//! breaks if that pace meets C within [`Terms::horizon_steps`] of its end. Live bytes need no line of their own here: what
//! leaks shows in V within thousands of steps.

use serde::{Deserialize, Serialize};

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
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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

#[cfg(test)]
mod tests {
    use super::super::LongRunPoint;
    use super::*;
    use crate::memory::policy::PoolState;
    use crate::units::{GIB, MIB};

    const TERMS: Terms = Terms { metric: FragmentationMetric::Peak, threshold: 0.3, horizon_steps: 10_000 };

    /// A run under 1 GiB that needs 100 MiB in all steps and holds what is said.
    fn run(steps: u32, reserved_bytes: impl Fn(u32) -> u64) -> LongRunFigures {
        let mut figures = LongRunFigures { steps, limit_bytes: GIB, ..LongRunFigures::default() };
        for step in 0..steps {
            let state = PoolState {
                peak_allocated_bytes: 100 * MIB,
                peak_reserved_bytes: reserved_bytes(step),
                limit_bytes: GIB,
                ..PoolState::default()
            };
            let point = LongRunPoint::of(step, &state);
            figures.heights.take(&point, GIB);
            figures.peak_reserved_bytes = figures.peak_reserved_bytes.max(point.peak_reserved_bytes);
            figures.points.push(point);
        }
        figures
    }

    const LOOSE: Terms = Terms { threshold: 1.0, ..TERMS };

    #[test]
    fn a_rate_above_the_threshold_names_its_first_step() {
        // 100 of 143 MiB is 30.07 %, 100 of 142 is 29.6 %.
        let breach = judge(&run(200, |step| if step < 120 { 142 * MIB } else { 143 * MIB }), &TERMS).unwrap();
        assert_eq!(breach.step(), 120);
        assert_eq!(breach.to_string(), "30.07% of memory fragmented at step 120, above the threshold of 30%");
        assert_eq!(judge(&run(200, |_| 142 * MIB), &TERMS), None);
    }

    #[test]
    fn what_happened_first_is_the_breach() {
        let end = |step| LongRunEnd { step, requested_bytes: MIB, allocated_bytes: GIB, reserved_bytes: GIB };
        let mut figures = run(100, |step| if step < 50 { 100 * MIB } else { 200 * MIB });
        figures.out_of_memory = Some(end(100));
        assert!(matches!(judge(&figures, &TERMS), Some(Breach::Rate { step: 50, .. })));
        figures.out_of_memory = Some(end(50));
        let breach = judge(&figures, &TERMS).unwrap();
        assert_eq!(
            breach.to_string(),
            "out of memory at step 50: 1.0 MiB more with 1.0 GiB allocated and 1.0 GiB reserved"
        );
    }

    #[test]
    fn growth_without_a_plateau_names_the_step_at_which_it_meets_the_limit() {
        let leak = run(400, |step| 200 * MIB + u64::from(step) * MIB);
        let breach = judge(&leak, &LOOSE).unwrap();
        // 599 MiB after 400 steps, and 1 MiB a step from there: 425 steps more.
        assert_eq!(breach.step(), 825);
        assert!(
            breach.to_string().starts_with("reserved memory has no plateau: it grows by 1.0 MiB a step"),
            "{breach}"
        );
        assert_eq!(judge(&leak, &Terms { horizon_steps: 400, ..LOOSE }), None);
        let unlimited = LongRunFigures { limit_bytes: u64::MAX, ..leak };
        assert_eq!(judge(&unlimited, &LOOSE), None);
    }

    #[test]
    fn a_plateau_or_one_more_segment_is_no_growth() {
        let cases: [&dyn Fn(u32) -> u64; 3] = [
            &|step| 200 * MIB + u64::from(step.min(299)) * MIB,
            &|step| if step < 350 { 200 * MIB } else { 220 * MIB },
            &|step| 600 * MIB - u64::from(step) * MIB,
        ];
        for (number, reserved_bytes) in cases.into_iter().enumerate() {
            assert_eq!(judge(&run(400, reserved_bytes), &LOOSE), None, "{number}");
        }
        assert_eq!(judge(&run(39, |step| u64::from(step + 1) * MIB), &LOOSE), None, "too short to tell");
        assert_eq!(judge(&LongRunFigures::default(), &TERMS), None);
    }
}
