//! A request as large as the step's largest would succeed with room to spare.
//!
//! A pool can hold enough free bytes in pieces that are all too small. L, the largest single request that would
//! succeed at a sample point, tells that before a request fails.

use super::{Finding, Level, Rule, steady};
use crate::config::plan::SafetyPlan;
use crate::trial::TrialRecord;
use crate::units::Bytes;

/// Below this multiple of the largest request the rule warns.
const WARNING_FACTOR: f64 = 2.0;

/// L is at least a multiple of the step's largest request.
#[derive(Debug)]
pub struct LargestBlock;

impl Rule for LargestBlock {
    fn name(&self) -> &'static str {
        "largest_block"
    }

    fn check(&self, trial: &TrialRecord, safety: &SafetyPlan) -> Finding {
        let factor = |largest: u64, request: u64| largest as f64 / request as f64;
        let worst = steady(&trial.samples)
            .filter(|sample| sample.largest_request_bytes > 0)
            .map(|sample| (factor(sample.largest_satisfiable_bytes, sample.largest_request_bytes), sample))
            .min_by(|(a, _), (b, _)| a.total_cmp(b));
        let Some((found, sample)) = worst else {
            return Finding::none(Some(safety.largest_block_factor), "no sample after the warm-up saw a request");
        };
        let (level, judgement) = if found < safety.largest_block_factor {
            (Level::Failed, ", which is too little")
        } else if found < WARNING_FACTOR {
            (Level::Warning, ", which is close")
        } else {
            (Level::Passed, "")
        };
        let reason = format!(
            "the largest request that would succeed is {}{}, {found:.1} times the step's largest of {}{judgement}",
            Bytes(sample.largest_satisfiable_bytes),
            if sample.largest_satisfiable_estimated { " (estimated)" } else { "" },
            Bytes(sample.largest_request_bytes),
        );
        Finding { value: Some(found), limit: Some(safety.largest_block_factor), level, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{completed, point, safety, sample};
    use super::*;
    use crate::memory::MemorySample;
    use crate::units::MIB;

    #[test]
    fn free_memory_in_small_pieces_fails() {
        let pieces = MemorySample { largest_satisfiable_bytes: 50 * MIB, ..sample(6) };
        let finding = LargestBlock.check(&completed(point(8), vec![sample(4), pieces]), &safety());
        assert_eq!((finding.value, finding.level), (Some(1.25), Level::Failed));
    }

    #[test]
    fn twice_the_request_passes_one_and_a_half_times_warns_and_less_fails() {
        let level = |largest_satisfiable_bytes| {
            let sample = MemorySample { largest_satisfiable_bytes, ..sample(6) };
            LargestBlock.check(&completed(point(8), vec![sample]), &safety()).level
        };
        assert_eq!(level(80 * MIB), Level::Passed);
        assert_eq!(level(80 * MIB - 1), Level::Warning);
        assert_eq!(level(60 * MIB), Level::Warning);
        assert_eq!(level(60 * MIB - 1), Level::Failed);
        assert_eq!(level(0), Level::Failed);
    }

    #[test]
    fn samples_of_the_warm_up_or_without_a_request_say_nothing() {
        let small = |step| MemorySample { largest_satisfiable_bytes: 1, ..sample(step) };
        let idle = MemorySample { largest_request_bytes: 0, ..small(6) };
        for samples in [vec![], vec![small(2)], vec![idle]] {
            let finding = LargestBlock.check(&completed(point(8), samples), &safety());
            assert_eq!((finding.value, finding.level), (None, Level::Passed));
        }
    }
}
