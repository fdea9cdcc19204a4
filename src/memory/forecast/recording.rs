//! A probe's events in canonical form, cut into the parts of a run.
//!
//! Two probes of one workload record the same program, but not the same file: pointers, ordinals and stream handles
//! are the process's own, hash maps drop their tensors in another order each time, and a recording that began late
//! holds frees of things it never saw allocated. The canonical form keeps what the program did and drops the rest:
//!
//! - allocations are numbered from 0 in their order, streams in the order of their first use;
//! - frees of unknown allocations are dropped, and an ordinal that is allocated again while live is freed first, as
//!   [`Player`](crate::memory::Player) does;
//! - steps are numbered from 0;
//! - consecutive frees are a set: they are sorted by the allocation they free. Between two allocations free blocks
//!   only join their neighbours, which comes to the same blocks in any order, so no figure of a replay depends on it.
//!
//! Marks cut the recording into [`Part`]s. The step is the unit that a run repeats. A batch that is loaded when a step has had
//! its forward pass, right before an evaluation pass, is the pass's own.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::memory::event::{Event, Mark, Ordinal, Phase, Stream};
use crate::memory::policy::FastHash;

/// What a part of a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// All of a recording without marks.
    Whole,
    /// Building the model, and what else comes before the first step.
    Build,
    /// One micro-batch, forward and backward, with the optimizer's step where an update ends.
    Step,
    /// A pass over held-out data.
    Evaluation,
    /// Writing weights and optimizer state.
    Checkpoint,
}

impl std::fmt::Display for PartKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Whole => "run",
            Self::Build => "build",
            Self::Step => "step",
            Self::Evaluation => "evaluation pass",
            Self::Checkpoint => "checkpoint",
        })
    }
}

/// A stretch of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is.
    pub kind: PartKind,
    /// Its events' places in the recording, marks included.
    pub events: Range<usize>,
    /// The ordinals of its allocations.
    pub allocations: Range<usize>,
    /// Whether the optimizer stepped in it, so that an update ends here.
    pub ends_update: bool,
}

/// A probe's events in canonical form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    events: Vec<Event>,
    parts: Vec<Part>,
    allocations: usize,
    dropped: usize,
}

impl Recording {
    /// Brings a recording into canonical form.
    pub fn of(events: &[Event]) -> Self {
        Self::collect(events.iter().copied())
    }

    /// The same from a stream of events.
    pub fn collect(events: impl Iterator<Item = Event>) -> Self {
        let mut renumbering = Renumbering::default();
        for event in events {
            renumbering.take(event);
        }
        renumbering.finish()
    }

    /// The events.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The parts, in order and without gaps.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The number of allocations.
    pub fn allocations(&self) -> usize {
        self.allocations
    }

    /// Events that were dropped because they free something unknown.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// The sizes, by ordinal.
    pub fn sizes(&self) -> impl Iterator<Item = u64> {
        self.events.iter().filter_map(|event| match event {
            Event::Alloc { bytes, .. } => Some(*bytes),
            _ => None,
        })
    }

    /// The part that an event is in.
    pub fn part_of_event(&self, event: usize) -> Option<&Part> {
        self.parts.get(self.parts.partition_point(|part| part.events.end <= event))
    }

    /// The part that made an allocation, by its place in [`parts`](Self::parts).
    pub(super) fn part_of_allocation(&self, ordinal: usize) -> usize {
        self.parts.partition_point(|part| part.allocations.end <= ordinal)
    }
}

impl Recording {
    /// The recording without what its program frees because it ends: the model, the optimizer's state, batches that were
    /// staged for a next step.
    ///
    /// A recording that ends with the program has these frees behind its last step, where they look like that step's own. A
    /// run that repeats the step must not free its model each time. A program has ended where what it built is freed at the
    /// end, and its frees are told by the step before, which is like the last one and goes on: those that have no
    /// counterpart there.
    #[must_use]
    pub(super) fn without_its_end(mut self) -> Self {
        let Some((last, others)) = self.parts.split_last() else { return self };
        let is_like = |part: &Part| part.kind == last.kind && part.allocations.len() == last.allocations.len();
        let Some(before) = others.iter().rposition(is_like) else { return self };
        let (place, end) = (others.len(), last.events.end);
        let usual: HashSet<Origin> =
            self.events_of(before).iter().filter_map(freed).map(|ordinal| self.origin(before, ordinal)).collect();
        let is_usual = |event: &Event| freed(event).is_none_or(|ordinal| usual.contains(&self.origin(place, ordinal)));
        let tail = self.events_of(place).iter().rev().take_while(|event| freed(event).is_some()).count();
        let begin = end - tail;
        let has_ended =
            self.events.get(begin..).unwrap_or_default().iter().filter(|event| !is_usual(event)).any(|event| {
                let owner = freed(event).map(|ordinal| self.part_of_allocation(ordinal.0 as usize));
                owner.and_then(|owner| self.parts.get(owner)).is_some_and(|part| part.kind == PartKind::Build)
            });
        if !has_ended {
            return self;
        }
        let kept: Vec<Event> = self.events.get(begin..).unwrap_or_default().iter().copied().filter(is_usual).collect();
        self.events.truncate(begin);
        self.events.extend(kept);
        let end = self.events.len();
        if let Some(last) = self.parts.last_mut() {
            last.events.end = end;
        }
        self
    }

    fn events_of(&self, part: usize) -> &[Event] {
        self.parts.get(part).and_then(|part| self.events.get(part.events.clone())).unwrap_or_default()
    }

    /// What a free in a part frees, in terms that are the same for parts that do the same.
    fn origin(&self, part: usize, ordinal: Ordinal) -> Origin {
        let owner = self.part_of_allocation(ordinal.0 as usize);
        let made_by = self.parts.get(owner);
        let kind = made_by.map(|part| part.kind);
        let later = self.parts.get(owner..part).unwrap_or_default();
        let back = later.iter().filter(|part| Some(part.kind) == kind).count();
        (kind, back, ordinal.0 - made_by.map_or(0, |part| part.allocations.start as u64))
    }
}

/// The kind of part that made an allocation, how many of that kind ago, and which of its allocations it was.
type Origin = (Option<PartKind>, usize, u64);

/// The work of [`Recording::collect`].
#[derive(Default)]
struct Renumbering {
    recording: Recording,
    live: HashMap<Ordinal, Ordinal, FastHash>,
    streams: HashMap<Stream, Stream, FastHash>,
    steps: u32,
    is_past_forward: bool,
    /// Events and allocations before the load that came last in a step, after all else of it.
    load: Option<(usize, usize)>,
}

impl Renumbering {
    fn take(&mut self, event: Event) {
        match event {
            Event::Alloc { ordinal, bytes, stream } => {
                let known = self.streams.len() as u64;
                let stream = *self.streams.entry(stream).or_insert(Stream(known));
                let number = Ordinal(self.recording.allocations as u64);
                if let Some(before) = self.live.insert(ordinal, number) {
                    self.push(Event::Free { ordinal: before });
                }
                self.recording.allocations += 1;
                self.push(Event::Alloc { ordinal: number, bytes, stream });
            }
            Event::Free { ordinal } => match self.live.remove(&ordinal) {
                Some(ordinal) => self.push(Event::Free { ordinal }),
                None => self.recording.dropped += 1,
            },
            // What the memory was asked for back and when it came are two things; only the second moves it.
            Event::FreeRequested { .. } => {}
            Event::Mark(mark) => self.mark(mark),
        }
    }

    fn mark(&mut self, mark: Mark) {
        let kind = match mark {
            Mark::Step(_) => Some(PartKind::Step),
            Mark::Phase(Phase::Build) => Some(PartKind::Build),
            Mark::Phase(Phase::Evaluation) => Some(PartKind::Evaluation),
            Mark::Phase(Phase::Checkpoint) => Some(PartKind::Checkpoint),
            Mark::Phase(_) | Mark::Trim => None,
        };
        let current = self.recording.parts.last().map(|part| part.kind);
        match kind {
            // A pass over many batches marks its phase for each of them.
            Some(kind) if kind == PartKind::Step || current != Some(kind) => self.open(kind),
            _ => {}
        }
        match mark {
            Mark::Phase(Phase::Load) if self.is_past_forward && self.load.is_none() => self.load = Some(self.here()),
            Mark::Phase(Phase::Load) | Mark::Step(_) | Mark::Trim => {}
            Mark::Phase(phase) => {
                self.is_past_forward |= phase == Phase::Forward;
                self.load = None;
            }
        }
        self.push(Event::Mark(match mark {
            Mark::Step(_) => Mark::Step(self.steps),
            other @ (Mark::Phase(_) | Mark::Trim) => other,
        }));
        self.steps = self.steps.saturating_add(u32::from(kind == Some(PartKind::Step)));
        if mark == Mark::Phase(Phase::Optimizer)
            && let Some(part) = self.recording.parts.last_mut()
        {
            part.ends_update = true;
        }
    }

    /// Events and allocations so far.
    fn here(&self) -> (usize, usize) {
        (self.recording.events.len(), self.recording.allocations)
    }

    /// Begins a part here, or where the batch of a pass was loaded. What came before the first mark is the build.
    fn open(&mut self, kind: PartKind) {
        let load = self.load.take().filter(|_| kind == PartKind::Evaluation);
        let (event, allocation) = load.unwrap_or_else(|| self.here());
        self.is_past_forward = false;
        if let Some(part) = self.recording.parts.last_mut() {
            part.events.end = event;
            part.allocations.end = allocation;
            if part.kind == PartKind::Whole {
                part.kind = PartKind::Build;
                if kind == PartKind::Build {
                    return;
                }
            }
        }
        let (events, allocations) = (event..event, allocation..allocation);
        self.recording.parts.push(Part { kind, events, allocations, ends_update: false });
    }

    fn push(&mut self, event: Event) {
        if self.recording.parts.is_empty() {
            self.recording.parts.push(Part {
                kind: PartKind::Whole,
                events: 0..0,
                allocations: 0..0,
                ends_update: false,
            });
        }
        self.recording.events.push(event);
    }

    fn finish(self) -> Recording {
        let mut recording = self.recording;
        if let Some(part) = recording.parts.last_mut() {
            part.events.end = recording.events.len();
            part.allocations.end = recording.allocations;
        }
        let runs = recording.events.chunk_by_mut(|left, right| freed(left).is_some() && freed(right).is_some());
        for run in runs.filter(|run| run.len() > 1) {
            run.sort_unstable_by_key(freed);
        }
        recording
    }
}

fn freed(event: &Event) -> Option<Ordinal> {
    match event {
        Event::Free { ordinal } => Some(*ordinal),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alloc(ordinal: u64, stream: u64) -> Event {
        Event::Alloc { ordinal: Ordinal(ordinal), bytes: 512, stream: Stream(stream) }
    }

    fn free(ordinal: u64) -> Event {
        Event::Free { ordinal: Ordinal(ordinal) }
    }

    fn phase(phase: Phase) -> Event {
        Event::Mark(Mark::Phase(phase))
    }

    fn step(number: u32) -> Event {
        Event::Mark(Mark::Step(number))
    }

    #[test]
    fn what_a_program_frees_because_it_ends_is_not_its_last_step_s() {
        // A weight; each step makes a moment in place of the one before, and a batch that it drops behind its last request.
        let mut events = vec![phase(Phase::Build), alloc(0, 0), alloc(1, 0)];
        for number in 0..3_u64 {
            let (moment, batch) = (2 + 2 * number, 3 + 2 * number);
            let before = if number == 0 { 1 } else { moment - 2 };
            events.extend([step(number as u32), alloc(moment, 0), alloc(batch, 0), free(before), free(batch)]);
        }
        let going_on = Recording::of(&events);
        assert_eq!(going_on.clone().without_its_end(), going_on);
        let ended: Vec<Event> = events.iter().copied().chain([free(0), free(6)]).collect();
        assert_ne!(Recording::of(&ended), going_on);
        // A step's own, though the one before has none.
        let own = Recording::of(&[&events[..], &[free(6)]].concat());
        assert_eq!(own.clone().without_its_end(), own);
        assert_eq!(Recording::of(&ended).without_its_end(), going_on);
        // Nothing is like the only step.
        let single = Recording::of(&[alloc(0, 0), step(0), alloc(1, 0), free(0), free(1)]);
        assert_eq!(single.clone().without_its_end(), single);
        assert_eq!(Recording::default().without_its_end(), Recording::default());
    }

    #[test]
    fn the_process_own_numbers_and_orders_do_not_show() {
        let one = Recording::of(&[alloc(70, 9), alloc(8, 4), alloc(3, 9), free(3), free(70), free(8)]);
        let other = Recording::of(&[alloc(0, 1), alloc(1, 7), alloc(2, 1), free(1), free(2), free(0)]);
        assert_eq!(one, other);
        assert_eq!(one.events()[1], alloc(1, 1));
    }

    #[test]
    fn a_free_is_not_sorted_across_an_allocation() {
        let recording = Recording::of(&[alloc(0, 0), alloc(1, 0), free(1), alloc(2, 0), free(0)]);
        assert_eq!(recording.events()[2..], [free(1), alloc(2, 0), free(0)]);
    }

    #[test]
    fn frees_of_the_unknown_are_dropped_and_a_repeated_ordinal_is_freed_first() {
        let recording = Recording::of(&[free(5), alloc(1, 0), alloc(1, 0), free(1), free(1)]);
        assert_eq!(recording.events(), [alloc(0, 0), free(0), alloc(1, 0), free(1)]);
        assert_eq!((recording.dropped(), recording.allocations()), (2, 2));
    }

    #[test]
    fn marks_cut_a_recording_into_parts() {
        let step = |n| Event::Mark(Mark::Step(n));
        let recording = Recording::of(&[
            alloc(0, 0),
            phase(Phase::Build),
            alloc(1, 0),
            step(0),
            phase(Phase::Forward),
            alloc(2, 0),
            step(1),
            phase(Phase::Optimizer),
            phase(Phase::Evaluation),
            alloc(3, 0),
            phase(Phase::Evaluation),
            phase(Phase::Checkpoint),
        ]);
        let parts: Vec<_> =
            recording.parts().iter().map(|part| (part.kind, part.allocations.clone(), part.ends_update)).collect();
        assert_eq!(
            parts,
            [
                (PartKind::Build, 0..2, false),
                (PartKind::Step, 2..3, false),
                (PartKind::Step, 3..3, true),
                (PartKind::Evaluation, 3..4, false),
                (PartKind::Checkpoint, 4..4, false),
            ]
        );
        assert_eq!(recording.part_of_allocation(3), 3);
        assert_eq!(recording.parts().last().unwrap().events, 11..12);
    }

    #[test]
    fn a_recording_without_marks_is_one_part() {
        let recording = Recording::of(&[alloc(0, 0), free(0)]);
        assert_eq!(recording.parts().len(), 1);
        assert_eq!(recording.parts()[0].kind, PartKind::Whole);
        assert!(Recording::of(&[]).parts().is_empty());
    }
}
