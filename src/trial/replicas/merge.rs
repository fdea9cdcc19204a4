//! One record of a trial that several replicas ran: the worst of them decides.
//!
//! A run is as safe as its worst rank and as fast as its slowest. So peaks are the highest of all ranks, what is left the
//! least, and times those of the slowest rank; samples per second are those of all ranks together. Every safety rule
//! then reads what it reads of a single worker. Losses are means, as the gradients are. What ranks of one host take of
//! the host's memory adds up.

use std::collections::BTreeSet;

use crate::memory::fragmentation::against_need;
use crate::memory::{MemorySample, Rates};
use crate::trial::outcome::{Measurement, Outcome, StepTimes, TrialRecord};
use crate::trial::process::LostPeer;

/// What one rank has to tell of a trial.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) record: TrialRecord,
    /// The rank that it lost.
    pub(super) lost: Option<LostPeer>,
}

/// Who asked for the end of a trial, where it was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CancelledBy {
    /// The user or the budget.
    Driver,
    /// Nobody but the group itself, whose other ranks are ended once one is.
    Group,
}

/// The record of a trial from those of its ranks, in their order.
pub(super) fn merge(parts: Vec<Part>, cancelled: CancelledBy) -> Option<TrialRecord> {
    let (outcome, rank) = outcome(&parts, cancelled);
    let samples = samples(&parts);
    let measurements: Vec<&Measurement> = parts.iter().filter_map(|part| part.record.measurement.as_ref()).collect();
    let measurement = if measurements.len() == parts.len() { measurement(&measurements) } else { None };
    let mut known = BTreeSet::new();
    let mut warnings: Vec<String> = parts.iter().flat_map(|part| part.record.warnings.clone()).collect();
    warnings.retain(|warning| known.insert(warning.clone()));
    let first = parts.into_iter().next()?.record;
    let measurement = measurement.filter(|_| outcome == Outcome::Completed);
    Some(TrialRecord { outcome, rank, measurement, samples, warnings, ..first })
}

/// How bad an end is: what says most of why a trial ended comes last.
fn weight(outcome: &Outcome) -> u8 {
    match outcome {
        Outcome::Completed => 0,
        Outcome::Cancelled => 1,
        Outcome::Diverged { .. } => 2,
        Outcome::Failed { .. } => 3,
        Outcome::TimedOut { .. } | Outcome::NotStarted { .. } => 4,
        Outcome::ProtocolError { .. } => 5,
        Outcome::DeviceError { .. } => 6,
        Outcome::Crashed { .. } => 7,
        Outcome::HostOutOfMemory => 8,
        Outcome::OutOfMemory { .. } => 9,
    }
}

/// The worst rank's outcome and which that is. A rank that was ended because of another one has none of its own.
fn outcome(parts: &[Part], cancelled: CancelledBy) -> (Outcome, Option<usize>) {
    let mut worst = (0, &Outcome::Completed);
    for (rank, part) in parts.iter().enumerate() {
        if weight(&part.record.outcome) > weight(worst.1) {
            worst = (rank, &part.record.outcome);
        }
    }
    let (rank, outcome) = worst;
    let lost = || parts.iter().find_map(|part| part.lost);
    match outcome {
        Outcome::Completed => (Outcome::Completed, None),
        Outcome::Cancelled if cancelled == CancelledBy::Driver => (Outcome::Cancelled, None),
        Outcome::Cancelled => match lost() {
            Some(LostPeer { rank, seconds: Some(seconds) }) => (Outcome::TimedOut { seconds }, Some(rank)),
            lost => {
                let log = "the group of replicas ended without a reason".to_owned();
                (Outcome::Crashed { signal: None, status: None, log }, lost.map(|lost| lost.rank))
            }
        },
        // A hung rank stops all of them, and those that wait for it know which it is.
        Outcome::TimedOut { seconds } => {
            let alone =
                parts.iter().filter(|part| matches!(part.record.outcome, Outcome::TimedOut { .. })).count() == 1;
            let known = lost().filter(|lost| lost.seconds.is_some()).map(|lost| lost.rank);
            (Outcome::TimedOut { seconds: *seconds }, known.or(alone.then_some(rank)))
        }
        other => (other.clone(), Some(rank)),
    }
}

/// What all ranks measured.
fn measurement(of_ranks: &[&Measurement]) -> Option<Measurement> {
    let world = of_ranks.len() as f64;
    let by_speed = |a: &&&Measurement, b: &&&Measurement| a.samples_per_second.total_cmp(&b.samples_per_second);
    let slowest = *of_ranks.iter().min_by(by_speed)?;
    let highest = |figure: fn(&Measurement) -> u64| of_ranks.iter().map(|rank| figure(rank)).max().unwrap_or(0);
    let mean = |figure: fn(&Measurement) -> Option<f64>| {
        let sum = of_ranks.iter().map(|rank| figure(rank)).sum::<Option<f64>>()?;
        Some(sum / world)
    };
    let (low, high) = slowest.samples_per_second_interval;
    Some(Measurement {
        samples_per_second: slowest.samples_per_second * world,
        samples_per_second_interval: (low * world, high * world),
        data_wait_fraction: of_ranks.iter().map(|rank| rank.data_wait_fraction).fold(0.0, f64::max),
        peak_allocated_bytes: highest(|rank| rank.peak_allocated_bytes),
        peak_reserved_bytes: highest(|rank| rank.peak_reserved_bytes),
        largest_request_bytes: highest(|rank| rank.largest_request_bytes),
        first_loss: mean(|rank| rank.first_loss),
        last_loss: mean(|rank| rank.last_loss),
        evaluation_loss: mean(|rank| rank.evaluation_loss),
        checkpoint_bytes: of_ranks.iter().find_map(|rank| rank.checkpoint_bytes),
        batches_per_second: of_ranks.iter().filter_map(|rank| rank.batches_per_second).min_by(f64::total_cmp),
        batch_bytes: of_ranks.iter().map(|rank| rank.batch_bytes).sum(),
        has_batch_norm: of_ranks.iter().any(|rank| rank.has_batch_norm),
        ..slowest.clone()
    })
}

/// The samples that all ranks took, as many as every rank has.
fn samples(parts: &[Part]) -> Vec<MemorySample> {
    let of_ranks: Vec<Vec<MemorySample>> = parts.iter().map(|part| judged(&part.record.samples)).collect();
    let count = of_ranks.iter().map(Vec::len).filter(|count| *count > 0).max().unwrap_or(0);
    (0..count)
        .filter_map(|index| sample(&of_ranks.iter().filter_map(|samples| samples.get(index)).collect::<Vec<_>>()))
        .collect()
}

/// A rank's samples, with what it held against its own [highest need](against_need) up to then, and that need: the batches
/// of another rank may be longer or shorter, so that the need of one says nothing of what another one holds.
fn judged(samples: &[MemorySample]) -> Vec<MemorySample> {
    let against_need = against_need(samples).scan(0, |need, sample| {
        *need = sample.peak_allocated_bytes.max(*need);
        Some(MemorySample { peak_allocated_bytes: *need, ..sample })
    });
    against_need.collect()
}

/// One moment on all ranks.
pub(super) fn sample(of_ranks: &[&MemorySample]) -> Option<MemorySample> {
    let first = **of_ranks.first()?;
    let highest = |figure: fn(&MemorySample) -> u64| of_ranks.iter().map(|sample| figure(sample)).max().unwrap_or(0);
    let lowest = |figure: fn(&MemorySample) -> u64| of_ranks.iter().map(|sample| figure(sample)).min().unwrap_or(0);
    Some(MemorySample {
        step: of_ranks.iter().map(|sample| sample.step).max().unwrap_or(first.step),
        allocated_bytes: highest(|sample| sample.allocated_bytes),
        reserved_bytes: highest(|sample| sample.reserved_bytes),
        limit_bytes: lowest(|sample| sample.limit_bytes),
        peak_allocated_bytes: highest(|sample| sample.peak_allocated_bytes),
        peak_reserved_bytes: highest(|sample| sample.peak_reserved_bytes),
        largest_satisfiable_bytes: lowest(|sample| sample.largest_satisfiable_bytes),
        largest_satisfiable_estimated: of_ranks.iter().any(|sample| sample.largest_satisfiable_estimated),
        largest_request_bytes: highest(|sample| sample.largest_request_bytes),
        unreleasable_bytes: highest(|sample| sample.unreleasable_bytes),
        allocated_blocks: highest(|sample| sample.allocated_blocks),
        rates: rates(of_ranks.iter().map(|sample| sample.rates)).unwrap_or_default(),
        shadow: rates(of_ranks.iter().filter_map(|sample| sample.shadow)),
        host_bytes: of_ranks.iter().map(|sample| sample.host_bytes).sum(),
        host_available_bytes: of_ranks.iter().filter_map(|sample| sample.host_available_bytes).min(),
    })
}

/// The highest of each rate.
fn rates(of_ranks: impl Iterator<Item = Rates>) -> Option<Rates> {
    let higher = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (one, other) => one.or(other),
    };
    of_ranks.reduce(|a, b| Rates {
        peak: higher(a.peak, b.peak),
        external: higher(a.external, b.external),
        reserved: higher(a.reserved, b.reserved),
    })
}

/// The times of a step on all ranks: those of the slowest.
pub(super) fn times(of_ranks: &[StepTimes]) -> StepTimes {
    of_ranks.iter().copied().max_by(|a, b| a.total_ms.total_cmp(&b.total_ms)).unwrap_or_default()
}
