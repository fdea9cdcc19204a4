//! Making a run's events from its script, one at a time.

use std::collections::VecDeque;
use std::ops::Range;

use super::RunPart;
use super::long_script::LongScript;
use super::shaped::Shaped;
use crate::memory::event::{Event, Mark, Ordinal};
use crate::memory::forecast::recording::Recording;
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
    next_ordinal: u64,
    steps: u32,
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
    pub(in crate::memory::forecast) fn shaped(recording: &'a Recording, sizes: Shaped<'a>, script: LongScript) -> Self {
        Self::with(recording, Sizes::OfShape(sizes), Script::Long(Box::new(script)))
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
            next_ordinal: 0,
            steps: 0,
        }
    }

    /// The part that the last event came from, with its place in the run.
    pub fn part(&self) -> Option<(usize, RunPart)> {
        self.current.map(|part| (self.place, part))
    }

    /// Begins the next part. `None` at the end of the run.
    fn begin_part(&mut self) -> Option<()> {
        let next = self.script.next()?;
        let part = self.recording.parts().get(next.template)?;
        if let Some(current) = self.current.replace(next) {
            self.place += 1;
            self.before.push_front(Begun { template: current.template, first_ordinal: self.first_ordinal });
            // No free looks further back than the recording is long, with two interludes between any two of its parts.
            self.before.truncate(3 * self.latest.len());
        }
        self.first_ordinal = self.next_ordinal;
        self.next_ordinal += part.allocations.len() as u64;
        self.cursor = part.events.clone();
        if let Sizes::OfShape(shaped) = &mut self.sizes {
            shaped.begin(part.kind);
        }
        *self.latest.get_mut(next.template)? = Some(self.first_ordinal);
        Some(())
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
            other @ (Event::FreeRequested { .. } | Event::Mark(Mark::Trim)) => Some(other),
        }
    }

    /// The free of something that an earlier part allocated: as many parts of its kind back as in the recording, if what is
    /// there is alike; else where its template was last used. (What comes between, such as an evaluation pass, does not
    /// count: a loss of the step before is still that.)
    fn earlier(&self, ordinal: Ordinal, template: usize) -> Option<Event> {
        let owner = self.recording.part_of_allocation(ordinal.0 as usize);
        let parts = self.recording.parts();
        let made_by = parts.get(owner)?;
        let kind_of = |template: usize| parts.get(template).map(|part| part.kind);
        let is_alike = |begun: &&Begun| {
            let Some(part) = parts.get(begun.template) else { return false };
            begun.template == owner
                || (part.kind == made_by.kind && part.allocations.len() == made_by.allocations.len())
        };
        let back = parts.get(owner..template)?.iter().filter(|part| part.kind == made_by.kind).count();
        let mut of_its_kind = self.before.iter().filter(|begun| kind_of(begun.template) == Some(made_by.kind));
        let found = of_its_kind.nth(back.checked_sub(1)?).filter(is_alike).map(|begun| begun.first_ordinal);
        let first = found.or_else(|| *self.latest.get(owner)?)?;
        Some(Event::Free { ordinal: Ordinal(first + (ordinal.0 - made_by.allocations.start as u64)) })
    }
}

impl Iterator for RunEvents<'_> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        loop {
            let Some(index) = self.cursor.next() else {
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
