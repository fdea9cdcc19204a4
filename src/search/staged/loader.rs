//! Stage 5: the data path of the best pair.
//!
//! A trial of the batch stage tells what the step takes if it never waits: its demand. Where the fewest workers keep it
//! waiting, the loader is run alone with more of them ([`climb`]), which takes seconds and no memory of the device, and
//! the fewest that make enough are verified by real steps with the smallest prefetch. Steps that share processors with
//! the workers may still wait. A little waiting is unevenness, which a deeper prefetch evens out; a lot is a loader that
//! is too slow beside a step, which takes more workers; and a step that they slow may be better off with fewer
//! ([`search`]). Of all that were verified the fewest workers win, and then the smallest prefetch, that are as fast as any.
//!
//! A program of the user's own has a loader of its own. There each real trial tells how many workers would have kept up:
//! with `k` workers that are behind, a batch takes a worker `k` steps' time, of which the part without waiting is what the
//! step needs. The next trial has that many, not one more.
//!
//! # Bounds
//! More workers than processors that this process may run on, and batches that would fill the host's memory
//! ([`LoaderMemory`]), are left out unseen. At most [`LOADER_TRIALS`] are run, [`THROUGHPUT_TRIALS`] of them of the loader
//! alone. Where no trial with real steps is left, the soak verifies what the rates say.

use super::{DATA_WAIT_ALLOWED, Safe, Staged, View};
use crate::search::Ask;
use crate::search::recommend::compute_rate;
use crate::search::rules::host_memory::LoaderMemory;
use crate::trial::{Point, Purpose, TrialSpec};
use crate::units::plural;
use climb::{Climb, Next};
use search::{Search, data_wait};

mod climb;
mod search;
#[cfg(test)]
mod tests;

/// Trials that the loader may take, alone and with real steps.
pub const LOADER_TRIALS: usize = 5;
/// ... of which so many may be of the loader alone.
pub const THROUGHPUT_TRIALS: usize = 3;
/// Waiting up to this share of the time is taken for unevenness first.
const UNEVENNESS: f64 = 0.1;

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
                None if search.is_fresh() && search.climb.rates.contains_key(&point.loader_workers) => {
                    return Ok(point);
                }
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
        let rates = candidates.iter().filter_map(|workers| Some((*workers, rate(*workers)?))).collect();
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
                format!(
                    "{} on {} that this process may run on",
                    plural(*workers, "loader worker"),
                    plural(cpus, "processor")
                )
            });
            // The fewest were measured.
            *workers == first.loader_workers
                || *workers > first.loader_workers && self.is_allowed(point, found, too_many)
        });
        workers
    }

    /// Whether a point of the same batch size is not ruled out, by `reason` or by the host's memory.
    pub(super) fn is_allowed(&mut self, point: Point, (_, seen): &Safe<'_>, reason: Option<String>) -> bool {
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
        let wait = data_wait(trial);
        let may_be_uneven = wait > DATA_WAIT_ALLOWED && !search.climb.is_short(point.loader_workers);
        let deeper = if may_be_uneven { self.deeper(search, point) } else { None };
        let other_workers = search.promising().map(|workers| self.with_workers(point, workers));
        Ok(if wait <= UNEVENNESS { deeper.or(other_workers) } else { other_workers.or(deeper) })
    }

    /// The fewest workers that are enough by the rates of the loader alone; leaves with the next trial that tells. `None`
    /// where the loader is not ours or could not be run alone.
    fn workers_by_rate(&self, view: View<'_>, search: &Search<'_>) -> Result<Option<usize>, Ask> {
        let climb = &search.climb;
        if !self.space.has_loader() {
            return Ok(None);
        }
        let is_left =
            count(view, TrialSpec::is_throughput) < THROUGHPUT_TRIALS && count(view, is_of_loader) < LOADER_TRIALS;
        match climb.next(is_left) {
            Some(Next::Settled(workers)) => Ok(Some(workers)),
            Some(Next::Measure(workers)) => {
                let point = self.with_workers(&search.first.0, workers);
                // One that failed would fail again.
                if view.history.throughput(&point).is_some() {
                    Ok(None)
                } else {
                    Err(Ask::Run { point, purpose: Purpose::Throughput })
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

    /// Whether the loader may have one more trial. A program's own cannot be run alone, so its first one comes on top of what a
    /// search may take: a step that waits gains more by it than by anything else.
    fn has_loader_room(&self, view: View<'_>) -> bool {
        let tried = count(view, is_of_loader);
        let comes_on_top = tried == 0 && !self.space.has_loader();
        (comes_on_top || self.has_room(view)) && tried < LOADER_TRIALS
    }
}

/// Batches a second of a point's loader alone, where it ran.
fn throughput(view: View<'_>, point: &Point) -> Option<f64> {
    let trial = view.history.throughput(point).filter(|trial| trial.record.completed())?;
    trial.record.measurement.as_ref()?.batches_per_second
}

fn is_of_loader(spec: &TrialSpec) -> bool {
    matches!(spec.purpose, Purpose::Throughput | Purpose::Loader)
}

fn count(view: View<'_>, counts: fn(&TrialSpec) -> bool) -> usize {
    view.history.trials().iter().filter(|trial| counts(&trial.record.spec)).count()
}
