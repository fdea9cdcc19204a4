//! What a long run must not do.
//!
//! | breach | when |
//! |---|---|
//! | out of memory | a request did not fit |
//! | rate | the rate that gates is over its threshold in some step after the first ones |
//! | growth | what is live between steps, or V, grows to the end of the run: it has no plateau, or would meet C within the horizon |
//!
//! A rate gates as in the rule `fragmentation` of a search: bytes under 1 % of the limit (64 MiB without
//! one) do not count, and `peak` is held
//! against the highest need. A soak knows that of the steps so far, a forecast that of the whole run.
//!
//! Growth is judged as the rule `growth` of a search does, by V and by what is live, from what a forecast knows better than a
//! soak: all of the steps, without noise. What counts as growth, and what is a longest batch that came late, the module
//! [`growth`](super::growth) says. V has a [plateau](has_plateau) if it reached no new height in the last quarter of the run.

use serde::{Deserialize, Serialize};

use super::growth::growth;
use super::{LongRunEnd, LongRunFigures};
use crate::memory::spec::FragmentationMetric;
use crate::units::{Bytes, Fraction};

/// What a run is held to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// The rate that gates.
    pub metric: FragmentationMetric,
    /// What it must not exceed.
    pub threshold: f64,
    /// How many steps beyond its end V that grows is followed to the limit.
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
        /// Where it would meet the limit, counted from 0; its last step where there is none.
        step: u32,
        /// What grows.
        what: Growing,
        /// By how much.
        bytes_a_step: u64,
        /// The last step of the run, in which it was still growing.
        last_step: u32,
        /// V by then.
        reserved_bytes: u64,
        /// C.
        limit_bytes: Option<u64>,
    },
}

/// What grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Growing {
    /// A between steps: something is allocated and never freed.
    Live,
    /// V, for other reasons.
    Reserved,
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
            Self::Growth { step, what, bytes_a_step, last_step, reserved_bytes, limit_bytes } => {
                let what = match what {
                    Growing::Live => "live memory",
                    Growing::Reserved => "reserved memory",
                };
                let (a_step, reserved) = (Bytes(*bytes_a_step), Bytes(*reserved_bytes));
                write!(f, "{what} has no plateau: it grows by {a_step} a step to the end, ")?;
                match limit_bytes {
                    Some(limit_bytes) => write!(
                        f,
                        "with {reserved} reserved at step {last_step}, and would reach the limit of {} at step {step}",
                        Bytes(*limit_bytes)
                    ),
                    None => write!(f, "with {reserved} reserved at step {last_step}"),
                }
            }
        }
    }
}

/// Whether V had stopped growing when the run ended: no new height in its last quarter.
pub fn has_plateau(steps: u32, last_growth_step: u32) -> bool {
    last_growth_step < steps - steps / 4
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

    #[test]
    fn a_rate_above_the_threshold_names_its_first_step() {
        // 100 of 143 MiB is 30.07 %, 100 of 142 is 29.6 %.
        let breach = judge(&run(200, |step| if step < 120 { 142 * MIB } else { 143 * MIB }), &TERMS).unwrap();
        assert_eq!(breach.step(), 120);
        assert_eq!(breach.to_string(), "30.07% of memory fragmented at step 120, above the threshold of 30%");
        assert_eq!(judge(&run(200, |_| 142 * MIB), &TERMS), None);
        assert_eq!(judge(&LongRunFigures::default(), &TERMS), None);
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
    fn without_a_limit_64_mib_do_not_gate() {
        let unlimited = |scale: u64| {
            let mut figures = LongRunFigures { steps: 40, limit_bytes: u64::MAX, ..LongRunFigures::default() };
            for step in 0..40 {
                let (peak_allocated_bytes, peak_reserved_bytes) = (scale * MIB, 2 * scale * MIB);
                let state = PoolState { peak_allocated_bytes, peak_reserved_bytes, ..PoolState::default() };
                figures.heights.take(&LongRunPoint::of(step, &state), u64::MAX);
            }
            judge(&figures, &TERMS)
        };
        assert_eq!((unlimited(2), unlimited(63)), (None, None));
        assert!(matches!(unlimited(64), Some(Breach::Rate { .. })));
    }
}
