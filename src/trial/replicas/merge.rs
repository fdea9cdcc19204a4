//! One record of a trial that several replicas ran: the [worst](worst_rank) of them decides.

use std::collections::BTreeSet;

use crate::memory::MemorySample;
use crate::memory::fragmentation::against_need;
use crate::trial::launcher::WorkerFacts;
use crate::trial::outcome::{Measurement, Outcome, StepTimes, TrialRecord};
use crate::trial::process::{LostPeer, Peers};
use crate::trial::worst_rank;

/// What one rank has to tell of a trial.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) record: TrialRecord,
    /// What it said of the others.
    pub(super) peers: Peers,
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
    let measurement =
        if measurements.len() == parts.len() { worst_rank::measurement(&measurements, parts.len()) } else { None };
    let ranks: Vec<WorkerFacts> = parts.iter().filter_map(|part| part.record.worker.clone()).collect();
    let ranks = if ranks.len() == parts.len() { ranks } else { Vec::new() };
    let mut known = BTreeSet::new();
    let mut warnings: Vec<String> = parts.iter().flat_map(|part| part.record.warnings.clone()).collect();
    warnings.retain(|warning| known.insert(warning.clone()));
    let first = parts.into_iter().next()?.record;
    let measurement = measurement.filter(|_| outcome == Outcome::Completed);
    Some(TrialRecord { outcome, rank, measurement, samples, warnings, ranks, ..first })
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
    let (rank, outcome) = worst(parts);
    match outcome {
        Outcome::Completed => (Outcome::Completed, None),
        Outcome::Cancelled if cancelled == CancelledBy::Driver => (Outcome::Cancelled, None),
        Outcome::Cancelled => match lost(parts) {
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
            let known = lost(parts).filter(|lost| lost.seconds.is_some()).map(|lost| lost.rank);
            (Outcome::TimedOut { seconds: *seconds }, known.or_else(|| behind(parts)).or(alone.then_some(rank)))
        }
        other => (other.clone(), Some(rank)),
    }
}

/// The worst end; of equal ones the first.
fn worst(parts: &[Part]) -> (usize, &Outcome) {
    // The last of equal ones is the greatest, so they are walked from their end.
    let worst = parts.iter().map(own).enumerate().rev().max_by_key(|(_, outcome)| weight(outcome));
    worst.unwrap_or((0, &Outcome::Completed))
}

/// How a rank ended by itself. One that had lost another did not begin it, whatever became of it then, unless it ran out of
/// memory.
fn own(part: &Part) -> &Outcome {
    match &part.record.outcome {
        outcome @ (Outcome::Completed | Outcome::OutOfMemory { .. }) => outcome,
        _ if part.peers.lost.is_some() => &Outcome::Cancelled,
        outcome => outcome,
    }
}

/// The rank that has not come to the exchange that all others wait in, where it is one alone.
fn behind(parts: &[Part]) -> Option<usize> {
    let entered = || parts.iter().map(|part| part.peers.entered);
    let (least, most) = (entered().min()?, entered().max()?);
    let is_alone = least < most && entered().filter(|entered| *entered == least).count() == 1;
    entered().position(|entered| entered == least).filter(|_| is_alone)
}

/// The rank that was lost: one that lost nobody itself rather than one that passed on the news, and one that was waited
/// for rather than one that then left.
fn lost(parts: &[Part]) -> Option<LostPeer> {
    let has_lost = |rank: usize| parts.get(rank).is_some_and(|part| part.peers.lost.is_some());
    let lost = parts.iter().rev().filter_map(|part| part.peers.lost);
    lost.max_by_key(|lost| (!has_lost(lost.rank), lost.seconds.is_some()))
}

/// The samples that all ranks took, as many as every rank has.
fn samples(parts: &[Part]) -> Vec<MemorySample> {
    let of_ranks: Vec<Vec<MemorySample>> = parts.iter().map(|part| judged(&part.record.samples)).collect();
    let count = of_ranks.iter().map(Vec::len).filter(|count| *count > 0).max().unwrap_or(0);
    (0..count)
        .filter_map(|index| {
            worst_rank::sample(&of_ranks.iter().filter_map(|samples| samples.get(index)).collect::<Vec<_>>())
        })
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

/// The times of a step on all ranks: those of the slowest.
pub(super) fn times(of_ranks: &[StepTimes]) -> StepTimes {
    of_ranks.iter().copied().max_by(|a, b| a.total_ms.total_cmp(&b.total_ms)).unwrap_or_default()
}
