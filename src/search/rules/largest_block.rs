//! A request as large as the step's largest would succeed with room to spare.
//!
//! A pool can hold enough free bytes in pieces that are all too small. L, the largest single request that would
//! succeed at a sample point, tells that before a request fails.

use super::{Finding, Rule, steady};
use crate::config::plan::SafetyPlan;
use crate::trial::TrialRecord;
use crate::units::Bytes;

/// Below this multiple of the largest request the reason warns.
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
            let reason = "no sample after the warm-up saw a request".to_owned();
            return Finding { value: None, limit: Some(safety.largest_block_factor), passed: true, reason };
        };
        let passed = found >= safety.largest_block_factor;
        let close = if passed && found < WARNING_FACTOR { ", which is close" } else { "" };
        let reason = format!(
            "the largest request that would succeed is {}{}, {found:.1} times the step's largest of {}{close}",
            Bytes(sample.largest_satisfiable_bytes),
            if sample.largest_satisfiable_estimated { " (estimated)" } else { "" },
            Bytes(sample.largest_request_bytes),
        );
        Finding { value: Some(found), limit: Some(safety.largest_block_factor), passed, reason }
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
        assert!(!finding.passed);
        assert_eq!(finding.value, Some(1.25));
    }

    #[test]
    fn twice_the_request_passes_without_a_word() {
        let roomy = MemorySample { largest_satisfiable_bytes: 80 * MIB, ..sample(6) };
        let finding = LargestBlock.check(&completed(point(8), vec![roomy]), &safety());
        assert!(finding.passed);
        assert!(!finding.reason.contains("close"));
    }
}
