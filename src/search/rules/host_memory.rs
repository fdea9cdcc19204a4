//! The worker leaves the host room: prefetched batches must not get it killed.
//!
//! Batches that wait in the loader, page-locked buffers and the workers' own copies of a data set lie in host memory,
//! and grow with micro-batch × workers × prefetch depth. A host that runs out ends the process without a word
//! (Lightning#11295, horovod#4296), and tuners that look at the machine's memory instead of the control group's walk
//! into it. So at every sample point the rule asks how much of what this process can have it has:
//!
//! ```text
//! share = held / (held + available)
//! ```
//!
//! *Held* is what the kernel could not drop of the worker's resident memory; *available* is the least that any control
//! group on the way to the root and the machine itself have left ([`crate::device::facts`]). What other processes hold
//! is in neither, so the sum is what the worker could grow to before something is killed.
//!
//! On the CPU tensors are host memory too. Between steps only those that stay are counted; the step's peak is bounded by
//! the limit C, which is refused where the host could not carry it.

use super::{Finding, Level, Rule};
use crate::config::plan::SafetyPlan;
use crate::memory::MemorySample;
use crate::trial::TrialRecord;
use crate::units::{Bytes, Fraction};

/// The largest share of the memory that the worker can have.
const ALLOWED_SHARE: f64 = 0.8;

/// The worker holds at most four fifths of the host memory that it can have.
#[derive(Debug)]
pub struct HostMemoryShare;

impl Rule for HostMemoryShare {
    fn name(&self) -> &'static str {
        "host_memory"
    }

    fn check(&self, trial: &TrialRecord, _safety: &SafetyPlan) -> Finding {
        // The kernel kills in the warm-up as well, so every sample counts.
        let highest = trial.samples.iter().filter_map(Use::at).max_by(|a, b| a.share.total_cmp(&b.share));
        let Some(Use { share, held_bytes, available_bytes, step }) = highest else {
            return Finding::none(Some(ALLOWED_SHARE), "the host's memory is not known");
        };
        let (level, hint) = if share > ALLOWED_SHARE {
            (Level::Failed, " (hint: fewer `loader_workers`, or a lower `prefetch_depth`)")
        } else {
            (Level::Passed, "")
        };
        let reason = format!(
            "the worker held {} of host memory at step {step} with {} left, {} of what it can have; {} are allowed{hint}",
            Bytes(held_bytes),
            Bytes(available_bytes),
            Fraction(share),
            Fraction(ALLOWED_SHARE)
        );
        Finding { value: Some(share), limit: Some(ALLOWED_SHARE), level, reason }
    }
}

/// The host's memory at a sample point.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Use {
    share: f64,
    held_bytes: u64,
    available_bytes: u64,
    step: u32,
}

impl Use {
    fn at(sample: &MemorySample) -> Option<Self> {
        let (held_bytes, available_bytes) = (sample.host_bytes?, sample.host_available_bytes?);
        let reachable = held_bytes as f64 + available_bytes as f64;
        let share = (reachable > 0.0).then(|| held_bytes as f64 / reachable)?;
        Some(Self { share, held_bytes, available_bytes, step: sample.step })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{completed, point, safety, sample};
    use super::*;
    use crate::units::GIB;

    fn with_host(step: u32, held_bytes: u64, available_bytes: u64) -> MemorySample {
        MemorySample { host_bytes: Some(held_bytes), host_available_bytes: Some(available_bytes), ..sample(step) }
    }

    fn found(samples: Vec<MemorySample>) -> Finding {
        HostMemoryShare.check(&completed(point(8), samples), &safety())
    }

    #[test]
    fn exactly_80_percent_passes_and_a_byte_more_fails() {
        let at = found(vec![with_host(4, 8 * GIB, 2 * GIB)]);
        assert_eq!((at.value, at.level), (Some(0.8), Level::Passed));
        assert_eq!(found(vec![with_host(4, 8 * GIB + 8, 2 * GIB)]).level, Level::Failed);
    }

    #[test]
    fn the_tightest_sample_counts_even_in_the_warm_up() {
        let finding = found(vec![with_host(1, 9 * GIB, GIB), with_host(4, GIB, 9 * GIB)]);
        assert_eq!((finding.value, finding.level), (Some(0.9), Level::Failed));
        assert_eq!(
            finding.reason,
            "the worker held 9.0 GiB of host memory at step 1 with 1.0 GiB left, 90% of what it can have; 80% are allowed \
             (hint: fewer `loader_workers`, or a lower `prefetch_depth`)"
        );
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_no_breach() {
        let half = MemorySample { host_available_bytes: None, ..sample(4) };
        let other_half = MemorySample { host_bytes: None, ..sample(4) };
        for samples in [vec![], vec![half], vec![other_half], vec![with_host(4, 0, 0)]] {
            let finding = found(samples);
            assert_eq!((finding.value, finding.level), (None, Level::Passed));
        }
        assert_eq!(found(vec![with_host(4, u64::MAX, u64::MAX)]).value, Some(0.5));
    }
}
