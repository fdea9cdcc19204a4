//! What the loader's stage knows when real steps have verified some of its points, and what those promise of others.

use std::collections::BTreeMap;

use super::climb::{self, Climb};
use super::{DATA_WAIT_ALLOWED, Safe};
use crate::search::JudgedTrial;
use crate::search::recommend::{EQUAL_SPEED, compute_rate};
use crate::trial::Point;

/// Workers that add more than this share to a step's time take it from the step.
const CONTENTION: f64 = 0.05;
/// A trial for a step that does not wait must promise so much more speed.
const WORTHWHILE: f64 = 0.03;

/// What the stage has found so far.
pub(super) struct Search<'a> {
    /// The point that batch sizes were measured with, and its trial.
    pub(super) first: Safe<'a>,
    /// Workers that may be had, ascending.
    pub(super) workers: Vec<usize>,
    /// Points that real steps verified; the first is [`first`](Self::first).
    pub(super) verified: Vec<Safe<'a>>,
    /// Points that broke a rule.
    pub(super) broken: Vec<Point>,
    /// The rates of the loader alone.
    pub(super) climb: Climb,
}

impl Search<'_> {
    /// Whether nothing was verified beside the point that the stage began with.
    pub(super) fn is_fresh(&self) -> bool {
        self.verified.len() == 1 && self.broken.is_empty()
    }

    pub(super) fn knows(&self, point: &Point) -> bool {
        self.broken.contains(point) || self.verified.iter().any(|(verified, _)| verified == point)
    }

    /// Whether the last change of the number of workers made nothing faster. The first one tells only what workers take
    /// from a step that had none or few.
    pub(super) fn is_past_the_top(&self) -> bool {
        let [_, .., (before, slower), (last, trial)] = self.verified.as_slice() else { return false };
        last.loader_workers != before.loader_workers && rate(trial) <= rate(slower) * (1.0 + EQUAL_SPEED)
    }

    /// The fewest workers that promise more than the fastest so far has, by their rates alone and by what the workers of
    /// the last trial took from its step: each of them takes the same.
    pub(super) fn promising(&self) -> Option<usize> {
        let (last, trial) = self.verified.last()?;
        let known = self.known_rates();
        let taken = self.taken_by_each(last, trial);
        let promise =
            |workers: usize| climb::estimate(&known, workers).min(self.climb.demand) / (1.0 + taken * workers as f64);
        let is_new = |workers: &usize| *workers > 0 && !self.has_seen(*workers);
        let candidates: Vec<(usize, f64)> =
            self.workers.iter().copied().filter(is_new).map(|workers| (workers, promise(workers))).collect();
        let most = candidates.iter().map(|(_, promise)| *promise).fold(0.0, f64::max);
        let fastest = self.verified.iter().map(|(_, trial)| self.batches(rate(trial))).fold(0.0, f64::max);
        let worthwhile = if data_wait(trial) > DATA_WAIT_ALLOWED { EQUAL_SPEED } else { WORTHWHILE };
        if most <= fastest * (1.0 + worthwhile) {
            return None;
        }
        candidates
            .into_iter()
            .find(|(_, promise)| *promise >= most * (1.0 - DATA_WAIT_ALLOWED))
            .map(|(workers, _)| workers)
    }

    /// Batches a second by the number of workers: of the loader alone, and of loaders that kept a step waiting.
    fn known_rates(&self) -> BTreeMap<usize, f64> {
        let mut known = self.climb.rates.clone();
        for (point, trial) in self.verified.iter().filter(|(_, trial)| data_wait(trial) > DATA_WAIT_ALLOWED) {
            let taken = 1.0 + self.taken_by_each(point, trial) * point.loader_workers as f64;
            known.entry(point.loader_workers).or_insert(self.batches(rate(trial)) * taken);
        }
        known.remove(&0);
        let (workers, rate) = self.climb.behind;
        known.entry(workers).or_insert(rate);
        known
    }

    /// What each worker of a trial adds to the time of its step, as a share of it; 0 where that may be noise.
    fn taken_by_each(&self, point: &Point, trial: &JudgedTrial) -> f64 {
        let now = self.batches(compute_rate(trial).unwrap_or(0.0));
        let added = if now > 0.0 { self.climb.demand / now - 1.0 } else { 0.0 };
        if added > CONTENTION { added / point.loader_workers.max(1) as f64 } else { 0.0 }
    }

    fn batches(&self, samples: f64) -> f64 {
        let (first, _) = &self.first;
        samples / first.batch_size.max(1) as f64
    }

    fn has_seen(&self, workers: usize) -> bool {
        self.verified.iter().map(|(point, _)| point).chain(&self.broken).any(|point| point.loader_workers == workers)
    }

    /// The next fewer workers than a point has that nobody has seen with a step.
    pub(super) fn fewer_workers(&self, point: &Point) -> Option<usize> {
        let fewer = self.workers.iter().copied().rev().filter(|workers| *workers < point.loader_workers);
        fewer.into_iter().find(|workers| *workers > 0 && !self.has_seen(*workers))
    }
}

impl<'a> Search<'a> {
    /// The fewest workers, and then the smallest prefetch, that are as fast as any; of those the ones that do not wait,
    /// where there are some.
    pub(super) fn best(self) -> Safe<'a> {
        let fastest = self.verified.iter().map(|(_, trial)| rate(trial)).fold(0.0, f64::max);
        let is_as_fast = |(_, trial): &Safe<'_>| rate(trial) >= fastest * (1.0 - DATA_WAIT_ALLOWED);
        let order = |(point, trial): &Safe<'_>| {
            (data_wait(trial) > DATA_WAIT_ALLOWED, point.loader_workers, point.prefetch_depth)
        };
        self.verified.into_iter().filter(is_as_fast).min_by_key(order).unwrap_or(self.first)
    }
}

fn rate(trial: &JudgedTrial) -> f64 {
    trial.samples_per_second().unwrap_or(0.0)
}

pub(super) fn data_wait(trial: &JudgedTrial) -> f64 {
    trial.record.measurement.as_ref().map_or(0.0, |measurement| measurement.data_wait_fraction)
}
