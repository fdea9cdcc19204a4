//! Making a run's events from its script, one at a time.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::ops::Range;

use super::RunPart;
use super::alike::Alike;
use super::long_script::{LongScript, lcm};
use super::shaped::Shaped;
use crate::memory::event::{Event, Mark, Ordinal};
use crate::memory::forecast::recording::{PartKind, Recording};
use crate::memory::forecast::size::Size;

/// The events of a run, made one at a time. No more of the past is held than a recording has parts.
#[derive(Clone, Debug)]
pub struct RunEvents<'a> {
    recording: &'a Recording,
    sizes: Sizes<'a>,
    script: Script,
    /// Where the next event comes from.
    cursor: Range<usize>,
    /// The part that is being made, and how many came before it.
    current: Option<RunPart>,
    place: usize,
    /// The last parts begun before that one, the latest first.
    before: VecDeque<Begun>,
    /// The first ordinal of the part that is being made.
    first_ordinal: u64,
    /// The first ordinal of each template where it was last begun.
    latest: Vec<Option<u64>>,
    alike: Alike,
    next_ordinal: u64,
    steps: u32,
    releases: Releases,
    /// Whether the cache was handed back at the end of the part that is being made.
    has_released: bool,
}

/// When a run hands its cache back to the device. That comes last in its step, or after the pass, as a training loop has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Releases {
    /// Where the recording did.
    #[default]
    AsRecorded,
    /// At the end of every so many micro-batches, counted from the first, and nowhere else.
    EverySteps(u32),
    /// After every evaluation pass, and nowhere else.
    AfterEvaluation,
}

/// When a run does the same again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::memory::forecast) struct Cadence {
    /// From this step on.
    pub(in crate::memory::forecast) from_step: u32,
    /// After so many of them.
    pub(in crate::memory::forecast) steps: u32,
}

impl Cadence {
    /// Whether a stretch ends before this step.
    pub(in crate::memory::forecast) fn is_boundary(self, step: u32) -> bool {
        step.checked_sub(self.from_step).is_some_and(|since| since.is_multiple_of(self.steps))
    }
}

/// A part that was begun.
#[derive(Clone, Copy, Debug)]
struct Begun {
    template: usize,
    first_ordinal: u64,
}

/// Where the parts of a run come from.
#[derive(Clone, Debug)]
enum Script {
    Written(std::vec::IntoIter<RunPart>),
    Long(Box<LongScript>),
}

impl Script {
    fn next(&mut self) -> Option<RunPart> {
        match self {
            Self::Written(parts) => parts.next(),
            Self::Long(script) => script.next(),
        }
    }
}

/// Where the sizes of a run come from.
#[derive(Clone, Debug)]
enum Sizes<'a> {
    /// The recording.
    Recorded,
    /// The batch size of a part, by ordinal of the recording.
    OfBatch(&'a [Size]),
    /// The shape of each step.
    OfShape(Shaped<'a>),
}

impl<'a> RunEvents<'a> {
    /// The events of a script over a recording. Without sizes, those of the recording.
    pub(in crate::memory::forecast) fn new(
        recording: &'a Recording,
        sizes: Option<&'a [Size]>,
        script: Vec<RunPart>,
    ) -> Self {
        Self::with(recording, sizes.map_or(Sizes::Recorded, Sizes::OfBatch), Script::Written(script.into_iter()))
    }

    /// The same with a shape for each step.
    pub(in crate::memory::forecast) fn shaped(
        recording: &'a Recording,
        sizes: Shaped<'a>,
        script: LongScript,
        releases: Releases,
    ) -> Self {
        Self { releases, ..Self::with(recording, Sizes::OfShape(sizes), Script::Long(Box::new(script))) }
    }

    fn with(recording: &'a Recording, sizes: Sizes<'a>, script: Script) -> Self {
        Self {
            recording,
            sizes,
            script,
            cursor: 0..0,
            current: None,
            place: 0,
            before: VecDeque::new(),
            first_ordinal: 0,
            latest: vec![None; recording.parts().len()],
            alike: Alike::default(),
            next_ordinal: 0,
            steps: 0,
            releases: Releases::default(),
            has_released: false,
        }
    }

    /// The part that the last event came from, with its place in the run.
    pub fn part(&self) -> Option<(usize, RunPart)> {
        self.current.map(|part| (self.place, part))
    }

    /// Steps of an update, where the run knows its updates.
    pub(in crate::memory::forecast) fn steps_of_an_update(&self) -> u32 {
        match &self.script {
            Script::Long(script) => u32::try_from(script.steps_of_an_update()).unwrap_or(u32::MAX),
            Script::Written(_) => 1,
        }
    }

    /// When the run does the same again; `None` where that is not known, or its steps are not counted beforehand.
    pub(in crate::memory::forecast) fn cadence(&self) -> Option<Cadence> {
        let (Script::Long(script), Sizes::OfShape(shaped)) = (&self.script, &self.sizes) else { return None };
        let mut steps = lcm(script.period_steps()?, shaped.period_steps()?)?;
        if let Releases::EverySteps(every) = self.releases {
            steps = lcm(steps, every.max(1) as usize)?;
        }
        Some(Cadence { from_step: u32::try_from(script.steady_from()).ok()?, steps: u32::try_from(steps).ok()? })
    }

    /// Leaves out as many repetitions of so many steps as the shapes allow, right after the mark of a step that begins one.
    /// Returns the steps left out. All that was made so far stands for the same of the last repetition.
    pub(in crate::memory::forecast) fn leave_out(&mut self, steps: u32) -> u32 {
        let (Script::Long(script), Sizes::OfShape(shaped)) = (&mut self.script, &mut self.sizes) else { return 0 };
        let left = u32::try_from(shaped.steps_left()).unwrap_or(u32::MAX);
        let Some(times) = left.checked_div(steps) else { return 0 };
        // A run whose steps outnumber a `u32` does not exist: its updates are bounded.
        let skipped = (steps * times).min(u32::MAX - self.steps);
        script.leave_out(skipped as usize);
        shaped.leave_out(skipped as usize);
        self.steps += skipped;
        skipped
    }

    /// Where an allocation came from: how many parts ago and which one of that part, or its own number where that is
    /// longer ago than any part that frees by distance.
    pub(in crate::memory::forecast) fn origin(&self, ordinal: Ordinal) -> (usize, u64) {
        if let Some(number) = ordinal.0.checked_sub(self.first_ordinal) {
            return (0, number);
        }
        let later = self.before.partition_point(|begun| begun.first_ordinal > ordinal.0);
        self.before
            .get(later)
            .map_or((usize::MAX, ordinal.0), |begun| (later + 1, ordinal.0.saturating_sub(begun.first_ordinal)))
    }

    /// Hashes all that decides which events come from here on, but for the step.
    pub(in crate::memory::forecast) fn hash_place(&self, hasher: &mut impl Hasher) {
        for begun in &self.before {
            begun.template.hash(hasher);
        }
        for latest in &self.latest {
            latest.map(|ordinal| self.origin(Ordinal(ordinal))).hash(hasher);
        }
        if let Sizes::OfShape(shaped) = &self.sizes {
            shaped.loads_ahead().hash(hasher);
        }
    }

    /// What is held of the past: parts and sizes.
    #[cfg(test)]
    pub(in crate::memory::forecast) fn held(&self) -> usize {
        let sizes = if let Sizes::OfShape(shaped) = &self.sizes { shaped.held() } else { 0 };
        self.before.len() + self.latest.len() + self.alike.held() + sizes
    }

    /// Begins the next part. `None` at the end of the run.
    fn begin_part(&mut self) -> Option<()> {
        let next = self.script.next()?;
        let part = self.recording.parts().get(next.template)?;
        if let Some(current) = self.current.replace(next) {
            self.place += 1;
            self.before.push_front(Begun { template: current.template, first_ordinal: self.first_ordinal });
            // No free looks further back than the recording is long, with two interludes between any two of its parts,
            // and the micro-steps that its updates have more.
            let parts = self.latest.len();
            self.before.truncate(3 * parts + self.inserted_between(0, parts));
        }
        self.first_ordinal = self.next_ordinal;
        self.next_ordinal += part.allocations.len() as u64;
        self.cursor = part.events.clone();
        self.has_released = false;
        if let Sizes::OfShape(shaped) = &mut self.sizes {
            shaped.begin(part.kind);
        }
        *self.latest.get_mut(next.template)? = Some(self.first_ordinal);
        Some(())
    }

    /// Whether the part that has come to its end hands the cache back now.
    fn releases_now(&mut self) -> bool {
        let kind = self.current.and_then(|current| self.recording.parts().get(current.template)).map(|part| part.kind);
        let is_due = match self.releases {
            Releases::AsRecorded => false,
            Releases::EverySteps(every) => kind == Some(PartKind::Step) && self.steps.is_multiple_of(every.max(1)),
            Releases::AfterEvaluation => kind == Some(PartKind::Evaluation),
        };
        is_due && !std::mem::replace(&mut self.has_released, true)
    }

    fn translate(&mut self, event: Event) -> Option<Event> {
        let run_part = self.current?;
        let part = self.recording.parts().get(run_part.template)?;
        let own = self.first_ordinal;
        match event {
            Event::Alloc { ordinal, bytes, stream } => {
                let bytes = match &self.sizes {
                    Sizes::Recorded => bytes,
                    Sizes::OfBatch(sizes) => sizes.get(ordinal.0 as usize)?.at(run_part.batch_size),
                    Sizes::OfShape(shaped) => shaped.bytes(ordinal.0 as usize)?,
                };
                let ordinal = Ordinal(own + (ordinal.0 - part.allocations.start as u64));
                Some(Event::Alloc { ordinal, bytes, stream })
            }
            Event::Free { ordinal } if ordinal.0 >= part.allocations.start as u64 => {
                Some(Event::Free { ordinal: Ordinal(own + (ordinal.0 - part.allocations.start as u64)) })
            }
            Event::Free { ordinal } => self.earlier(ordinal, run_part.template),
            Event::Mark(Mark::Step(_)) => {
                let step = self.steps;
                self.steps = step.saturating_add(1);
                Some(Event::Mark(Mark::Step(step)))
            }
            Event::Mark(Mark::Phase(phase)) => {
                if let Sizes::OfShape(shaped) = &mut self.sizes {
                    shaped.enter(phase);
                }
                Some(event)
            }
            Event::Mark(Mark::Trim) => (self.releases == Releases::AsRecorded).then_some(event),
            Event::FreeRequested { .. } => Some(event),
        }
    }

    /// Micro-steps that the run has between two parts and the recording has not.
    fn inserted_between(&self, earlier: usize, later: usize) -> usize {
        match &self.script {
            Script::Written(_) => 0,
            Script::Long(script) => script.inserted_between(earlier, later),
        }
    }

    /// The free of something that an earlier part allocated: as many parts of its kind back as in the recording, if that one
    /// began alike; else where its template was last used. (What comes between, such as an evaluation pass, does not count:
    /// the loss of the step before is still that.) Where updates have more micro-steps than were recorded, what the first
    /// one leaves for the last, or for the next update to drop, is so many further back.
    fn earlier(&mut self, ordinal: Ordinal, template: usize) -> Option<Event> {
        let owner = self.recording.part_of_allocation(ordinal.0 as usize);
        let parts = self.recording.parts();
        let made_by = parts.get(owner)?;
        let number = ordinal.0 - made_by.allocations.start as u64;
        let is_of_its_kind = |template: usize| parts.get(template).is_some_and(|part| part.kind == made_by.kind);
        let back = parts.get(owner..template)?.iter().filter(|part| part.kind == made_by.kind).count();
        let inserted = if made_by.kind == PartKind::Step { self.inserted_between(owner, template) } else { 0 };
        let back = back.saturating_add(inserted);
        let found =
            self.before.iter().filter(|begun| is_of_its_kind(begun.template)).nth(back.checked_sub(1)?).copied();
        let found = found.filter(|begun| match self.sizes {
            Sizes::OfShape(_) => self.alike.at(self.recording, [owner, begun.template], number as usize),
            // Of recordings whose steps may have several sizes no more can be asked.
            Sizes::Recorded | Sizes::OfBatch(_) => {
                parts.get(begun.template).is_some_and(|part| part.allocations.len() == made_by.allocations.len())
            }
        });
        let first = found.map(|begun| begun.first_ordinal).or_else(|| *self.latest.get(owner)?)?;
        Some(Event::Free { ordinal: Ordinal(first + number) })
    }
}

impl Iterator for RunEvents<'_> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        loop {
            let Some(index) = self.cursor.next() else {
                if self.releases_now() {
                    return Some(Event::Mark(Mark::Trim));
                }
                self.begin_part()?;
                continue;
            };
            let event = *self.recording.events().get(index)?;
            // A free whose allocation this run does not make is left out.
            if let Some(event) = self.translate(event) {
                return Some(event);
            }
        }
    }
}
