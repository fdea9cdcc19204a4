//! The staged strategy: each stage settles one question with as few trials as it can.
//!
//! 1. **Smallest**: the smallest micro-batch shows that the workload runs at all. A failure that is not about
//!    memory ends the search: no batch size cures a typo. It is measured, never forecast.
//! 2. **Probes** ([`probes`]): two tiny batches with every allocation recorded, and a third where two leave doubt. What
//!    follows depends on what they are worth.
//! 3. **Sizes**, by forecast ([`forecast`]): where it is exact, the pairs of micro-batch and accumulation that meet the
//!    target are known to fit or not, so no trial runs out of memory; only those that could win are measured, the largest
//!    first, and a model of the step time tells which could not.
//!    Or by measuring ([`ladder`]): from half of the target upward, rung by rung, until a rule breaks; that rung is
//!    rolled back. Where even the start breaks, bisection below it. Then the largest pairs as they would run.
//!    Where activations may be recomputed ([`recompute`]), that is looked at after, for sizes that did not fit without.
//! 4. **Remedies** ([`settle`]): a size that is short of memory gets other settings of the allocator, and one that fragments
//!    though memory is left has less in flight and its cache handed back, before a smaller batch is taken.
//! 5. **Loader** ([`loader`]): where the step waits, the loader is run alone with more workers, and the fewest that make
//!    enough are verified by real steps; on a breach the prefetch depth goes first.
//! 6. **Allocator** ([`allocator`]): settings of PyTorch's allocator that hold less by replay, over the coming run where
//!    samples vary in size, are confirmed by a run.
//! 7. **Whole run** ([`whole_run`]): the coming run of the best point is played to the model of the allocator; where it
//!    breaks, settings of the allocator under which it lasts are looked for, and then the next best is looked at.
//! 8. **Soak** ([`soak`]): the best point is proved by a long run; on a breach the next best is. Found settings of the
//!    allocator are held against the program's own by a soak of the same steps under those.
//!
//! The strategy keeps no state between calls but for what it has reported. It derives where it stands from the history
//! each time, which makes a resumed study and an uninterrupted one the same.
//!
//! On several devices, what does not depend on a trial under way runs beside it ([`ahead`]).
//!
//! # How many trials
//! With an exact forecast at most [`TRIALS_BEFORE_SOAK`] run before the soak (the smallest, two to five probes, the rest at
//! most [`FULL_SIZE_TRIALS`] of full size; where recomputation is part of the search, its probes and the first trial with
//! it come on top), and up to [`THROUGHPUT_TRIALS`] of the loader alone, which have no model, and the tiny probes of the whole
//! run. The loader takes [`LOADER_TRIALS`] at most, with real steps or without; the first of a program that has its own comes
//! on top. These bounds stop a search for a better point, never the one for a safe point. One trial of found settings of the
//! allocator comes on top, and where whole runs break under the program's own, one for each micro-batch that other settings
//! would keep.
//!
//! Of soaks there is one for each point that is tried, the last of which passes; and one more of an answer with found
//! settings, under the program's own. Settings are searched for over a run once for the best point, and once for each
//! other whose run breaks.

use super::recommend::{best_of, compute_rate};
use super::space::Pair;
use super::{Ask, Conclusion, History, JudgedTrial, Knowledge, Skip, Space, Strategy};
use crate::train::GradientCheckpointing;
use crate::trial::{Outcome, Point, Purpose};

mod ahead;
mod allocator;
mod forecast;
mod ladder;
mod loader;
mod probes;
mod recompute;
mod settle;
mod soak;
mod staging;
mod whole_run;

pub use loader::{LOADER_TRIALS, THROUGHPUT_TRIALS};
use recompute::largest_of;

/// Pairs that are measured of one way to keep activations. More would cost trials and win nothing: throughput hardly ever
/// rises as the micro-batch shrinks.
const PAIRS: usize = 3;

/// Trials before the soak, probes included and those of the loader alone not, when the forecast is exact.
pub const TRIALS_BEFORE_SOAK: usize = 8;
/// ... of which so many may be larger than the smallest and the probes.
pub const FULL_SIZE_TRIALS: usize = 4;
/// Trials of the loader and of remedies when sizes are measured rung by rung.
const PERIPHERY_TRIALS: usize = 6;

/// Data wait up to this share of the time does not count as starving.
pub const DATA_WAIT_ALLOWED: f64 = 0.02;

/// The staged strategy.
#[derive(Debug)]
pub struct Staged {
    space: Space,
    skipped: Vec<Skip>,
    reported: Vec<Point>,
}

/// What a stage sees.
#[derive(Clone, Copy)]
struct View<'a> {
    history: &'a History,
    knowledge: &'a dyn Knowledge,
}

/// A safe point with the trial that showed it.
type Safe<'a> = (Point, &'a JudgedTrial);

impl Staged {
    /// Searches `space`.
    pub fn new(space: Space) -> Self {
        Self { space, skipped: Vec::new(), reported: Vec::new() }
    }

    /// A pair as sizes are compared: with the first setting of the data path.
    fn base_point(&self, pair: Pair, mode: GradientCheckpointing) -> Point {
        Point { gradient_checkpointing: mode, ..self.space.point(pair, self.space.first_loader()) }
    }

    fn skip(&mut self, point: Point, reason: String) {
        if !self.reported.contains(&point) {
            self.reported.push(point.clone());
            self.skipped.push(Skip { point, reason });
        }
    }

    fn decide(&mut self, view: View<'_>) -> Result<Ask, Ask> {
        let Some(smallest) = self.space.pairs().last().copied() else {
            return Ok(Ask::Finished(Conclusion::NoSafePoint));
        };
        let modes = match self.modes_that_run(view, smallest)? {
            Ok(modes) => modes,
            Err(end) => return Ok(Ask::Finished(end)),
        };
        let mut found: Vec<Safe<'_>> = Vec::new();
        for mode in modes {
            if self.may_help(view, mode, &found) {
                found.extend(self.safe_of_mode(view, mode, &found)?);
            }
        }
        let Some((point, trial)) = best(found) else {
            return Ok(Ask::Finished(Conclusion::NoSafePoint));
        };
        let point = self.best_loader(view, (point, trial))?;
        let point = self.best_alloc_conf(view, point)?;
        self.soak(view, &point)
    }

    /// Stage 1: the ways to keep activations from the first one that runs at all, or how the search ends.
    fn modes_that_run(
        &self,
        view: View<'_>,
        smallest: Pair,
    ) -> Result<Result<Vec<GradientCheckpointing>, Conclusion>, Ask> {
        let modes = self.space.modes();
        for (index, mode) in modes.iter().enumerate() {
            let point = self.base_point(smallest, *mode);
            let Some(trial) = view.history.measured(&point) else {
                return Err(Ask::Run { point, purpose: Purpose::Smallest });
            };
            match end_of_smallest(trial) {
                None => return Ok(Ok(modes.iter().skip(index).copied().collect())),
                // Other settings of the allocator may make it fit, if it can be forecast.
                Some(Conclusion::NoSafePoint) if self.may_fit_under_other_settings(smallest) => {
                    return Ok(Ok(modes.iter().skip(index).copied().collect()));
                }
                // Another mode may need less.
                Some(Conclusion::NoSafePoint) => {}
                Some(end) => return Ok(Err(end)),
            }
        }
        Ok(Err(Conclusion::NoSafePoint))
    }

    /// Whether settings of the allocator are to be had for the smallest pair, and probes below it to find them by.
    fn may_fit_under_other_settings(&self, smallest: Pair) -> bool {
        smallest.batch_size >= probes::LEAST_BATCH_SIZE && !self.space.alloc_confs().is_empty()
    }

    /// Stages 2 and 3: the safe pairs of one way to keep activations, above those that are safe in a faster one.
    fn safe_of_mode<'a>(
        &mut self,
        view: View<'a>,
        mode: GradientCheckpointing,
        others: &[Safe<'a>],
    ) -> Result<Vec<Safe<'a>>, Ask> {
        let is_exact = self.is_forecast_exactly(view, mode)?;
        if self.fails(view, mode) {
            return Ok(Vec::new());
        }
        if is_exact { self.pairs_by_forecast(view, mode, others) } else { self.pairs_by_ladder(view, mode, others) }
    }
}

impl Strategy for Staged {
    fn ask(&mut self, history: &History, knowledge: &dyn Knowledge) -> Ask {
        // A stage that needs a trial leaves with it; one that is settled hands its answer to the next.
        self.decide(View { history, knowledge }).unwrap_or_else(|needed| needed)
    }

    fn ask_while(&mut self, history: &History, knowledge: &dyn Knowledge, under_way: &[Ask]) -> Option<Ask> {
        self.ahead(View { history, knowledge }, under_way)
    }

    fn skipped(&mut self) -> Vec<Skip> {
        std::mem::take(&mut self.skipped)
    }
}

/// The best by the rate that the loader cannot spoil: it is settled afterwards.
fn best(found: Vec<Safe<'_>>) -> Option<Safe<'_>> {
    let best = best_of(&found, compute_rate)?.clone();
    found.into_iter().find(|(point, _)| *point == best)
}

/// A smaller pair is worth a trial while there are few safe ones and shrinking the last one did not make it slower.
fn worth_measuring(larger: &[Safe<'_>]) -> bool {
    match larger {
        [] | [_] => true,
        [.., (_, last), (_, smaller)] => larger.len() < PAIRS && compute_rate(smaller) > compute_rate(last),
    }
}

/// How the search ends if the smallest trial failed in a way that ends it.
pub(super) fn end_of_smallest(trial: &JudgedTrial) -> Option<Conclusion> {
    match &trial.record.outcome {
        Outcome::Completed | Outcome::Cancelled => None,
        outcome if outcome.is_memory() => Some(Conclusion::NoSafePoint),
        _ => Some(Conclusion::WorkloadFails),
    }
}

/// Why a trial counts as broken, in one sentence.
pub fn breach_reason(trial: &JudgedTrial) -> String {
    trial.verdict.breach().map_or_else(|| trial.record.ending(), |check| check.reason.clone())
}

#[cfg(test)]
mod tests;
