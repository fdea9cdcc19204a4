//! Stage 5: the data path of the best pair.
//!
//! Each trial tells how long the step waited for its batch, and so how many workers would have kept up with it: with `k`
//! workers that are behind, a batch takes a worker `k` steps' time, of which the part without waiting is what the step
//! needs. The next trial has that many, not one more. Staging batches on the device and page-locking are tried only where
//! copying takes time worth hiding.

use super::{DATA_WAIT_ALLOWED, Safe, Staged, View};
use crate::search::recommend::best_of;
use crate::search::{Ask, JudgedTrial};
use crate::trial::{Point, Purpose};

impl Staged {
    /// The point with the best data path, or the next trial that tells.
    pub(super) fn best_loader(&self, view: View<'_>, found: Safe<'_>) -> Result<Point, Ask> {
        let (first, _) = &found;
        let pair = self.space.pair_of(first.batch_size);
        let base = self.base_point(pair, first.gradient_checkpointing);
        if *first != (Point { alloc_conf: first.alloc_conf.clone(), ..base }) {
            // A remedied point: what it took to make it safe is not to be put at risk again.
            return Ok(first.clone());
        }
        let mut tried = vec![found.clone()];
        while let Some(workers) = tried.last().and_then(|(point, trial)| self.more_workers(point, trial)) {
            match self.with_workers(view, first, workers)? {
                Some(better) => tried.push(better),
                None => break,
            }
        }
        let settled = tried.last().filter(|(_, trial)| data_wait(trial) <= DATA_WAIT_ALLOWED).cloned();
        let settled = settled.or_else(|| {
            let best = best_of(&tried, JudgedTrial::samples_per_second)?.clone();
            tried.iter().find(|(point, _)| *point == best).cloned()
        });
        self.best_staging(view, settled.unwrap_or(found))
    }

    /// The fewest workers that would have kept up, if more than there were.
    fn more_workers(&self, point: &Point, trial: &JudgedTrial) -> Option<usize> {
        let wait = data_wait(trial).min(0.99);
        if wait <= DATA_WAIT_ALLOWED {
            return None;
        }
        // Without a worker the training thread itself made the batch, which took the time it waited.
        let needed = match point.loader_workers {
            0 => wait / (1.0 - wait),
            workers => workers as f64 / (1.0 - wait),
        };
        let more = self.space.workers().into_iter().filter(|workers| *workers > point.loader_workers);
        let more: Vec<usize> = more.collect();
        more.iter().copied().find(|workers| *workers as f64 >= needed).or(more.last().copied())
    }

    /// A safe point with so many workers, at the first prefetch depth that is; `None` where none is, or no trial is left.
    fn with_workers<'a>(&self, view: View<'a>, first: &Point, workers: usize) -> Result<Option<Safe<'a>>, Ask> {
        for depth in self.space.prefetch_depths() {
            let point = Point { loader_workers: workers, prefetch_depth: *depth, ..first.clone() };
            match view.history.measured(&point) {
                None if self.has_room(view) => return Err(Ask::Run { point, purpose: Purpose::Loader }),
                None => return Ok(None),
                Some(trial) if trial.is_safe() => return Ok(Some((point, trial))),
                // Prefetched batches are the first suspects: try a lower depth before giving the workers up.
                Some(_) => {}
            }
        }
        Ok(None)
    }

    /// The better of staging and page-locking as preferred and otherwise, where copying to the device takes time.
    fn best_staging(&self, view: View<'_>, found: Safe<'_>) -> Result<Point, Ask> {
        let (first, trial) = &found;
        if copying(trial) <= DATA_WAIT_ALLOWED {
            return Ok(found.0);
        }
        let staged = self.space.device_prefetches().iter();
        let staged = staged.map(|device_prefetch| Point { device_prefetch: *device_prefetch, ..first.clone() });
        let pinned = self.space.pins().iter().map(|pin_memory| Point { pin_memory: *pin_memory, ..first.clone() });
        let others: Vec<Point> = staged.chain(pinned).filter(|point| point != first).collect();
        let mut tried = vec![found.clone()];
        for point in others {
            match view.history.measured(&point) {
                None if self.has_room(view) => return Err(Ask::Run { point, purpose: Purpose::Loader }),
                Some(trial) if trial.is_safe() => tried.push((point, trial)),
                None | Some(_) => {}
            }
        }
        Ok(best_of(&tried, JudgedTrial::samples_per_second).cloned().unwrap_or(found.0))
    }
}

fn data_wait(trial: &JudgedTrial) -> f64 {
    trial.record.measurement.as_ref().map_or(0.0, |measurement| measurement.data_wait_fraction)
}

/// The share of a step that copies its batch to the device.
fn copying(trial: &JudgedTrial) -> f64 {
    let Some(measurement) = &trial.record.measurement else { return 0.0 };
    let phases = &measurement.phases;
    if phases.total_ms > 0.0 { phases.load_ms / phases.total_ms } else { 0.0 }
}
