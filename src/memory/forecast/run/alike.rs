//! Telling whether two parts of a recording made the same thing.

use std::collections::HashMap;

use crate::memory::event::{Event, Stream};
use crate::memory::forecast::recording::Recording;
use crate::memory::policy::FastHash;

/// Which allocations of two parts of one kind are the same thing, in a recording of one shape: a step that loads a batch for
/// evaluation at its end is like any other until then, and the first step until the optimizer makes its state.
#[derive(Clone, Debug, Default)]
pub(super) struct Alike {
    known: HashMap<[usize; 2], Vec<bool>, FastHash>,
}

impl Alike {
    /// What is held.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.known.values().map(Vec::len).sum()
    }

    /// Whether the allocations of this number in two parts are the same thing.
    pub(super) fn at(&mut self, recording: &Recording, parts: [usize; 2], number: usize) -> bool {
        let [one, other] = parts;
        if one == other {
            return true;
        }
        let known = self.known.entry(parts).or_insert_with(|| alike(recording, one, other));
        known.get(number).copied().unwrap_or(false)
    }
}

/// Those of equal size and stream, and single ones among them that are not: a workspace may have another size each time.
/// Where one part has more allocations than the other, what comes after the first difference is something else.
fn alike(recording: &Recording, one: usize, other: usize) -> Vec<bool> {
    let (one, other): (Vec<_>, Vec<_>) =
        (allocations_of(recording, one).collect(), allocations_of(recording, other).collect());
    let equal: Vec<bool> = one.iter().zip(&other).map(|(one, other)| one == other).collect();
    let is_equal = |place: Option<usize>| place.and_then(|place| equal.get(place)).copied().unwrap_or(false);
    let mut alike: Vec<bool> = (0..equal.len())
        .map(|place| is_equal(Some(place)) || (is_equal(place.checked_sub(1)) && is_equal(place.checked_add(1))))
        .collect();
    if one.len() != other.len() {
        let first = alike.iter().position(|is_alike| !is_alike).unwrap_or(alike.len());
        alike.truncate(first);
    }
    alike
}

fn allocations_of(recording: &Recording, part: usize) -> impl Iterator<Item = (u64, Stream)> {
    let range = recording.parts().get(part).map_or(0..0, |part| part.events.clone());
    let events = recording.events().get(range).unwrap_or_default();
    events.iter().filter_map(|event| match event {
        Event::Alloc { bytes, stream, .. } => Some((*bytes, *stream)),
        _ => None,
    })
}
