//! The worker's lease: it leaves when nothing is heard of the driver for too long.
//!
//! See [`protocol`](crate::trial::protocol) for why and what it means to the driver. What is waited for is counted in
//! looks and not read from a clock: a worker that was stopped itself has heard nothing because it did not listen, and a
//! look after such a time counts as one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::trial::exit_status::LEASE_EXPIRED;
use crate::trial::protocol::LEASE;

/// Looks in a lease.
const LOOKS: u32 = 60;
/// Between two looks, at least.
const SHORTEST_LOOK: Duration = Duration::from_millis(5);

/// What the reading thread tells the one that watches.
#[derive(Debug)]
pub(super) struct Lease {
    /// Messages heard.
    heard: AtomicU64,
    millis: AtomicU64,
}

impl Default for Lease {
    fn default() -> Self {
        Self { heard: AtomicU64::new(0), millis: AtomicU64::new(millis(LEASE)) }
    }
}

impl Lease {
    /// Notes that the driver said something.
    pub(super) fn renew(&self) {
        self.heard.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes the driver's word for how long a silence may last.
    pub(super) fn set(&self, lease: Duration) {
        self.millis.store(millis(lease), Ordering::SeqCst);
    }

    fn duration(&self) -> Duration {
        Duration::from_millis(self.millis.load(Ordering::SeqCst))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Calls `expired` on a thread of its own once the lease has expired.
pub(super) fn watch(lease: Arc<Lease>, expired: impl FnOnce(i32) + Send + 'static) {
    thread::spawn(move || {
        let mut silence = Silence::default();
        let mut looked = Instant::now();
        loop {
            let look = (lease.duration() / LOOKS).max(SHORTEST_LOOK);
            thread::sleep(look);
            let since = looked.elapsed();
            looked = Instant::now();
            // As much again as was meant to be waited is the scheduler's; more is a time in which nothing here ran.
            if silence.look(lease.heard.load(Ordering::SeqCst), since.min(look * 2)) >= lease.duration() {
                tracing::error!("nothing was heard of the driver for {:.0} s", lease.duration().as_secs_f64());
                return expired(LEASE_EXPIRED);
            }
        }
    });
}

/// How long nothing was heard.
#[derive(Debug, Default)]
struct Silence {
    heard: u64,
    lasted: Duration,
}

impl Silence {
    /// Looks at how much was heard in all, `since` the last look.
    fn look(&mut self, heard: u64, since: Duration) -> Duration {
        if heard == self.heard {
            self.lasted = self.lasted.saturating_add(since);
        } else {
            *self = Self { heard, lasted: Duration::ZERO };
        }
        self.lasted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_lasts_from_the_last_message() {
        let mut silence = Silence::default();
        let second = Duration::from_secs(1);
        assert_eq!(silence.look(0, second), second);
        assert_eq!(silence.look(0, second), 2 * second);
        assert_eq!(silence.look(3, second), Duration::ZERO);
        assert_eq!(silence.look(3, second), second);
    }

    #[test]
    fn a_worker_whose_driver_is_silent_leaves_with_a_status_of_its_own() {
        let lease = Arc::new(Lease::default());
        lease.set(Duration::from_millis(20));
        let (sender, receiver) = crossbeam_channel::bounded(1);
        watch(Arc::clone(&lease), move |status| sender.send(status).unwrap());
        assert_eq!(receiver.recv().unwrap(), LEASE_EXPIRED);
    }

    #[test]
    fn a_lease_of_nothing_and_one_for_ever_are_leases() {
        let lease = Lease::default();
        assert_eq!(lease.duration(), LEASE);
        lease.set(Duration::ZERO);
        assert!(!lease.duration().is_zero());
        lease.set(Duration::MAX);
        assert!(lease.duration() > Duration::from_secs(u64::from(u32::MAX)));
    }
}
