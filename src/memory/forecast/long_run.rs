//! Playing a run of thousands of steps to an allocator, and what is kept of it.
//!
//! A soak sees fifty steps. Fragmentation of varying shapes grows over hundreds, until the cache holds a block for
//! everything that comes, or until the limit. Here all steps are played, as events made one at a time: the live blocks
//! are held and nothing else of the past. Of the series no more than [`MAX_POINTS`] points are kept; where there are more
//! steps, a point stands for several, with the worst of their figures.
//!
//! What the figures come to is [`judge`]d by the terms of a plan: a run that runs out of memory, whose memory lies in
//! pieces, or that grows without a plateau.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::run::RunEvents;
use crate::memory::event::{Event, Mark};
use crate::memory::fragmentation::{Rates, peak_rate};
use crate::memory::policy::{Policy, PoolState};

mod breach;
mod growth;
mod periodic;
mod player;
mod series;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod whole_tests;

pub use breach::{Breach, Growing, Terms, has_plateau, judge};
use periodic::{Calls, Kept, Repetition, Watch};
use player::RunPlayer;
use series::Series;
pub use series::{Heights, LongRunPoint, MAX_POINTS};

/// Steps at the start that rates leave out: the first ones make the optimizer's state.
pub const WARM_UP_STEPS: u32 = 2;

/// The step in which a request did not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LongRunEnd {
    /// Counted from 0.
    pub step: u32,
    /// The request.
    pub requested_bytes: u64,
    /// A then.
    pub allocated_bytes: u64,
    /// V then.
    pub reserved_bytes: u64,
}

/// What a long run takes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LongRunFigures {
    /// Steps that were finished.
    pub steps: u32,
    /// C; `u64::MAX` is none.
    pub limit_bytes: u64,
    /// The highest A.
    pub peak_allocated_bytes: u64,
    /// The highest V.
    pub peak_reserved_bytes: u64,
    /// 1 − A / V of the highest after the first steps: what the run came to hold and never needed at one moment.
    pub fragmentation: Option<f64>,
    /// The last step in which V rose to a new height. Long before the end, the run has reached its plateau.
    pub last_growth_step: u32,
    /// Requests to the device for memory, and returns of it.
    pub device_calls: u64,
    /// Requests that released the cache first.
    pub retries: u64,
    /// The step from which on the run repeats itself, so that the rest is known without being played.
    pub periodic_from: Option<u32>,
    /// Where it ran out of memory, if it did; the figures are of the steps before.
    pub out_of_memory: Option<LongRunEnd>,
    /// Steps of an update: within one, what is live may differ from step to step.
    #[serde(skip)]
    pub steps_of_an_update: u32,
    /// The steps in which a rate rose to a new height.
    #[serde(skip)]
    pub heights: Heights,
    /// The series.
    pub points: Vec<LongRunPoint>,
}

/// Plays a run to its end, or until a request does not fit. `on_step` hears of every step that begins.
///
/// A step ends where the next one begins, so what comes between them, an evaluation pass or a checkpoint, is in the figures
/// of the step before it, as in the samples of a trial. Where the run [repeats itself](LongRunFigures::periodic_from) the
/// repetitions are counted and not played; all figures are those of a play of every step.
pub fn play(mut run: RunEvents<'_>, policy: Box<dyn Policy>, on_step: &mut dyn FnMut(u32)) -> LongRunFigures {
    let mut player = RunPlayer::new(policy);
    let mut keeper = Keeper::default();
    keeper.figures.steps_of_an_update = run.steps_of_an_update();
    let mut watch = Watch::new(&run);
    let mut step: Option<u32> = None;
    while let Some(event) = run.next() {
        if let Event::Mark(Mark::Step(number)) = event {
            if let Some(step) = step {
                let kept = Kept { state: player.policy().state(), calls: Calls::of(&player) };
                keeper.close(&kept.state, step);
                watch.keep(kept);
            }
            // Building the model is no step.
            player.start_window();
            let mut number = number;
            if let Some(repetition) = watch.look(&run, &player, number) {
                let steps = run.leave_out(repetition.steps());
                keeper.take_known(&repetition, number..number + steps, on_step);
                number += steps;
            }
            step = Some(number);
            on_step(number);
        }
        if let Err(error) = player.play(event) {
            keeper.figures.out_of_memory = Some(LongRunEnd {
                step: step.unwrap_or(0),
                requested_bytes: error.requested_bytes,
                allocated_bytes: error.allocated_bytes,
                reserved_bytes: error.reserved_bytes,
            });
            if step.is_none() {
                // It ended before its first step, while the model was built.
                keeper.figures.peak_allocated_bytes = error.allocated_bytes;
                keeper.figures.peak_reserved_bytes = error.reserved_bytes;
            }
            break;
        }
    }
    if let Some(step) = step {
        keeper.close(&player.policy().state(), step);
    }
    keeper.finish(player.policy().state().limit_bytes, Calls::of(&player))
}

/// Keeps what is kept of a run.
#[derive(Debug, Default)]
struct Keeper {
    figures: LongRunFigures,
    series: Series,
    /// The highest A and V after the first steps.
    steady: (u64, u64),
    /// Calls in steps that were not played.
    unplayed: Calls,
}

impl Keeper {
    /// Takes the state at the end of a step.
    fn close(&mut self, state: &PoolState, step: u32) {
        let figures = &mut self.figures;
        if state.peak_reserved_bytes > figures.peak_reserved_bytes {
            figures.last_growth_step = step;
        }
        figures.peak_allocated_bytes = figures.peak_allocated_bytes.max(state.peak_allocated_bytes);
        figures.peak_reserved_bytes = figures.peak_reserved_bytes.max(state.peak_reserved_bytes);
        figures.steps = step.saturating_add(u32::from(figures.out_of_memory.is_none()));
        let point = LongRunPoint::of(step, state);
        if step >= WARM_UP_STEPS {
            let (allocated, reserved) = self.steady;
            self.steady = (allocated.max(state.peak_allocated_bytes), reserved.max(state.peak_reserved_bytes));
            figures.heights.take(&point, state.limit_bytes);
        }
        self.series.push(point);
    }

    /// Takes whole repetitions that are not played, since they are known.
    fn take_known(&mut self, known: &Repetition, steps: Range<u32>, on_step: &mut dyn FnMut(u32)) {
        self.figures.periodic_from = Some(known.from_step);
        for step in steps.clone() {
            let Some(state) = known.state(step) else { break };
            on_step(step);
            self.close(state, step);
        }
        self.unplayed = known.calls(steps.end - steps.start);
    }

    fn finish(self, limit_bytes: u64, calls: Calls) -> LongRunFigures {
        LongRunFigures {
            limit_bytes,
            fragmentation: peak_rate(self.steady.0, self.steady.1),
            device_calls: calls.device_calls.saturating_add(self.unplayed.device_calls),
            retries: calls.retries.saturating_add(self.unplayed.retries),
            points: self.series.into_points(self.figures.peak_allocated_bytes),
            ..self.figures
        }
    }
}

/// The rates of a step. Without a limit all of the address space is free, and its share that one request can have says
/// nothing.
fn rates(state: &PoolState) -> Rates {
    let rates = Rates::of(state);
    Rates { external: rates.external.filter(|_| state.limit_bytes < u64::MAX), ..rates }
}
