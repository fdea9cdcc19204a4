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
//! group on the way to the root, the machine itself and `ulimit -v` have left ([`crate::device::facts`]). What other processes hold
//! is in neither, so the sum is what the worker could grow to before something is killed.
//!
//! Before more is kept ready than was when a point was measured, the same limit is held against what that would take
//! ([`LoaderMemory`]), so that no trial is run to find out:
//!
//! ```text
//! loader = batch bytes × (workers × prefetch depth + 1 + pinned)      pinned = device prefetch + 2, or 0 unpinned
//! ```
//!
//! On the CPU tensors are host memory too. Between steps only those that stay are counted; the step's peak is bounded by
//! the limit C, which is refused where the host could not carry it.

use super::{Finding, Level, Rule};
use crate::config::plan::SafetyPlan;
use crate::memory::MemorySample;
use crate::trial::{Point, TrialRecord};
use crate::units::{Bytes, Fraction, plural};

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

/// What the loader of a point takes of the host's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoaderMemory {
    batch_bytes: u64,
    /// Batches that are ready or being made.
    ready: [usize; 2],
    /// Page-locked batches.
    pinned: usize,
    available_bytes: u64,
}

impl LoaderMemory {
    /// The loader of `point`, by what a trial of the same batch size saw: what a batch takes, and how much the host had
    /// left. `None` where that trial did not see it.
    pub fn of(point: &Point, seen: &TrialRecord) -> Option<Self> {
        Some(Self {
            batch_bytes: seen.measurement.as_ref()?.batch_bytes?,
            ready: [point.loader_workers, point.prefetch_depth],
            pinned: point.pinned_batches(),
            available_bytes: seen.samples.iter().filter_map(|sample| sample.host_available_bytes).min()?,
        })
    }

    /// Bytes that the loader takes.
    pub fn bytes(&self) -> u64 {
        let [workers, depth] = self.ready;
        let batches = workers.saturating_mul(depth).saturating_add(1).saturating_add(self.pinned);
        self.batch_bytes.saturating_mul(batches as u64)
    }

    /// Why it is too much; `None` where it is not.
    pub fn breach(&self) -> Option<String> {
        let Self { batch_bytes, ready: [workers, depth], pinned, available_bytes } = *self;
        let needed_bytes = self.bytes();
        let ring = if pinned > 0 { format!(" + {pinned} pinned") } else { String::new() };
        (needed_bytes as f64 > ALLOWED_SHARE * available_bytes as f64).then(|| {
            format!(
                "the loader would hold {}: {} a batch × ({} × {depth} + 1{ring}), over {} of the {} that the host has left \
                 (hint: fewer `loader_workers`, or a lower `prefetch_depth`)",
                Bytes(needed_bytes),
                Bytes(batch_bytes),
                plural(workers, "worker"),
                Fraction(ALLOWED_SHARE),
                Bytes(available_bytes),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{completed, point, safety, sample};
    use super::*;
    use crate::trial::Measurement;
    use crate::units::{GIB, MIB};

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

    /// A trial with batches of 100 MiB that left this much, at its tightest.
    fn seen(available_bytes: u64) -> TrialRecord {
        let record = completed(point(8), vec![with_host(2, GIB, 90 * GIB), with_host(4, GIB, available_bytes)]);
        let measurement = record.measurement.map(|found| Measurement { batch_bytes: Some(100 * MIB), ..found });
        TrialRecord { measurement, ..record }
    }

    #[test]
    fn a_loader_may_hold_80_percent_of_what_is_left_and_not_a_byte_more() {
        // 4 × 2 + 1 batches, and a ring of two staged ones, the one that is copied and the next: 1300 MiB.
        let mut point =
            Point { loader_workers: 4, prefetch_depth: 2, device_prefetch: 2, pin_memory: true, ..point(8) };
        let breach = |point: &Point, left| LoaderMemory::of(point, &seen(left)).unwrap().breach();
        assert_eq!(breach(&point, 1625 * MIB), None);
        assert_eq!(
            breach(&point, 1625 * MIB - 8).unwrap(),
            "the loader would hold 1.3 GiB: 100.0 MiB a batch × (4 workers × 2 + 1 + 4 pinned), over 80% of the 1.6 GiB \
             that the host has left (hint: fewer `loader_workers`, or a lower `prefetch_depth`)"
        );
        point.pin_memory = false;
        assert_eq!(breach(&point, 1125 * MIB), None);
        assert!(breach(&point, 1125 * MIB - 8).unwrap().contains("(4 workers × 2 + 1), over"));
        point.loader_workers = usize::MAX;
        assert!(breach(&point, u64::MAX / 2).is_some(), "no number of workers makes it overflow");
    }

    #[test]
    fn a_trial_that_did_not_see_its_batches_or_the_host_says_nothing_of_the_loader() {
        let unweighed = completed(point(8), vec![with_host(2, GIB, GIB)]);
        let unseen = MemorySample { host_available_bytes: None, ..sample(2) };
        let unseen = TrialRecord { samples: vec![unseen], ..seen(GIB) };
        let unfinished = TrialRecord { measurement: None, ..seen(GIB) };
        for record in [unweighed, unseen, unfinished] {
            assert_eq!(LoaderMemory::of(&point(8), &record), None);
        }
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
