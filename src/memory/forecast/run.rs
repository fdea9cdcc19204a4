//! A run put together from the parts of a recording, as events made one at a time.
//!
//! A probe records a handful of steps; the run to forecast may have more or fewer of them, a last batch that is
//! smaller, and an evaluation pass. The parts of a recording are templates for those of the run, each at a batch size
//! of its own. What a part frees is either its own allocation or one of an earlier part, so each free is carried over
//! by how many parts back its allocation was made. The last update of the recording is the one that repeats.

use serde::{Deserialize, Serialize};

use super::ForecastError;
use super::recording::{Part, PartKind, Recording};

mod accumulation;
mod alike;
mod events;
mod long_script;
pub(super) mod shaped;

#[cfg(test)]
mod tests;

pub(super) use accumulation::Doubled;
pub(super) use events::Cadence;
pub use events::{Releases, RunEvents};
pub(super) use long_script::{LongScript, LongTerms};

/// The smallest batch that is forecast: a batch of 1 takes other paths (dimensions vanish), so its events differ.
pub const MIN_BATCH_SIZE: usize = 2;

/// The longest run that is put together.
pub const MAX_UPDATES: usize = 1 << 20;

/// Which run to forecast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunShape {
    /// Samples in a micro-batch.
    pub batch_size: usize,
    /// Updates in the run; `None` is as many as were recorded.
    pub updates: Option<usize>,
    /// The size of an epoch's last batch, where it differs.
    pub partial_batch_size: Option<usize>,
}

impl RunShape {
    /// The recorded run at another batch size.
    pub fn recorded(batch_size: usize) -> Self {
        Self { batch_size, updates: None, partial_batch_size: None }
    }
}

/// The part of a run that a figure belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Window {
    /// All of a run that has no marks.
    Whole,
    /// Building the model.
    Build,
    /// The steps of the first update, which begins without optimizer state.
    FirstStep,
    /// The steps of later updates.
    SteadyStep,
    /// A step with an epoch's last, smaller batch.
    PartialStep,
    /// A pass over held-out data.
    Evaluation,
    /// Writing weights and optimizer state.
    Checkpoint,
}

/// One part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunPart {
    /// The place of its template among the recording's parts.
    pub template: usize,
    /// Its batch size.
    pub batch_size: usize,
    /// What it is in the run.
    pub window: Window,
}

/// The parts of a run of this shape, in order.
pub fn script(recording: &Recording, shape: RunShape) -> Result<Vec<RunPart>, ForecastError> {
    for batch_size in [Some(shape.batch_size), shape.partial_batch_size].into_iter().flatten() {
        if batch_size < MIN_BATCH_SIZE {
            return Err(ForecastError::BatchTooSmall { batch_size });
        }
    }
    let updates = Updates::of(recording);
    let mut writer = Writer { parts: recording.parts(), batch_size: shape.batch_size, script: Vec::new() };
    writer.write(&updates.prologue, Window::FirstStep);
    let trailing = if shape.updates.is_none() { updates.trailing.as_slice() } else { &[] };
    let Some(last) = updates.complete.last() else {
        if shape.updates.is_some() || shape.partial_batch_size.is_some() {
            return Err(ForecastError::NoSteadyStep);
        }
        writer.write(trailing, Window::FirstStep);
        return Ok(writer.script);
    };
    // An epoch whose only batch is partial is one of another batch size.
    let fewest = if shape.partial_batch_size.is_some() { 2 } else { 1 };
    let wanted = shape.updates.unwrap_or(updates.complete.len()).max(fewest);
    if wanted > MAX_UPDATES {
        return Err(ForecastError::TooManyUpdates { updates: wanted });
    }
    let repeats = wanted.saturating_sub(updates.complete.len());
    if (repeats > 0 || shape.partial_batch_size.is_some()) && !updates.is_steady(recording) {
        return Err(ForecastError::NoSteadyStep);
    }
    let kept = updates.complete.get(..wanted).unwrap_or(&updates.complete);
    let mut step = Window::FirstStep;
    for (place, update) in kept.iter().enumerate() {
        let ends_the_run = place + 1 == kept.len();
        if ends_the_run {
            for _ in 0..repeats {
                writer.write(&writer.steps_of(last), step);
            }
            writer.write_partial(last, shape.partial_batch_size);
        }
        writer.write(update, step);
        step = Window::SteadyStep;
        if ends_the_run && kept.len() < updates.complete.len() && writer.rest_of(update).is_empty() {
            // A shorter run ends as the recorded one did.
            writer.write(&writer.rest_of(last), step);
        }
    }
    writer.write(trailing, step);
    Ok(writer.script)
}

/// Micro-batches of an update of the recording that repeats.
pub(super) fn steps_of_an_update(recording: &Recording) -> usize {
    let updates = Updates::of(recording);
    let is_step = |part: &&usize| recording.parts().get(**part).is_some_and(|part| part.kind == PartKind::Step);
    updates.complete.last().map_or(1, |update| update.iter().filter(is_step).count().max(1))
}

/// The number of complete updates in a recording.
pub(super) fn count_updates(recording: &Recording) -> usize {
    Updates::of(recording).complete.len()
}

/// A recording with another number of updates, at its own sizes. `None` where it cannot be had.
pub(super) fn with_updates(recording: &Recording, batch_size: usize, updates: usize) -> Option<Recording> {
    let shape = RunShape { batch_size, updates: Some(updates), partial_batch_size: None };
    let script = script(recording, shape).ok()?;
    Some(Recording::collect(RunEvents::new(recording, None, script)))
}

/// Collects a script.
struct Writer<'a> {
    parts: &'a [Part],
    batch_size: usize,
    script: Vec<RunPart>,
}

impl Writer<'_> {
    fn write(&mut self, templates: &[usize], step: Window) {
        for &template in templates {
            let Some(part) = self.parts.get(template) else { continue };
            let window = window_of(part.kind, step);
            self.script.push(RunPart { template, batch_size: self.batch_size, window });
        }
    }

    /// The steps of an update.
    fn steps_of(&self, update: &[usize]) -> Vec<usize> {
        update.iter().copied().filter(|template| self.is_step(*template)).collect()
    }

    /// The evaluation and the checkpoint that belong to an update.
    fn rest_of(&self, update: &[usize]) -> Vec<usize> {
        update.iter().copied().filter(|template| !self.is_step(*template)).collect()
    }

    fn is_step(&self, template: usize) -> bool {
        self.parts.get(template).is_some_and(|part| part.kind == PartKind::Step)
    }

    /// An update whose last step has a partial batch.
    fn write_partial(&mut self, update: &[usize], partial_batch_size: Option<usize>) {
        let Some(batch_size) = partial_batch_size else { return };
        self.write(&self.steps_of(update), Window::SteadyStep);
        if let Some(last) = self.script.last_mut() {
            *last = RunPart { batch_size, window: Window::PartialStep, ..*last };
        }
    }
}

/// What a part of a kind is in the run, where its steps are such ones.
fn window_of(kind: PartKind, step: Window) -> Window {
    match kind {
        PartKind::Whole => Window::Whole,
        PartKind::Build => Window::Build,
        PartKind::Step => step,
        PartKind::Evaluation => Window::Evaluation,
        PartKind::Checkpoint => Window::Checkpoint,
    }
}

/// How often each step of an update allocates.
fn allocations(recording: &Recording, update: &[usize]) -> Vec<usize> {
    let parts = update.iter().filter_map(|index| recording.parts().get(*index));
    parts.filter(|part| part.kind == PartKind::Step).map(|part| part.allocations.len()).collect()
}

/// The parts of a recording by the update they belong to.
#[derive(Debug, Default)]
struct Updates {
    /// Before the first step.
    prologue: Vec<usize>,
    /// Updates that end with the optimizer's step, each with the evaluation and checkpoint after it. Without any
    /// mark of the optimizer, each step is one.
    complete: Vec<Vec<usize>>,
    /// Steps whose update was not finished.
    trailing: Vec<usize>,
}

impl Updates {
    fn of(recording: &Recording) -> Self {
        let parts = recording.parts();
        let is_marked = parts.iter().any(|part| part.kind == PartKind::Step && part.ends_update);
        let mut updates = Self::default();
        for (index, part) in parts.iter().enumerate() {
            if part.kind == PartKind::Step {
                updates.trailing.push(index);
                if part.ends_update || !is_marked {
                    updates.complete.push(std::mem::take(&mut updates.trailing));
                }
            } else if !updates.trailing.is_empty() {
                updates.trailing.push(index);
            } else if let Some(update) = updates.complete.last_mut() {
                update.push(index);
            } else {
                updates.prologue.push(index);
            }
        }
        updates
    }

    /// Whether the last update allocates as often as the one before it, step by step.
    fn is_steady(&self, recording: &Recording) -> bool {
        matches!(self.complete.as_slice(), [.., before, last] if allocations(recording, before) == allocations(recording, last))
    }

    /// The last update that allocates as often as the one before it, step by step, where both are plain and so are all
    /// before them.
    fn steady(&self, recording: &Recording, is_plain: impl Fn(&[usize]) -> bool) -> Option<usize> {
        let plain = self.complete.iter().take_while(|update| is_plain(update)).count();
        let pairs = self.complete.windows(2).take(plain.saturating_sub(1));
        let mut alike = pairs.enumerate().filter(|(_, pair)| match pair {
            [before, update] => allocations(recording, before) == allocations(recording, update),
            _ => false,
        });
        // The last of them: what is staged ahead takes some steps to be freed as it will be.
        alike.next_back().map(|(place, _)| place + 1)
    }
}
