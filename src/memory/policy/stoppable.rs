//! A policy that can be told to stop, for whoever plays a long run and wants to leave.
//!
//! A run is played through [`Policy`] alone, and a request that fails ends a play. So from the step after the one in which
//! [`Stop::want`] was called every request fails. Whoever asked for it knows that it is no lack of memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Address, Counts, OutOfMemory, Policy, PoolState};
use crate::memory::event::Stream;

/// The wish to stop.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends the play at its next step.
    pub fn want(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody wants it to end.
    pub fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A policy that stops when it is wanted.
pub struct Stoppable {
    inner: Box<dyn Policy>,
    stop: Stop,
    has_stopped: bool,
}

impl Stoppable {
    /// This policy, until the stop is wanted.
    pub fn new(inner: Box<dyn Policy>, stop: Stop) -> Self {
        Self { inner, stop, has_stopped: false }
    }
}

impl Policy for Stoppable {
    fn allocate(&mut self, bytes: u64, stream: Stream) -> Result<Address, OutOfMemory> {
        if self.has_stopped {
            let PoolState { allocated_bytes, reserved_bytes, limit_bytes, .. } = self.inner.state();
            return Err(OutOfMemory { requested_bytes: bytes, allocated_bytes, reserved_bytes, limit_bytes });
        }
        self.inner.allocate(bytes, stream)
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
        self.has_stopped = self.stop.is_wanted();
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

    fn fingerprint(&self) -> Option<u64> {
        self.inner.fingerprint()
    }
}

#[cfg(test)]
mod tests {
    use super::super::native::Native;
    use super::*;

    #[test]
    fn requests_fail_from_the_next_step_on() {
        let stop = Stop::default();
        let mut policy = Stoppable::new(Box::new(Native::new(u64::MAX)), stop.clone());
        policy.synchronised();
        stop.want();
        assert!(policy.allocate(8, Stream(0)).is_ok(), "the step under way goes on");
        policy.synchronised();
        assert_eq!(policy.allocate(8, Stream(0)).unwrap_err().allocated_bytes, 512);
        assert_eq!(policy.counts().out_of_memory, 0);
    }
}
