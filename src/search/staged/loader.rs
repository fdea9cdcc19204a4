//! Stage 5: the data path of the best pair.
//!
//! A trial of the batch stage tells what the step takes if it never waits: its demand. Where the fewest workers keep it
//! waiting, the loader is run alone with more of them ([`climb`]), which takes seconds and no memory of the device, and
//! the fewest that make enough are verified by real steps with the smallest prefetch. Steps that share processors with
//! the workers may still wait. A little waiting is unevenness, which a deeper prefetch evens out; a lot is a loader that
//! is too slow beside a step, which takes more workers; and a step that they slow may be better off with fewer. Of all that were verified the fewest workers win, and then the
//! smallest prefetch, that are as fast as any.
//!
//! A program of the user's own has a loader of its own. There each real trial tells how many workers would have kept up:
//! with `k` workers that are behind, a batch takes a worker `k` steps' time, of which the part without waiting is what the
//! step needs. The next trial has that many, not one more.
//!
//! # Bounds
//! More workers than processors that this process may run on, and batches that would fill the host's memory
//! ([`LoaderMemory`]), are left out unseen. At most [`LOADER_TRIALS`] are run, [`THROUGHPUT_TRIALS`] of them of the loader
//! alone. Where no trial with real steps is left, the soak verifies what the rates say.

use std::collections::BTreeMap;

use super::{DATA_WAIT_ALLOWED, Safe, Staged, View};
use crate::search::recommend::{EQUAL_SPEED, compute_rate};
use crate::search::rules::host_memory::LoaderMemory;
use crate::search::{Ask, JudgedTrial};
use crate::trial::{Point, Purpose, TrialSpec};
use crate::units::plural;
use climb::{Climb, Next};

mod climb;
#[cfg(test)]
mod tests;

/// Trials that the loader may take, alone and with real steps.
pub const LOADER_TRIALS: usize = 5;
/// ... of which so many may be of the loader alone.
pub const THROUGHPUT_TRIALS: usize = 3;
/// Waiting up to this share of the time may be unevenness.
const UNEVENNESS: f64 = 0.1;
/// Workers that add more than this share to a step's time take it from the step.
const CONTENTION: f64 = 0.05;
/// A trial for a step that does not wait must promise so much more speed.
const WORTHWHILE: f64 = 0.03;

/// What the stage has found so far.
struct Search<'a> {
    /// The point that batch sizes were measured with, and its trial.
    first: Safe<'a>,
    /// Workers that may be had, ascending.
    workers: Vec<usize>,
    /// Points that real steps verified; the first is [`first`](Self::first).
    verified: Vec<Safe<'a>>,
    /// Points that broke a rule.
    broken: Vec<Point>,
    /// The rates of the loader alone.
    climb: Climb,
}

impl Staged {
    /// The point with the best data path, or the next trial that tells.
    pub(super) fn best_loader(&mut self, view: View<'_>, found: Safe<'_>) -> Result<Point, Ask> {
        let (first, trial) = &found;
        let pair = self.space.pair_of(first.batch_size);
        let base = self.base_point(pair, first.gradient_checkpointing);
        if *first != (Point { alloc_conf: first.alloc_conf.clone(), ..base }) {
            // A remedied point: what it took to make it safe is not to be put at risk again.
            return Ok(first.clone());
        }
        if data_wait(trial) <= DATA_WAIT_ALLOWED {
            return self.best_staging(view, found);
        }
        let mut search = self.begin(view, found);
        while let Some(point) = self.next_loader(view, &search)? {
            match view.history.measured(&point) {
                Some(trial) if trial.is_safe() => search.verified.push((point, trial)),
                Some(_) => search.broken.push(point),
                None if self.has_loader_room(view) => return Err(Ask::Run { point, purpose: Purpose::Loader }),
                // Workers that nobody has seen with a step are worth a soak where their rate is known.
                None if search.is_fresh() && search.climb.rates.contains_key(&point.loader_workers) => return Ok(point),
                None => break,
            }
        }
        let best = search.best();
        self.best_staging(view, best)
    }

    fn begin<'a>(&mut self, view: View<'a>, found: Safe<'a>) -> Search<'a> {
        let (first, trial) = &found;
        let wait = data_wait(trial);
        let of_samples = |rate: Option<f64>| rate.unwrap_or(0.0) / first.batch_size.max(1) as f64;
        let given = of_samples(trial.samples_per_second());
        // Without a worker the training thread itself made the batch, in the time that it waited.
        let behind = if first.loader_workers == 0 { (1, given / wait) } else { (first.loader_workers, given) };
        let workers = self.allowed_workers(&found);
        // A loader that is far behind is known to be too slow; one that is not may be no more than uneven.
        let candidates = workers.iter().copied();
        let candidates = candidates.filter(|more| *more > first.loader_workers || (*more > 0 && wait <= UNEVENNESS));
        let candidates: Vec<usize> = candidates.collect();
        let rate = |workers: usize| throughput(view, &self.with_workers(first, workers));
        let rates = candidates.iter().filter_map(|workers| Some((*workers, rate(*workers)??))).collect();
        let climb = Climb { candidates, demand: of_samples(compute_rate(trial)), behind, rates };
        Search { first: found.clone(), workers, verified: vec![found], broken: Vec::new(), climb }
    }

    /// As many workers as there were and more, as far as processors and the host's memory carry them. What is left out is
    /// skipped with its reason.
    fn allowed_workers(&mut self, found: &Safe<'_>) -> Vec<usize> {
        let (first, _) = found;
        let mut workers = self.space.workers();
        workers.retain(|workers| {
            let point = self.with_workers(first, *workers);
            let too_many = self.space.cpus().filter(|cpus| workers > cpus).map(|cpus| {
                format!("{} on {} that this process may run on", plural(*workers, "loader worker"), plural(cpus, "processor"))
            });
            // The fewest were measured.
            *workers == first.loader_workers || *workers > first.loader_workers && self.is_allowed(point, found, too_many)
        });
        workers
    }

    /// Whether a point of the same batch size is not ruled out, by `reason` or by the host's memory.
    fn is_allowed(&mut self, point: Point, (_, seen): &Safe<'_>, reason: Option<String>) -> bool {
        let of_memory = || LoaderMemory::of(&point, &seen.record).and_then(|memory| memory.breach());
        match reason.or_else(of_memory) {
            Some(reason) => {
                self.skip(point, reason);
                false
            }
            None => true,
        }
    }

    /// The point with so many workers and the smallest prefetch.
    fn with_workers(&self, first: &Point, workers: usize) -> Point {
        let smallest = self.space.prefetch_depths().first().copied().unwrap_or(0);
        let prefetch_depth = if workers == 0 { 0 } else { smallest };
        Point { loader_workers: workers, prefetch_depth, ..first.clone() }
    }

    /// What to verify next; `None` where nothing could be better.
    fn next_loader(&mut self, view: View<'_>, search: &Search<'_>) -> Result<Option<Point>, Ask> {
        if let Some(broken) = search.broken.last() {
            return Ok(self.less_in_flight(search, broken));
        }
        let Some((point, trial)) = search.verified.last() else { return Ok(None) };
        if search.is_past_the_top() {
            return Ok(None);
        }
        if search.is_fresh()
            && let Some(workers) = self.workers_by_rate(view, search)?
            && workers != point.loader_workers
        {
            return Ok(Some(self.with_workers(point, workers)));
        }
        let may_be_uneven = (DATA_WAIT_ALLOWED..=UNEVENNESS).contains(&data_wait(trial));
        let is_uneven = may_be_uneven && !search.climb.is_short(point.loader_workers);
        let deeper = if is_uneven { self.deeper(search, point) } else { None };
        Ok(deeper.or_else(|| search.promising().map(|workers| self.with_workers(point, workers))))
    }

    /// The fewest workers that are enough by the rates of the loader alone; leaves with the next trial that tells. `None`
    /// where the loader is not ours or could not be run alone.
    fn workers_by_rate(&self, view: View<'_>, search: &Search<'_>) -> Result<Option<usize>, Ask> {
        let climb = &search.climb;
        if !self.space.has_loader() {
            return Ok(None);
        }
        let is_left = count(view, TrialSpec::is_throughput) < THROUGHPUT_TRIALS && count(view, is_of_loader) < LOADER_TRIALS;
        match climb.next(is_left) {
            Some(Next::Settled(workers)) => Ok(Some(workers)),
            Some(Next::Measure(workers)) => {
                let point = self.with_workers(&search.first.0, workers);
                match throughput(view, &point) {
                    None => Err(Ask::Run { point, purpose: Purpose::Throughput }),
                    // It failed, and would again.
                    Some(_) => Ok(None),
                }
            }
            None => Ok(None),
        }
    }

    /// The point with the next deeper prefetch.
    fn deeper(&mut self, search: &Search<'_>, point: &Point) -> Option<Point> {
        let more = |depth: &usize| point.loader_workers > 0 && *depth > point.prefetch_depth;
        let prefetch_depth = self.space.prefetch_depths().into_iter().find(more)?;
        let deeper = Point { prefetch_depth, ..point.clone() };
        self.is_allowed(deeper.clone(), &search.first, None).then_some(deeper)
    }

    /// What to verify in place of a point that broke a rule: prefetched batches are the first suspects, then the workers.
    fn less_in_flight(&self, search: &Search<'_>, broken: &Point) -> Option<Point> {
        let depths = self.space.prefetch_depths().into_iter().filter(|depth| *depth < broken.prefetch_depth);
        let shallower = depths.max().map(|prefetch_depth| Point { prefetch_depth, ..broken.clone() });
        let (last, _) = search.verified.last()?;
        let fewer = || {
            let fewer = search.fewer_workers(broken).filter(|workers| *workers > last.loader_workers)?;
            Some(self.with_workers(last, fewer))
        };
        shallower.filter(|point| !search.knows(point)).or_else(fewer).filter(|point| !search.knows(point))
    }

    fn has_loader_room(&self, view: View<'_>) -> bool {
        self.has_room(view) && count(view, is_of_loader) < LOADER_TRIALS
    }
}

impl Search<'_> {
    /// Whether nothing was verified beside the point that the stage began with.
    fn is_fresh(&self) -> bool {
        self.verified.len() == 1 && self.broken.is_empty()
    }

    fn knows(&self, point: &Point) -> bool {
        self.broken.contains(point) || self.verified.iter().any(|(verified, _)| verified == point)
    }

    /// Whether the last change of the number of workers made nothing faster. The first one tells only what workers take
    /// from a step that had none or few.
    fn is_past_the_top(&self) -> bool {
        let [_, .., (before, slower), (last, trial)] = self.verified.as_slice() else { return false };
        last.loader_workers != before.loader_workers && rate(trial) <= rate(slower) * (1.0 + EQUAL_SPEED)
    }

    /// The fewest workers that promise more than the fastest so far has, by their rates alone and by what the workers of
    /// the last trial took from its step: each of them takes the same.
    fn promising(&self) -> Option<usize> {
        let (last, trial) = self.verified.last()?;
        let known = self.known_rates();
        let taken = self.taken_by_each(last, trial);
        let promise = |workers: usize| {
            climb::estimate(&known, workers).min(self.climb.demand) / (1.0 + taken * workers as f64)
        };
        let is_new = |workers: &usize| *workers > 0 && !self.has_seen(*workers);
        let candidates: Vec<(usize, f64)> =
            self.workers.iter().copied().filter(is_new).map(|workers| (workers, promise(workers))).collect();
        let most = candidates.iter().map(|(_, promise)| *promise).fold(0.0, f64::max);
        let fastest = self.verified.iter().map(|(_, trial)| self.batches(rate(trial))).fold(0.0, f64::max);
        let worthwhile = if data_wait(trial) > DATA_WAIT_ALLOWED { EQUAL_SPEED } else { WORTHWHILE };
        if most <= fastest * (1.0 + worthwhile) {
            return None;
        }
        candidates.into_iter().find(|(_, promise)| *promise >= most * (1.0 - DATA_WAIT_ALLOWED)).map(|(workers, _)| workers)
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
    fn fewer_workers(&self, point: &Point) -> Option<usize> {
        let fewer = self.workers.iter().copied().rev().filter(|workers| *workers < point.loader_workers);
        fewer.into_iter().find(|workers| *workers > 0 && !self.has_seen(*workers))
    }
}

impl<'a> Search<'a> {
    /// The fewest workers, and then the smallest prefetch, that are as fast as any; of those the ones that do not wait,
    /// where there are some.
    fn best(self) -> Safe<'a> {
        let fastest = self.verified.iter().map(|(_, trial)| rate(trial)).fold(0.0, f64::max);
        let is_as_fast = |(_, trial): &Safe<'_>| rate(trial) >= fastest * (1.0 - DATA_WAIT_ALLOWED);
        let order = |(point, trial): &Safe<'_>| {
            (data_wait(trial) > DATA_WAIT_ALLOWED, point.loader_workers, point.prefetch_depth)
        };
        self.verified.into_iter().filter(is_as_fast).min_by_key(order).unwrap_or(self.first)
    }
}

/// What a trial of the loader alone measured: `Some(None)` where it failed.
fn throughput(view: View<'_>, point: &Point) -> Option<Option<f64>> {
    let trial = view.history.throughput(point)?;
    let measured = trial.record.measurement.as_ref().filter(|_| trial.record.completed());
    Some(measured.and_then(|measurement| measurement.batches_per_second))
}

fn is_of_loader(spec: &TrialSpec) -> bool {
    matches!(spec.purpose, Purpose::Throughput | Purpose::Loader)
}

fn count(view: View<'_>, counts: fn(&TrialSpec) -> bool) -> usize {
    view.history.trials().iter().filter(|trial| counts(&trial.record.spec)).count()
}

fn rate(trial: &JudgedTrial) -> f64 {
    trial.samples_per_second().unwrap_or(0.0)
}

fn data_wait(trial: &JudgedTrial) -> f64 {
    trial.record.measurement.as_ref().map_or(0.0, |measurement| measurement.data_wait_fraction)
}
