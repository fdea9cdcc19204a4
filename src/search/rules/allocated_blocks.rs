//! Few enough allocations live between two steps.
//!
//! Each live allocation is a wall between free blocks, and each is walked over when a pool is searched, sampled or
//! snapshot. Thousands of them between two steps, where only parameters, their optimizer state and staged batches should
//! live, are usually many small parameters that could be one, or tensors that somebody keeps by mistake. That costs time
//! and room but breaks nothing: what it does to the memory the other rules measure, so this one only warns.

use super::{Finding, Level, Rule, steady};
use crate::config::plan::SafetyPlan;
use crate::trial::TrialRecord;

/// Above this number of live allocations the rule warns. A bound of experience: a GPT-2 medium with its AdamW state has
/// some nine hundred.
const MANY_BLOCKS: u64 = 5_000;

/// At most a few thousand allocations live at a sample point.
#[derive(Debug)]
pub struct AllocatedBlocks;

impl Rule for AllocatedBlocks {
    fn name(&self) -> &'static str {
        "allocated_blocks"
    }

    fn check(&self, trial: &TrialRecord, _safety: &SafetyPlan) -> Finding {
        let limit = Some(MANY_BLOCKS as f64);
        let most = steady(&trial.samples).map(|sample| (sample.allocated_blocks, sample.step));
        // Of equal counts the earliest step.
        let Some((blocks, step)) = most.max_by_key(|(blocks, step)| (*blocks, std::cmp::Reverse(*step))) else {
            return Finding::none(limit, "no memory was sampled after the warm-up");
        };
        let (level, hint) = if blocks > MANY_BLOCKS {
            (Level::Warning, ", which costs time at every request (hint: fuse small parameters, and keep no tensors)")
        } else {
            (Level::Passed, "")
        };
        let reason = format!("{blocks} allocations at most were live between steps, at step {step}{hint}");
        Finding { value: Some(blocks as f64), limit, level, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{completed, point, safety, sample};
    use super::*;
    use crate::memory::MemorySample;

    fn with_blocks(step: u32, allocated_blocks: u64) -> MemorySample {
        MemorySample { allocated_blocks, ..sample(step) }
    }

    fn found(samples: Vec<MemorySample>) -> Finding {
        AllocatedBlocks.check(&completed(point(8), samples), &safety())
    }

    #[test]
    fn five_thousand_pass_and_one_more_warns() {
        assert_eq!(found(vec![with_blocks(4, 5_000)]).level, Level::Passed);
        let finding = found(vec![with_blocks(4, 10), with_blocks(6, 5_001), with_blocks(8, 5_001)]);
        assert_eq!((finding.value, finding.limit), (Some(5_001.0), Some(5_000.0)));
        assert_eq!(finding.level, Level::Warning);
        assert!(finding.reason.starts_with("5001 allocations at most were live between steps, at step 6, which"));
    }

    #[test]
    fn even_the_highest_count_never_fails() {
        assert_eq!(found(vec![with_blocks(4, u64::MAX)]).level, Level::Warning);
    }

    #[test]
    fn the_warm_up_and_an_empty_series_say_nothing() {
        assert_eq!(found(vec![]).value, None);
        assert_eq!(found(vec![with_blocks(2, 9_000)]).value, None);
    }
}
