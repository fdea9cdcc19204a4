//! More micro-steps an update than were recorded.
//!
//! The first micro-step of an update leaves its gradients, those after it add to what is there, and the last one hands the
//! sum to the optimizer. So the one that can come any number of times is a middle one *after another middle one*: it drops the
//! sum that a step like itself has left. A recording with three micro-steps an update has no such step, but it shows all
//! that is needed: the middle step tells what is allocated and when, and the last one tells when the middle one's is dropped.
//! [`Doubled`] puts the two together.
//!
//! What outlives the step after its own (a list of losses that is kept to the end of the update) is freed at a place that
//! depends on how many steps there are. No rule is guessed for it: such a recording gives no other accumulation.

use std::collections::{HashMap, HashSet};

use super::Updates;
use crate::memory::event::{Event, Ordinal};
use crate::memory::forecast::recording::{Part, PartKind, Recording};

/// Where the numbers of the copies begin: above those of any recording.
const COPIES: u64 = 1 << 48;

/// A recording of three micro-steps an update as one of four, its middle step coming twice.
#[derive(Clone, Debug)]
pub(in crate::memory::forecast) struct Doubled {
    pub(in crate::memory::forecast) recording: Recording,
    /// The allocation of the first recording that each of this one has the size of.
    pub(in crate::memory::forecast) of: Vec<usize>,
}

impl Doubled {
    /// `None` where updates have another number of steps, or steps that are not like each other. `is_alike` says whether two
    /// allocations have one size, whatever the shape.
    pub(in crate::memory::forecast) fn of(
        recording: &Recording,
        is_alike: impl Fn(usize, usize) -> bool,
    ) -> Option<Self> {
        let parts = recording.parts();
        let mut middles = HashSet::new();
        for update in &Updates::of(recording).complete {
            let is_step = |place: &&usize| parts.get(**place).is_some_and(|part| part.kind == PartKind::Step);
            let steps: Vec<usize> = update.iter().filter(is_step).copied().collect();
            let [_, middle, last] = steps[..] else { return None };
            let (here, there) = (parts.get(middle)?, parts.get(last)?);
            let are_alike = here.allocations.len() <= there.allocations.len()
                && here.allocations.clone().zip(there.allocations.clone()).all(|(one, other)| is_alike(one, other));
            if last != middle + 1 || !are_alike || !ends_with_the_next(recording, middle) {
                return None;
            }
            middles.insert(middle);
        }
        if middles.is_empty() {
            return None;
        }
        let mut doubling = Doubling { recording, events: Vec::new(), of: Vec::new() };
        for (place, part) in parts.iter().enumerate() {
            let follows = place.checked_sub(1).filter(|before| middles.contains(before)).and_then(|it| parts.get(it));
            if let Some(middle) = follows {
                doubling.copy(middle, part)?;
            }
            doubling.write(part, follows)?;
        }
        Some(Self { recording: Recording::collect(doubling.events.into_iter()), of: doubling.of })
    }
}

/// Whether all that a step allocates is freed in it or in the step that follows directly.
pub(super) fn ends_with_the_next(recording: &Recording, place: usize) -> bool {
    let parts = recording.parts();
    let (Some(part), Some(next)) = (parts.get(place), parts.get(place + 1)) else { return false };
    let both = recording.events().get(part.events.start..next.events.end).unwrap_or_default();
    let freed = both.iter().filter_map(freed).filter(|ordinal| is_of(part, *ordinal)).count();
    next.kind == PartKind::Step && freed == part.allocations.len()
}

fn freed(event: &Event) -> Option<Ordinal> {
    match event {
        Event::Free { ordinal } => Some(*ordinal),
        _ => None,
    }
}

fn is_of(part: &Part, ordinal: Ordinal) -> bool {
    part.allocations.contains(&(ordinal.0 as usize))
}

/// The work of [`Doubled::of`].
struct Doubling<'a> {
    recording: &'a Recording,
    events: Vec<Event>,
    of: Vec<usize>,
}

impl Doubling<'_> {
    fn events_of(&self, part: &Part) -> Vec<Event> {
        self.recording.events().get(part.events.clone()).unwrap_or_default().to_vec()
    }

    /// Writes a part as it was. After a copied step, what it frees of that one is the copy's.
    fn write(&mut self, part: &Part, copied: Option<&Part>) -> Option<()> {
        for event in self.events_of(part) {
            let event = match event {
                Event::Free { ordinal } if copied.is_some_and(|copied| is_of(copied, ordinal)) => {
                    Event::Free { ordinal: Ordinal(ordinal.0.checked_add(COPIES)?) }
                }
                Event::Alloc { ordinal, .. } => {
                    self.of.push(ordinal.0 as usize);
                    event
                }
                other => other,
            };
            self.events.push(event);
        }
        Some(())
    }

    /// Writes a middle step once more. What it frees of the step before it is what the last one frees of the middle one,
    /// after as many allocations.
    fn copy(&mut self, middle: &Part, last: &Part) -> Option<()> {
        let mut due: HashMap<usize, Vec<Event>> = HashMap::new();
        let mut allocations = 0;
        for event in self.events_of(last) {
            match event {
                Event::Alloc { .. } => allocations += 1,
                Event::Free { ordinal } if is_of(middle, ordinal) => {
                    due.entry(allocations.min(middle.allocations.len())).or_default().push(event);
                }
                _ => {}
            }
        }
        let mut allocations = 0;
        for event in self.events_of(middle) {
            match event {
                Event::Alloc { ordinal, bytes, stream } => {
                    self.events.extend(due.remove(&allocations).unwrap_or_default());
                    allocations += 1;
                    self.of.push(ordinal.0 as usize);
                    let ordinal = Ordinal(ordinal.0.checked_add(COPIES)?);
                    self.events.push(Event::Alloc { ordinal, bytes, stream });
                }
                Event::Free { ordinal } if is_of(middle, ordinal) => {
                    self.events.push(Event::Free { ordinal: Ordinal(ordinal.0.checked_add(COPIES)?) });
                }
                // Of the step before it, which has gone by.
                Event::Free { .. } => {}
                other => self.events.push(other),
            }
        }
        self.events.extend(due.remove(&allocations).unwrap_or_default());
        Some(())
    }
}
