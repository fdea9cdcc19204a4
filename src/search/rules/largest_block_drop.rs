//! The largest request that would succeed does not shrink as the trial goes on.
//!
//! Between two steps the same tensors live, so L should be the same each time. Where it falls, blocks that stay have
//! come to lie in the middle of free ones: the pool is being cut up, and a request that fits now may not later, however
//! much is free. The rate `peak` cannot see it, as the bytes are in use at the peak all the same.
//!
//! Only samples of the same kind are compared: those at the same place within an update, since gradients live between
//! the steps of one and not between two updates, and those whose L was found in the same way. What comes before the
//! first update is left out, as an optimizer may make its state there.

use std::collections::BTreeMap;

use super::{Finding, Level, Rule, steady};
use crate::config::plan::SafetyPlan;
use crate::trial::TrialRecord;
use crate::units::{Bytes, Fraction};

/// The largest share of its first value that L may lose.
const ALLOWED_DROP: f64 = 0.3;

/// L stays near its first value.
#[derive(Debug)]
pub struct LargestBlockDrop;

impl Rule for LargestBlockDrop {
    fn name(&self) -> &'static str {
        "largest_block_drop"
    }

    fn check(&self, trial: &TrialRecord, _safety: &SafetyPlan) -> Finding {
        let Some(Drop { share, first_bytes, lowest_bytes, step }) = deepest(trial) else {
            return Finding::none(Some(ALLOWED_DROP), "no two samples after the warm-up can be compared");
        };
        let level = if share > ALLOWED_DROP { Level::Failed } else { Level::Passed };
        let reason = if lowest_bytes == first_bytes {
            format!("the largest request that would succeed never fell below {}", Bytes(first_bytes))
        } else {
            format!(
                "the largest request that would succeed fell by {}, from {} to {} at step {step}; {} are allowed",
                Fraction(share),
                Bytes(first_bytes),
                Bytes(lowest_bytes),
                Fraction(ALLOWED_DROP)
            )
        };
        Finding { value: Some(share), limit: Some(ALLOWED_DROP), level, reason }
    }
}

/// How far L fell.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Drop {
    share: f64,
    first_bytes: u64,
    lowest_bytes: u64,
    step: u32,
}

/// The deepest drop of any sample against the first of its kind; of equal ones the earliest.
fn deepest(trial: &TrialRecord) -> Option<Drop> {
    let accumulation = u32::try_from(trial.spec.accumulation()).unwrap_or(u32::MAX).max(1);
    let mut first_of_kind = BTreeMap::new();
    let mut deepest: Option<Drop> = None;
    for sample in steady(&trial.samples).filter(|sample| sample.step >= accumulation) {
        let kind = (sample.step % accumulation, sample.largest_satisfiable_estimated);
        let largest_bytes = sample.largest_satisfiable_bytes;
        let Some(first_bytes) = first_of_kind.get(&kind).copied() else {
            first_of_kind.insert(kind, largest_bytes);
            continue;
        };
        let lowest_bytes = largest_bytes.min(first_bytes);
        let share = if first_bytes == 0 { 0.0 } else { (first_bytes - lowest_bytes) as f64 / first_bytes as f64 };
        if deepest.is_none_or(|deepest| share > deepest.share) {
            deepest = Some(Drop { share, first_bytes, lowest_bytes, step: sample.step });
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::super::testing::{completed, point, safety, sample, soak};
    use super::*;
    use crate::memory::MemorySample;
    use crate::trial::Point;
    use crate::units::MIB;

    fn with_largest(step: u32, mebibytes: u64) -> MemorySample {
        MemorySample { largest_satisfiable_bytes: mebibytes * MIB, ..sample(step) }
    }

    fn found(samples: Vec<MemorySample>) -> Finding {
        LargestBlockDrop.check(&soak(samples), &safety())
    }

    #[test]
    fn exactly_30_percent_passes_and_a_byte_more_fails() {
        let at = found(vec![with_largest(4, 800), with_largest(6, 560)]);
        assert_eq!((at.value, at.level), (Some(0.3), Level::Passed));
        let lower = MemorySample { largest_satisfiable_bytes: 560 * MIB - 1, ..sample(6) };
        assert_eq!(found(vec![with_largest(4, 800), lower]).level, Level::Failed);
    }

    #[test]
    fn the_lowest_sample_counts_even_if_it_recovers() {
        let finding = found(vec![with_largest(4, 800), with_largest(6, 400), with_largest(8, 800)]);
        assert_eq!((finding.value, finding.level), (Some(0.5), Level::Failed));
        assert_eq!(
            finding.reason,
            "the largest request that would succeed fell by 50%, from 800.0 MiB to 400.0 MiB at step 6; 30% are allowed"
        );
    }

    #[test]
    fn growth_is_no_drop_and_the_warm_up_does_not_count() {
        let finding = found(vec![with_largest(2, 990), with_largest(4, 500), with_largest(6, 700)]);
        assert_eq!((finding.value, finding.level), (Some(0.0), Level::Passed));
        assert_eq!(finding.reason, "the largest request that would succeed never fell below 500.0 MiB");
    }

    #[test]
    fn gradients_between_the_steps_of_an_update_are_no_drop() {
        let accumulating = Point { accumulation_steps: 4, ..point(8) };
        let at = |step: u32, largest| with_largest(step, largest);
        // After steps 6 and 10 two of four micro-batches are done and gradients live.
        let healthy = vec![at(4, 800), at(6, 400), at(8, 800), at(10, 400), at(12, 800)];
        let mut trial = soak(healthy);
        trial.spec.point = accumulating.clone();
        assert_eq!(LargestBlockDrop.check(&trial, &safety()).level, Level::Passed);
        let mut cut_up = soak(vec![at(4, 800), at(6, 400), at(8, 800), at(10, 200), at(12, 800)]);
        cut_up.spec.point = accumulating;
        assert_eq!(LargestBlockDrop.check(&cut_up, &safety()).value, Some(0.5));
    }

    #[test]
    fn an_estimate_is_not_held_against_a_probe() {
        let estimated = MemorySample { largest_satisfiable_estimated: true, ..with_largest(4, 900) };
        assert_eq!(found(vec![estimated, with_largest(6, 500)]).value, None);
    }

    #[test]
    fn an_empty_series_one_sample_and_a_first_l_of_0_pass() {
        for samples in [vec![], vec![with_largest(4, 800)]] {
            let finding = LargestBlockDrop.check(&completed(point(8), samples), &safety());
            assert_eq!((finding.value, finding.level), (None, Level::Passed));
        }
        assert_eq!(found(vec![with_largest(4, 0), with_largest(6, 0)]).level, Level::Passed);
    }
}
