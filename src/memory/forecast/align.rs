//! Aligning two recordings event by event.
//!
//! Two probes align when they did the same things in the same order to corresponding allocations, and only the sizes
//! differ. In canonical form that is equality of everything but sizes, so an allocation of one probe corresponds to
//! the one of the same ordinal in the other. What breaks it in practice: cuDNN choosing another algorithm for another
//! batch (a workspace more or less), variables handed to the optimizer in hash order, a batch of 1.

use std::fmt;

use super::recording::{PartKind, Recording};
use crate::memory::event::Event;
use crate::units::Bytes;

/// Where and why two recordings first differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The batch sizes of the two probes.
    pub batch_sizes: [usize; 2],
    /// The place of the first events that differ, counted from 0, in canonical form.
    pub event: usize,
    /// The part of the run it is in: its kind and how many of that kind came before.
    pub part: Option<(PartKind, usize)>,
    /// What each probe has there; `None` where it has ended.
    pub found: [Option<Event>; 2],
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = self.batch_sizes;
        write!(f, "the probes at batch {first} and {second} {}", self.place())
    }
}

impl Difference {
    /// Where they differ and what each has there: what follows the names of the two.
    pub fn place(&self) -> impl fmt::Display {
        Place(*self)
    }
}

struct Place(Difference);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { event, part, found, .. } = self.0;
        write!(f, "differ at event {event}")?;
        match part {
            Some((PartKind::Step, number)) => write!(f, " (step {number})")?,
            Some((PartKind::Build, _)) => f.write_str(" (build)")?,
            Some((PartKind::Evaluation, _)) => f.write_str(" (evaluation)")?,
            Some((PartKind::Checkpoint, _)) => f.write_str(" (checkpoint)")?,
            Some((PartKind::Whole, _)) | None => {}
        }
        let [here, there] = found;
        f.write_str(": one ")?;
        describe(f, here)?;
        f.write_str(", the other ")?;
        describe(f, there)
    }
}

fn describe(f: &mut fmt::Formatter<'_>, event: Option<Event>) -> fmt::Result {
    match event {
        Some(Event::Alloc { bytes, stream, .. }) => write!(f, "allocates {} on stream {}", Bytes(bytes), stream.0),
        Some(Event::Free { ordinal }) => write!(f, "frees allocation {}", ordinal.0),
        Some(Event::FreeRequested { ordinal }) => write!(f, "asks to free allocation {}", ordinal.0),
        Some(Event::Mark(mark)) => write!(f, "marks {mark:?}"),
        None => f.write_str("has ended"),
    }
}

/// Checks that two recordings align.
pub fn align(batch_sizes: [usize; 2], first: &Recording, second: &Recording) -> Result<(), Difference> {
    let (left, right) = (first.events(), second.events());
    let shared = left.iter().zip(right).position(|(left, right)| !corresponds(left, right));
    let event = match shared {
        Some(event) => event,
        None if left.len() == right.len() => return Ok(()),
        None => left.len().min(right.len()),
    };
    let longer = if left.len() >= right.len() { first } else { second };
    let part = longer.part_of_event(event).map(|part| {
        let before = longer.parts().iter().take_while(|other| other.events.end <= part.events.start);
        (part.kind, before.filter(|other| other.kind == part.kind).count())
    });
    Err(Difference { batch_sizes, event, part, found: [left.get(event).copied(), right.get(event).copied()] })
}

/// Whether two events are the same but for the size.
fn corresponds(left: &Event, right: &Event) -> bool {
    match (left, right) {
        (Event::Alloc { stream: left, .. }, Event::Alloc { stream: right, .. }) => left == right,
        (left, right) => left == right,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::event::{Mark, Ordinal, Stream};

    fn recording(sizes: [u64; 2], tail: &[Event]) -> Recording {
        let alloc = |ordinal: usize| Event::Alloc {
            ordinal: Ordinal(ordinal as u64),
            bytes: sizes[ordinal],
            stream: Stream(0),
        };
        let mut events = vec![alloc(0), Event::Mark(Mark::Step(0)), alloc(1)];
        events.extend_from_slice(tail);
        Recording::of(&events)
    }

    fn free(ordinal: u64) -> Event {
        Event::Free { ordinal: Ordinal(ordinal) }
    }

    #[test]
    fn sizes_and_the_order_of_frees_do_not_matter() {
        let (first, second) = (recording([8, 8], &[free(0), free(1)]), recording([8, 12], &[free(1), free(0)]));
        assert_eq!(align([2, 3], &first, &second), Ok(()));
    }

    #[test]
    fn the_first_difference_is_named() {
        let difference = align([2, 3], &recording([8, 8], &[free(0)]), &recording([8, 12], &[free(1)])).unwrap_err();
        assert_eq!((difference.event, difference.part), (3, Some((PartKind::Step, 0))));
        assert_eq!(
            difference.to_string(),
            "the probes at batch 2 and 3 differ at event 3 (step 0): one frees allocation 0, the other frees allocation 1"
        );
    }

    #[test]
    fn a_shorter_recording_does_not_align() {
        let difference = align([2, 3], &recording([8, 8], &[]), &recording([8, 12], &[free(1)])).unwrap_err();
        assert_eq!(difference.found, [None, Some(free(1))]);
        assert_eq!(difference.part, Some((PartKind::Step, 0)));
    }
}
