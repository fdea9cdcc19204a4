//! Playing a run to a policy, and nothing else.
//!
//! [`Player`](crate::memory::Player) takes the events of anybody. Here they come from a run that numbers its allocations
//! one after the other, most of them freed soon: the addresses of the latest ones lie in a ring, where nothing has to be
//! looked up, and those of the few that stay (weights, the optimizer's state) in a table.

use std::collections::HashMap;

use crate::memory::event::{Event, Mark, Ordinal};
use crate::memory::policy::{Address, FastHash, OutOfMemory, Policy};

/// Places in the ring: 256 KiB, which stay in a core's cache.
const RING: usize = 1 << 14;

/// A policy with the live allocations of a run.
pub(super) struct RunPlayer {
    policy: Box<dyn Policy>,
    live: Live,
    events: u64,
}

impl RunPlayer {
    pub(super) fn new(policy: Box<dyn Policy>) -> Self {
        Self { policy, live: Live::default(), events: 0 }
    }

    /// Plays one event. A free of something that is not live is ignored.
    pub(super) fn play(&mut self, event: Event) -> Result<(), OutOfMemory> {
        self.events += 1;
        match event {
            Event::Alloc { ordinal, bytes, stream } => {
                let address = self.policy.allocate(bytes, stream)?;
                self.live.insert(ordinal, address);
            }
            Event::Free { ordinal } => {
                if let Some(address) = self.live.remove(ordinal) {
                    self.policy.free(address);
                }
            }
            Event::FreeRequested { ordinal } => {
                if let Some(address) = self.live.get(ordinal) {
                    self.policy.free_requested(address);
                }
            }
            Event::Mark(Mark::Trim) => self.policy.release_cached(),
            Event::Mark(Mark::Step(_)) => self.policy.synchronised(),
            Event::Mark(Mark::Phase(_)) => {}
        }
        Ok(())
    }

    /// Events played so far.
    pub(super) fn events(&self) -> u64 {
        self.events
    }

    pub(super) fn policy(&self) -> &dyn Policy {
        self.policy.as_ref()
    }

    pub(super) fn start_window(&mut self) {
        self.policy.reset_peaks();
    }

    /// What is live, in the order in which it was allocated.
    pub(super) fn live(&self) -> Vec<(Ordinal, Address)> {
        let mut live: Vec<(Ordinal, Address)> = self.live.iter().collect();
        live.sort_unstable();
        live
    }
}

/// Addresses by ordinal.
#[derive(Debug)]
struct Live {
    /// The latest of the ordinals that fall on a place.
    ring: Vec<Option<(Ordinal, Address)>>,
    /// Those that are live and were overtaken.
    old: HashMap<Ordinal, Address, FastHash>,
}

impl Default for Live {
    fn default() -> Self {
        Self { ring: vec![None; RING], old: HashMap::default() }
    }
}

impl Live {
    fn place(&mut self, ordinal: Ordinal) -> Option<&mut Option<(Ordinal, Address)>> {
        self.ring.get_mut(ordinal.0 as usize % RING)
    }

    fn insert(&mut self, ordinal: Ordinal, address: Address) {
        let overtaken = self.place(ordinal).and_then(|place| place.replace((ordinal, address)));
        if let Some((ordinal, address)) = overtaken {
            self.old.insert(ordinal, address);
        }
    }

    fn remove(&mut self, ordinal: Ordinal) -> Option<Address> {
        let here = self.place(ordinal).and_then(|place| place.take_if(|(there, _)| *there == ordinal));
        here.map(|(_, address)| address).or_else(|| self.old.remove(&ordinal))
    }

    fn get(&self, ordinal: Ordinal) -> Option<Address> {
        let here = self.ring.get(ordinal.0 as usize % RING).copied().flatten().filter(|(there, _)| *there == ordinal);
        here.map(|(_, address)| address).or_else(|| self.old.get(&ordinal).copied())
    }

    fn iter(&self) -> impl Iterator<Item = (Ordinal, Address)> {
        let old = self.old.iter().map(|(ordinal, address)| (*ordinal, *address));
        self.ring.iter().copied().flatten().chain(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_is_found_after_the_ring_has_gone_round() {
        let mut live = Live::default();
        for ordinal in 0..3 * RING as u64 {
            live.insert(Ordinal(ordinal), Address(ordinal + 7));
            if ordinal % 1000 != 0 {
                assert_eq!(live.remove(Ordinal(ordinal)), Some(Address(ordinal + 7)));
            }
        }
        assert_eq!(live.iter().count(), (3 * RING).div_ceil(1000));
        assert_eq!(live.get(Ordinal(1000)), Some(Address(1007)));
        assert_eq!((live.remove(Ordinal(2000)), live.remove(Ordinal(2000))), (Some(Address(2007)), None));
        assert_eq!((live.remove(Ordinal(5)), live.get(Ordinal(5))), (None, None));
    }
}
