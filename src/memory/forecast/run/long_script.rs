//! The parts of a long run, put in order one update at a time.
//!
//! What a step frees may be of the step before it, so a template is used where the recording had it: the first updates of
//! the run are those of the recording, the update that repeats comes after one like itself, and the one after a pass is its
//! own where the recording went on. A pass brings its own batch, so it may come after any update, the very first included.
//!
//! Evaluation and checkpoint are templates of their own: each comes where it is due, with or without the other, whether
//! or not the recording had both after one update.

use super::accumulation::ends_with_the_next;
use super::{RunPart, Updates, Window};
use crate::memory::forecast::ForecastError;
use crate::memory::forecast::recording::{PartKind, Recording};

/// What a long run is made of.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory::forecast) struct LongTerms {
    /// Of the micro-batches, in the recording's own terms.
    pub(in crate::memory::forecast) batch_size: usize,
    /// Updates in the run.
    pub(in crate::memory::forecast) updates: usize,
    /// Micro-batches of an update; `None` is as recorded.
    pub(in crate::memory::forecast) accumulation_steps: Option<usize>,
    /// Updates between two evaluation passes.
    pub(in crate::memory::forecast) evaluate_every: Option<usize>,
    /// Updates between two checkpoints.
    pub(in crate::memory::forecast) checkpoint_every: Option<usize>,
}

/// What comes after an update now and then.
#[derive(Clone, Debug)]
struct Interlude {
    every: usize,
    parts: Vec<usize>,
    /// The steps of the update after it, where the recording has one.
    after: Option<Vec<usize>>,
}

impl Interlude {
    fn is_due(&self, update: usize) -> bool {
        (update + 1).is_multiple_of(self.every)
    }
}

/// Micro-steps that updates have more than were recorded.
#[derive(Clone, Debug, Default)]
struct Inserted {
    /// So many in each.
    count: usize,
    /// The step of each update that comes so many times more.
    middles: Vec<usize>,
}

/// The parts of a long run, in order.
#[derive(Clone, Debug)]
pub(in crate::memory::forecast) struct LongScript {
    kinds: Vec<PartKind>,
    batch_size: usize,
    updates: usize,
    prologue: Vec<usize>,
    /// The updates that differ from the one that repeats, then that one.
    plain: Vec<Vec<usize>>,
    inserted: Inserted,
    evaluation: Option<Interlude>,
    checkpoint: Option<Interlude>,
    /// The update that is being made; 0 is the prologue.
    begun: usize,
    /// Its parts that are still to come, the last one first.
    coming: Vec<RunPart>,
}

impl LongScript {
    /// The script of a run.
    pub(in crate::memory::forecast) fn new(recording: &Recording, terms: LongTerms) -> Result<Self, ForecastError> {
        if terms.updates > super::MAX_UPDATES {
            return Err(ForecastError::TooManyUpdates { updates: terms.updates });
        }
        let known = Updates::of(recording);
        let templates = Templates { recording, known: &known, accumulation_steps: terms.accumulation_steps };
        let steady = known.steady(recording, |update| templates.is_plain(update)).ok_or(ForecastError::NoSteadyStep)?;
        let plain = known.complete.iter().take(steady + 1);
        Ok(Self {
            kinds: recording.parts().iter().map(|part| part.kind).collect(),
            batch_size: terms.batch_size,
            updates: terms.updates,
            prologue: known.prologue.clone(),
            plain: plain.map(|update| templates.steps(update)).collect::<Result<_, _>>()?,
            inserted: templates.inserted(),
            evaluation: templates.interlude(PartKind::Evaluation, terms.evaluate_every)?,
            checkpoint: templates.interlude(PartKind::Checkpoint, terms.checkpoint_every)?,
            begun: 0,
            coming: Vec::new(),
        })
    }

    /// The next part; `None` at the end of the run.
    pub(super) fn next(&mut self) -> Option<RunPart> {
        while self.coming.is_empty() {
            if self.begun > self.updates {
                return None;
            }
            self.begin();
        }
        self.coming.pop()
    }

    /// Steps after which the updates come again; `None` where that is never within a run.
    pub(super) fn period_steps(&self) -> Option<usize> {
        let interludes = [&self.evaluation, &self.checkpoint];
        let updates = interludes.into_iter().flatten().try_fold(1, |period, interlude| lcm(period, interlude.every))?;
        updates.checked_mul(self.steps_of_an_update())
    }

    /// The step from which on updates repeat.
    pub(super) fn steady_from(&self) -> usize {
        // The first update is never repeated.
        self.steps_of_an_update() * self.plain.len().saturating_sub(1).max(1)
    }

    /// Leaves out so many steps, which are whole updates.
    pub(super) fn leave_out(&mut self, steps: usize) {
        self.begun += steps / self.steps_of_an_update().max(1);
    }

    /// How many micro-steps a run has between two parts of the recording that are not between them there.
    pub(super) fn inserted_between(&self, earlier: usize, later: usize) -> usize {
        let middles = self.inserted.middles.iter().filter(|middle| earlier < **middle && **middle < later);
        self.inserted.count.saturating_mul(middles.count())
    }

    pub(super) fn steps_of_an_update(&self) -> usize {
        self.plain.last().map_or(1, Vec::len)
    }

    fn begin(&mut self) {
        let Some(update) = self.begun.checked_sub(1) else {
            self.begun = 1;
            let prologue = self.prologue.clone();
            self.push(&prologue, Window::FirstStep);
            self.coming.reverse();
            return;
        };
        self.begun += 1;
        let due = |interlude: &Option<Interlude>| interlude.clone().filter(|interlude| interlude.is_due(update));
        let (evaluation, checkpoint) = (due(&self.evaluation), due(&self.checkpoint));
        let window = if update == 0 { Window::FirstStep } else { Window::SteadyStep };
        let steps = self.steps(update).to_vec();
        self.push(&steps, window);
        for interlude in [evaluation, checkpoint].into_iter().flatten() {
            self.push(&interlude.parts, window);
        }
        self.coming.reverse();
    }

    /// The steps of an update.
    fn steps(&self, update: usize) -> &[usize] {
        let plain = self.plain.get(update).or(self.plain.last()).map(Vec::as_slice).unwrap_or_default();
        // The first update makes the optimizer's state, which no other one does.
        let Some(before) = update.checked_sub(1) else { return plain };
        let interludes = [&self.evaluation, &self.checkpoint].into_iter().flatten();
        let mut due = interludes.filter(|interlude| interlude.is_due(before));
        due.find_map(|interlude| interlude.after.as_deref()).unwrap_or(plain)
    }

    fn push(&mut self, templates: &[usize], step: Window) {
        for &template in templates {
            let Some(kind) = self.kinds.get(template) else { continue };
            let window = super::window_of(*kind, step);
            self.coming.push(RunPart { template, batch_size: self.batch_size, window });
        }
    }
}

/// Of so many recorded micro-steps the one that can come again: with four and more the last but one comes after a step like
/// itself.
fn middle_of(recorded: usize) -> Option<usize> {
    recorded.checked_sub(2).filter(|middle| *middle >= 2)
}

/// What a recording has to offer.
struct Templates<'a> {
    recording: &'a Recording,
    known: &'a Updates,
    accumulation_steps: Option<usize>,
}

impl Templates<'_> {
    fn of_kind(&self, update: &[usize], kind: PartKind) -> Vec<usize> {
        let parts = self.recording.parts();
        update.iter().copied().filter(|part| parts.get(*part).is_some_and(|part| part.kind == kind)).collect()
    }

    fn is_plain(&self, update: &[usize]) -> bool {
        self.of_kind(update, PartKind::Step).len() == update.len()
    }

    /// The steps of an update, as many as are asked for.
    fn steps(&self, update: &[usize]) -> Result<Vec<usize>, ForecastError> {
        let mut steps = self.of_kind(update, PartKind::Step);
        let recorded = steps.len();
        let wanted = self.accumulation_steps.unwrap_or(recorded);
        if wanted == recorded {
            return Ok(steps);
        }
        let middle = middle_of(recorded).filter(|_| wanted > recorded);
        let found = middle.and_then(|middle| Some((middle, *steps.get(middle)?)));
        let Some((middle, template)) = found.filter(|(_, template)| ends_with_the_next(self.recording, *template))
        else {
            return Err(ForecastError::AccumulationNotRecorded { recorded, wanted });
        };
        steps.splice(middle..middle, std::iter::repeat_n(template, wanted - recorded));
        Ok(steps)
    }

    /// What [`steps`](Self::steps) put into every update of the recording.
    fn inserted(&self) -> Inserted {
        let updates = self.known.complete.iter().map(|update| self.of_kind(update, PartKind::Step));
        let middles = updates.clone().filter_map(|steps| steps.get(middle_of(steps.len())?).copied()).collect();
        let recorded = updates.map(|steps| steps.len()).max().unwrap_or(0);
        Inserted { count: self.accumulation_steps.unwrap_or(recorded).saturating_sub(recorded), middles }
    }

    /// What comes after every so many updates.
    fn interlude(&self, kind: PartKind, every: Option<usize>) -> Result<Option<Interlude>, ForecastError> {
        let Some(every) = every.filter(|every| *every > 0) else { return Ok(None) };
        let complete = &self.known.complete;
        let has = |update: &Vec<usize>| !self.of_kind(update, kind).is_empty();
        // One that comes alone has prepared nothing else.
        let alone = |update: &Vec<usize>| {
            has(update) && self.of_kind(update, kind).len() + self.of_kind(update, PartKind::Step).len() == update.len()
        };
        let Some(place) = complete.iter().position(alone).or_else(|| complete.iter().position(has)) else {
            return Err(ForecastError::PartNotRecorded { part: kind });
        };
        let update = complete.get(place).map(Vec::as_slice).unwrap_or_default();
        let after = complete.get(place + 1).filter(|after| self.is_plain(after));
        Ok(Some(Interlude {
            every,
            parts: self.of_kind(update, kind),
            after: after.map(|after| self.steps(after)).transpose()?,
        }))
    }
}

/// The least common multiple; `None` where it is beyond the numbers.
pub(super) fn lcm(left: usize, right: usize) -> Option<usize> {
    let (mut divisor, mut rest) = (left, right);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    left.checked_div(divisor)?.checked_mul(right)
}
