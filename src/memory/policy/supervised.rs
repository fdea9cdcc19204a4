//! A policy under supervision: its cache is handed back every so many steps, and it is stopped where playing on is idle.
//!
//! A run is played through [`Policy`] alone, so this is where a play can be ended early: from the moment that it holds
//! more than may win, or that somebody asked to leave, every request fails, and a failed request ends a play. The one who
//! plays tells the two from a true out of memory by [`Stop`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Address, Counts, Fingerprint, OutOfMemory, Policy, PoolState};
use crate::memory::event::Stream;

/// How a play is told to stop, and whether it did.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    is_wanted: Arc<AtomicBool>,
    is_outdone: Arc<AtomicBool>,
}

impl Stop {
    /// Ends the play at its next step.
    pub fn want(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
    }

    /// Whether somebody wants it to end.
    pub fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// Whether the play ended since it held more than may win.
    pub fn is_outdone(&self) -> bool {
        self.is_outdone.load(Ordering::Relaxed)
    }
}

/// The allocator of one play.
pub struct Supervised {
    inner: Box<dyn Policy>,
    trim_every: Option<u32>,
    /// Step marks so far.
    steps: u32,
    /// V above which the play is lost.
    bound_bytes: u64,
    segments_seen: u64,
    has_ended: bool,
    stop: Stop,
}

impl Supervised {
    /// This policy, until the stop is wanted.
    pub fn new(inner: Box<dyn Policy>, stop: Stop) -> Self {
        Self { inner, trim_every: None, steps: 0, bound_bytes: u64::MAX, segments_seen: 0, has_ended: false, stop }
    }

    /// The same with its cache handed back every so many steps.
    #[must_use]
    pub fn with_trim(self, trim_every: Option<u32>) -> Self {
        Self { trim_every, ..self }
    }

    /// The same, lost once it holds more than this.
    #[must_use]
    pub fn with_bound(self, bound_bytes: u64) -> Self {
        Self { bound_bytes, ..self }
    }

    /// Looks at V where it may have grown: the figures are dear, the counts are not.
    fn look(&mut self) {
        let segments = self.inner.counts().segments_allocated;
        if segments != self.segments_seen {
            self.segments_seen = segments;
            if self.inner.state().reserved_bytes > self.bound_bytes {
                self.has_ended = true;
                self.stop.is_outdone.store(true, Ordering::Relaxed);
            }
        }
    }
}

impl Policy for Supervised {
    fn allocate(&mut self, bytes: u64, stream: Stream) -> Result<Address, OutOfMemory> {
        if self.has_ended {
            let PoolState { allocated_bytes, reserved_bytes, limit_bytes, .. } = self.inner.state();
            return Err(OutOfMemory { requested_bytes: bytes, allocated_bytes, reserved_bytes, limit_bytes });
        }
        let address = self.inner.allocate(bytes, stream)?;
        if self.bound_bytes < u64::MAX {
            self.look();
        }
        Ok(address)
    }

    fn free_requested(&mut self, address: Address) {
        self.inner.free_requested(address);
    }

    fn free(&mut self, address: Address) {
        self.inner.free(address);
    }

    fn release_cached(&mut self) {
        self.inner.release_cached();
    }

    fn synchronised(&mut self) {
        self.inner.synchronised();
        if self.trim_every.is_some_and(|every| self.steps > 0 && self.steps.is_multiple_of(every.max(1))) {
            self.inner.release_cached();
        }
        self.steps = self.steps.wrapping_add(1);
        self.has_ended |= self.stop.is_wanted();
    }

    fn state(&self) -> PoolState {
        self.inner.state()
    }

    fn counts(&self) -> Counts {
        self.inner.counts()
    }

    fn reset_peaks(&mut self) {
        self.inner.reset_peaks();
    }

    /// Two states are alike only where the next release is as many steps away.
    fn fingerprint(&self) -> Option<Fingerprint> {
        let since_release = self.trim_every.map_or(0, |every| self.steps % every.max(1));
        let inner = self.inner.fingerprint()?;
        // As the hash of a pair: an odd constant (2^64 / golden ratio) keeps the two apart.
        let blocks = inner.blocks.rotate_left(17) ^ u64::from(since_release).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Some(Fingerprint { blocks, ..inner })
    }
}

#[cfg(test)]
mod tests {
    use super::super::native::Native;
    use super::*;
    use crate::units::MIB;

    fn supervised(trim_every: Option<u32>, bound_bytes: u64) -> (Supervised, Stop) {
        let stop = Stop::default();
        let policy = Supervised::new(Box::new(Native::new(u64::MAX)), stop.clone());
        (policy.with_trim(trim_every).with_bound(bound_bytes), stop)
    }

    #[test]
    fn the_cache_goes_back_at_the_start_of_every_so_many_steps() {
        let (mut policy, _) = supervised(Some(3), u64::MAX);
        let mut held = Vec::new();
        for _ in 0..7 {
            policy.synchronised();
            held.push(policy.state().reserved_bytes / MIB);
            let address = policy.allocate(30 * MIB, Stream(0)).unwrap();
            policy.free(address);
        }
        assert_eq!(held, [0, 30, 30, 0, 30, 30, 0]);
    }

    #[test]
    fn a_play_that_holds_more_than_may_win_fails_from_then_on() {
        let (mut policy, stop) = supervised(None, 40 * MIB);
        let first = policy.allocate(30 * MIB, Stream(0)).unwrap();
        assert!(policy.allocate(20 * MIB, Stream(0)).is_ok() && stop.is_outdone());
        policy.free(first);
        assert!(policy.allocate(MIB, Stream(0)).is_err());
    }

    #[test]
    fn a_play_ends_at_the_step_after_somebody_wants_to_leave() {
        let (mut policy, stop) = supervised(None, u64::MAX);
        policy.synchronised();
        stop.want();
        assert!(policy.allocate(8, Stream(0)).is_ok(), "the step under way goes on");
        policy.synchronised();
        assert_eq!(policy.allocate(8, Stream(0)).unwrap_err().allocated_bytes, 512);
        assert!(policy.counts().out_of_memory == 0 && !stop.is_outdone());
    }
}
