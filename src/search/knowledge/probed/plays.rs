//! Several plays side by side, while whoever asked for them looks on.
//!
//! Plays take seconds each and know nothing of one another, so each has a thread. Whoever follows them is a closure that
//! may print and read a clock, so it stays on the thread that asked: it is told how far they are now and then, and what
//! plays goes on looking whether it is still wanted, at every step.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::whole_run::{PlayedSteps, Watch};
use crate::memory::parallel::in_parallel;

/// How often whoever looks on is told.
const TICK: Duration = Duration::from_millis(20);

/// The steps of all plays together.
#[derive(Debug, Default)]
pub(super) struct Steps {
    played: AtomicU32,
    is_left: AtomicBool,
}

impl Steps {
    /// Counts a step. Whether the play is to go on.
    pub(super) fn goes_on(&self) -> bool {
        self.played.fetch_add(1, Ordering::Relaxed);
        !self.is_left()
    }

    fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Relaxed)
    }
}

/// The results of `work` for each item, in their order, on as many threads as there are processors. `total` is how many
/// steps they are to play together. Once `watch` breaks, no further item is begun: what has none is `None`.
pub(super) fn side_by_side<T: Sync, R: Send>(
    items: &[T],
    total: u32,
    watch: &mut Watch<'_>,
    work: impl Fn(&T, &Steps) -> Option<R> + Sync,
) -> Vec<Option<R>> {
    let steps = Steps::default();
    let mut tell = || {
        let step = steps.played.load(Ordering::Relaxed);
        if watch(PlayedSteps { step, total: total.max(step) }).is_break() {
            steps.is_left.store(true, Ordering::Relaxed);
        }
    };
    tell();
    let (ended, end) = channel::<()>();
    let results: Result<_, Infallible> = thread::scope(|scope| {
        let plays = scope.spawn(|| {
            // Gone when this thread ends, however it does.
            let _ended = ended;
            in_parallel(items, |item| Ok(if steps.is_left() { None } else { work(item, &steps) }))
        });
        while end.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            tell();
        }
        plays.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let Ok(results) = results;
    results
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;

    #[test]
    fn results_come_in_order_and_progress_is_told() {
        let (items, mut told) = ([3_u32, 1, 2], Vec::new());
        let mut watch = |steps: PlayedSteps| {
            told.push(steps.total);
            ControlFlow::Continue(())
        };
        let played = side_by_side(&items, 6, &mut watch, |item, steps| {
            (0..*item).for_each(|_| assert!(steps.goes_on()));
            Some(item * 10)
        });
        assert_eq!(played, [Some(30), Some(10), Some(20)]);
        assert!(told.iter().all(|total| *total == 6) && !told.is_empty());
    }

    #[test]
    fn who_leaves_ends_the_plays_that_go_on_and_begins_no_other() {
        let items: Vec<u32> = (0..200).collect();
        let mut watch = |steps: PlayedSteps| {
            if steps.step == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        // None of them would ever end by itself.
        let played = side_by_side(&items, 1, &mut watch, |_, steps| {
            while steps.goes_on() {
                thread::yield_now();
            }
            None::<u32>
        });
        assert_eq!(played, vec![None; 200]);
    }
}
