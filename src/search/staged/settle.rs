//! Stage 4: whether a pair is safe, with the remedies that come before a smaller batch.
//!
//! Settings of PyTorch's allocator cost a step nothing. So where a program has one, those are looked for first under which the
//! size does what it does not under its own. It is trials that show the need, where no forecast at one shape does: lengths
//! that vary leave holes that no later step fills.
//!
//! A high fragmentation rate with memory to spare is not about capacity. What is in flight beside the step holds blocks
//! between those of the step: batches staged on the device, and on the host side those prefetched. Less of that costs
//! little; handing the cache back after every update costs a synchronisation; a smaller batch costs the most.

use super::{FULL_SIZE_TRIALS, PERIPHERY_TRIALS, Safe, Staged, TRIALS_BEFORE_SOAK, View};
use crate::memory::Trim;
use crate::memory::forecast::Method;
use crate::search::rules::Rule;
use crate::search::rules::fragmentation::FragmentationRate;
use crate::search::rules::headroom::Headroom;
use crate::search::rules::largest_block::LargestBlock;
use crate::search::rules::largest_block_drop::LargestBlockDrop;
use crate::search::{Ask, JudgedTrial};
use crate::trial::{Point, Purpose, TrialRecord};

/// How a pair stands.
pub(super) enum Settled<'a> {
    /// This point of it is safe.
    Safe(Safe<'a>),
    /// None is; the trial of its first point says why.
    Broken(&'a JudgedTrial),
    /// A trial tells.
    Needs(Ask),
}

impl Staged {
    /// How a point stands, its remedies included.
    pub(super) fn settle<'a>(&self, view: View<'a>, point: Point, purpose: Purpose) -> Settled<'a> {
        let Some(first) = view.history.measured(&point) else {
            return Settled::Needs(Ask::Run { point, purpose });
        };
        if first.is_safe() {
            return Settled::Safe((point, first));
        }
        if is_short_of_memory(first) {
            match self.under_found_settings(view, &point) {
                Ok(Some(found)) => return Settled::Safe(found),
                Ok(None) => {}
                Err(ask) => return Settled::Needs(ask),
            }
        }
        if !only_fragments(first) || !self.space.meets_target(&point) {
            return Settled::Broken(first);
        }
        for remedy in self.remedies(&point) {
            match view.history.measured(&remedy) {
                Some(trial) if trial.is_safe() => return Settled::Safe((remedy, trial)),
                Some(_) => {}
                None if self.has_room(view) => {
                    return Settled::Needs(Ask::Run { point: remedy, purpose: Purpose::Remedy });
                }
                None => break,
            }
        }
        Settled::Broken(first)
    }

    /// What to try for a point that fragments, each with what the one before has.
    fn remedies(&self, point: &Point) -> Vec<Point> {
        let mut remedies = Vec::new();
        let mut current = point.clone();
        let mut push = |changed: Point| {
            if changed != current {
                remedies.push(changed.clone());
                current = changed;
            }
        };
        let least_staged = self.space.device_prefetches().iter().copied().min().unwrap_or(0);
        let unstaged = Point { device_prefetch: point.device_prefetch.min(least_staged), ..point.clone() };
        push(unstaged.clone());
        let least_depth = self.space.prefetch_depths().iter().copied().min().unwrap_or(0);
        let shallow = Point { prefetch_depth: point.prefetch_depth.min(least_depth), ..unstaged };
        push(shallow.clone());
        if point.trim == Trim::Never {
            push(Point { trim: Trim::AfterUpdate, ..shallow });
        }
        remedies
    }

    /// Whether a trial may be spent on something better than what there is. What it takes to look at another mode than the
    /// first, its probes and a trial, is not held against the rest.
    pub(super) fn has_room(&self, view: View<'_>) -> bool {
        let is_of_another_mode =
            |record: &TrialRecord| Some(&record.spec.point.gradient_checkpointing) != self.space.modes().first();
        let others =
            || view.history.trials().iter().map(|trial| &trial.record).filter(|record| is_of_another_mode(record));
        let other_probes = others().filter(|record| is_probe_of_sizes(record)).count();
        let other_sizes = others().filter(|record| is_of_full_size(record)).count().min(1);
        let count = |counts: fn(&TrialRecord) -> bool| {
            view.history.trials().iter().filter(|trial| counts(&trial.record)).count()
        };
        let is_exact =
            self.space.modes().iter().any(|mode| view.knowledge.method(self.probed_kind(*mode)) == Some(Method::Exact));
        if is_exact {
            let before = count(|record| {
                let spec = &record.spec;
                !spec.is_soak() && !spec.is_throughput() && !spec.is_shape_probe()
            });
            before < TRIALS_BEFORE_SOAK + other_probes + other_sizes
                && count(is_of_full_size) < FULL_SIZE_TRIALS + other_sizes
        } else {
            count(|record| matches!(record.spec.purpose, Purpose::Loader | Purpose::Remedy)) < PERIPHERY_TRIALS
        }
    }
}

fn is_probe_of_sizes(record: &TrialRecord) -> bool {
    record.spec.is_probe() && !record.spec.is_shape_probe()
}

fn is_of_full_size(record: &TrialRecord) -> bool {
    record.spec.is_measuring() && record.spec.purpose != Purpose::Smallest
}

/// Whether a trial ran to its end and broke the rule on fragmentation alone.
fn only_fragments(trial: &JudgedTrial) -> bool {
    breaks_none_but(trial, &[FragmentationRate.name()])
}

/// Whether a trial would be safe if less memory were reserved for what it needs.
pub(super) fn is_short_of_memory(trial: &JudgedTrial) -> bool {
    let of_reserved = [FragmentationRate.name(), Headroom.name(), LargestBlock.name(), LargestBlockDrop.name()];
    trial.record.outcome.is_memory() || breaks_none_but(trial, &of_reserved)
}

/// Whether a trial ran to its end and broke rules, and none but these.
fn breaks_none_but(trial: &JudgedTrial, rules: &[&str]) -> bool {
    let mut broken = trial.verdict.checks.iter().filter(|check| !check.passed).peekable();
    trial.record.completed() && broken.peek().is_some() && broken.all(|check| rules.contains(&check.rule.as_str()))
}
