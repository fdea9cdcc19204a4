//! Making a run's events from its script, one at a time.

use std::ops::Range;

use super::RunPart;
use super::shaped::Shaped;
use crate::memory::event::{Event, Mark, Ordinal};
use crate::memory::forecast::recording::Recording;
use crate::memory::forecast::size::Size;

/// The events of a run, made one at a time.
#[derive(Clone, Debug)]
pub struct RunEvents<'a> {
    recording: &'a Recording,
    sizes: Sizes<'a>,
    script: Vec<RunPart>,
    /// Where the next event comes from.
    cursor: Range<usize>,
    /// The first ordinal of each part begun so far.
    first_ordinals: Vec<u64>,
    /// The place in the script where each template was last begun.
    latest: Vec<Option<usize>>,
    next_ordinal: u64,
    steps: u32,
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
        Self::with(recording, sizes.map_or(Sizes::Recorded, Sizes::OfBatch), script)
    }

    /// The same with a shape for each step.
    pub(in crate::memory::forecast) fn shaped(
        recording: &'a Recording,
        sizes: Shaped<'a>,
        script: Vec<RunPart>,
    ) -> Self {
        Self::with(recording, Sizes::OfShape(sizes), script)
    }

    fn with(recording: &'a Recording, sizes: Sizes<'a>, script: Vec<RunPart>) -> Self {
        Self {
            recording,
            sizes,
            script,
            cursor: 0..0,
            first_ordinals: Vec::new(),
            latest: vec![None; recording.parts().len()],
            next_ordinal: 0,
            steps: 0,
        }
    }

    /// The part that the last event came from, with its place in the run.
    pub fn part(&self) -> Option<(usize, RunPart)> {
        let place = self.first_ordinals.len().checked_sub(1)?;
        self.script.get(place).map(|part| (place, *part))
    }

    /// Begins the next part. `None` at the end of the run.
    fn begin_part(&mut self) -> Option<()> {
        let place = self.first_ordinals.len();
        let template = self.script.get(place)?.template;
        let part = self.recording.parts().get(template)?;
        self.first_ordinals.push(self.next_ordinal);
        self.next_ordinal += part.allocations.len() as u64;
        self.cursor = part.events.clone();
        if let Sizes::OfShape(shaped) = &mut self.sizes {
            shaped.begin(part.kind);
        }
        *self.latest.get_mut(template)? = Some(place);
        Some(())
    }

    fn translate(&mut self, event: Event) -> Option<Event> {
        let (place, run_part) = self.part()?;
        let part = self.recording.parts().get(run_part.template)?;
        let own = self.first_ordinals.get(place)?;
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
            Event::Free { ordinal } => self.earlier(ordinal, run_part.template, place),
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

    /// The free of something that an earlier part allocated: as many parts back as in the recording, if what is
    /// there is alike; else where its template was last used.
    fn earlier(&self, ordinal: Ordinal, template: usize, place: usize) -> Option<Event> {
        let owner = self.recording.part_of_allocation(ordinal.0 as usize);
        let parts = self.recording.parts();
        let made_by = parts.get(owner)?;
        let is_alike = |candidate: &usize| {
            self.script.get(*candidate).is_some_and(|there| {
                let Some(part) = parts.get(there.template) else { return false };
                there.template == owner
                    || (part.kind == made_by.kind && part.allocations.len() == made_by.allocations.len())
            })
        };
        let back = template.checked_sub(owner)?;
        let found = place.checked_sub(back).filter(is_alike).or_else(|| *self.latest.get(owner)?)?;
        let first = self.first_ordinals.get(found)?;
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
