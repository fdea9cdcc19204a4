//! Whether this process itself stood still: stopped by Ctrl-Z, blocked on a terminal, suspended with its machine.
//!
//! Whoever waits for a sign of life until a deadline looks often; when it has not looked for long, the wait says nothing
//! of the other side, and the deadline moves by as much.

use std::time::{Duration, Instant};

/// A longer time between two looks is a pause and no delay of the scheduler's.
const LONGEST_DELAY: Duration = Duration::from_secs(2);

/// The last look.
#[derive(Debug)]
pub(super) struct LastLook(Instant);

impl LastLook {
    pub(super) fn now() -> Self {
        Self(Instant::now())
    }

    /// Looks again, and says for how long this process stood still since the last time.
    pub(super) fn pause(&mut self) -> Duration {
        self.pause_until(Instant::now())
    }

    fn pause_until(&mut self, now: Instant) -> Duration {
        let since = now.saturating_duration_since(self.0);
        self.0 = now;
        if since > LONGEST_DELAY { since } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_time_between_two_looks_is_a_pause() {
        let start = Instant::now();
        let mut look = LastLook(start);
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(look.pause_until(at(50)), Duration::ZERO);
        assert_eq!(look.pause_until(at(90_050)), Duration::from_secs(90));
        assert_eq!(look.pause_until(at(90_100)), Duration::ZERO);
    }
}
