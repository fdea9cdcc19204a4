//! Plays events to a policy and keeps what the policy itself does not know.
//!
//! A policy speaks of addresses, a recording of ordinals. The player maps one to the other, keeps the largest request
//! of the current window, and remembers the first request that did not fit. It goes on after such a request: on the
//! virtual device the memory exists all the same and its free will come.

use std::collections::HashMap;

use super::event::{Event, Mark, Ordinal, Stream};
use super::policy::{Address, FastHash, OutOfMemory, Policy, PoolState};

/// The first request that did not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun {
    /// The number of the event, counted from 0.
    pub event: u64,
    /// The figures at that moment.
    pub error: OutOfMemory,
}

/// A policy with the events of one recording.
pub struct Player {
    policy: Box<dyn Policy>,
    addresses: HashMap<Ordinal, Address, FastHash>,
    events: u64,
    largest_request_bytes: u64,
    overrun: Option<Overrun>,
}

impl Player {
    /// A player at the start of a recording.
    pub fn new(policy: Box<dyn Policy>) -> Self {
        Self { policy, addresses: HashMap::default(), events: 0, largest_request_bytes: 0, overrun: None }
    }

    /// Plays events in their order.
    pub fn play_all(&mut self, events: &[Event]) {
        for event in events {
            self.play(event);
        }
    }

    /// Plays one event. A free of something that is not live is ignored; an ordinal that is allocated twice is freed
    /// first, so that nothing is held that no event can free.
    pub fn play(&mut self, event: &Event) {
        match *event {
            Event::Alloc { ordinal, bytes, stream } => self.allocate(ordinal, bytes, stream),
            Event::Free { ordinal } => self.free(ordinal),
            Event::FreeRequested { ordinal } => {
                if let Some(address) = self.address(ordinal) {
                    self.policy.free_requested(address);
                }
            }
            Event::Mark(Mark::Trim) => self.policy.release_cached(),
            Event::Mark(Mark::Step(_)) => self.policy.synchronised(),
            Event::Mark(Mark::Phase(_)) => {}
        }
        self.events += 1;
    }

    fn allocate(&mut self, ordinal: Ordinal, bytes: u64, stream: Stream) {
        self.largest_request_bytes = self.largest_request_bytes.max(bytes);
        self.free(ordinal);
        match self.policy.allocate(bytes, stream) {
            Ok(address) => {
                self.addresses.insert(ordinal, address);
            }
            Err(error) => {
                self.overrun.get_or_insert(Overrun { event: self.events, error });
            }
        }
    }

    fn free(&mut self, ordinal: Ordinal) {
        if let Some(address) = self.addresses.remove(&ordinal) {
            self.policy.free(address);
        }
    }

    /// Where a live allocation is.
    pub fn address(&self, ordinal: Ordinal) -> Option<Address> {
        self.addresses.get(&ordinal).copied()
    }

    /// Allocations that are placed and not freed.
    pub fn live(&self) -> usize {
        self.addresses.len()
    }

    /// Events played so far, marks included.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The largest request since the last [`start_window`](Self::start_window).
    pub fn largest_request_bytes(&self) -> u64 {
        self.largest_request_bytes
    }

    /// Starts a new window for the peaks and the largest request.
    pub fn start_window(&mut self) {
        self.policy.reset_peaks();
        self.largest_request_bytes = 0;
    }

    /// The first request that did not fit, forgotten once it is taken.
    pub fn take_overrun(&mut self) -> Option<Overrun> {
        self.overrun.take()
    }

    /// The policy's figures.
    pub fn state(&self) -> PoolState {
        self.policy.state()
    }

    /// The policy.
    pub fn policy(&self) -> &dyn Policy {
        self.policy.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::policy::native::Native;
    use crate::units::MIB;

    fn alloc(ordinal: u64, bytes: u64) -> Event {
        Event::Alloc { ordinal: Ordinal(ordinal), bytes, stream: Stream(0) }
    }

    fn free(ordinal: u64) -> Event {
        Event::Free { ordinal: Ordinal(ordinal) }
    }

    fn player(limit_bytes: u64) -> Player {
        Player::new(Box::new(Native::new(limit_bytes)))
    }

    #[test]
    fn the_first_overrun_is_kept_and_the_recording_goes_on() {
        let mut player = player(40 * MIB);
        player.play_all(&[alloc(0, 30 * MIB), alloc(1, 20 * MIB), alloc(2, 60 * MIB), free(1), alloc(3, MIB)]);
        let overrun = player.take_overrun().unwrap();
        assert_eq!((overrun.event, overrun.error.requested_bytes), (1, 20 * MIB));
        assert_eq!(overrun.error.allocated_bytes, 30 * MIB);
        assert_eq!(player.take_overrun(), None);
        assert_eq!(player.live(), 2);
        assert_eq!(player.state().requested_bytes, 31 * MIB);
    }

    #[test]
    fn windows_have_their_own_largest_request_and_peaks() {
        let mut player = player(u64::MAX);
        player.play_all(&[alloc(0, 8 * MIB), free(0)]);
        assert_eq!((player.largest_request_bytes(), player.state().peak_allocated_bytes), (8 * MIB, 8 * MIB));
        player.start_window();
        player.play_all(&[alloc(1, 512)]);
        assert_eq!((player.largest_request_bytes(), player.state().peak_allocated_bytes), (512, 512));
    }

    #[test]
    fn events_of_a_hostile_trace_hold_nothing_for_ever() {
        let mut player = player(u64::MAX);
        player.play_all(&[free(7), alloc(1, 1024), alloc(1, 2048), free(1), free(1), alloc(2, u64::MAX), free(2)]);
        assert_eq!((player.live(), player.state().allocated_bytes), (0, 0));
    }
}
