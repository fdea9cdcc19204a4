//! Whose turn it is to start the workers of a group.
//!
//! A group needs all of its workers, and a scheduler starts one job after the other. Two groups that each had half of the
//! cards that are free would wait for the other half until both gave up. So behind a launcher the groups of a study gather
//! one after the other: the first has what there is, and the next what is left.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread;

use super::TICK;

/// Lets one group of a study gather at a time. All of its groups hold the same.
#[derive(Clone, Debug, Default)]
pub struct Gathering(Arc<Mutex<()>>);

impl Gathering {
    /// Waits for a turn, which lasts as long as what is returned; `None` where it is over before it came.
    pub(super) fn turn(&self, is_over: impl Fn() -> bool) -> Option<MutexGuard<'_, ()>> {
        loop {
            match self.0.try_lock() {
                Ok(turn) => return Some(turn),
                // There is nothing behind it that a panic could have left half done.
                Err(TryLockError::Poisoned(turn)) => return Some(turn.into_inner()),
                Err(TryLockError::WouldBlock) if is_over() => return None,
                Err(TryLockError::WouldBlock) => thread::sleep(TICK),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn groups_gather_one_after_the_other() {
        let (gathering, gathered) = (Gathering::default(), AtomicU32::new(0));
        thread::scope(|scope| {
            let first = gathering.turn(|| true).unwrap();
            let next = scope.spawn(|| gathering.turn(|| false).map(|_turn| gathered.load(Ordering::SeqCst)));
            assert!(gathering.turn(|| true).is_none(), "who is cancelled does not wait");
            gathered.fetch_add(1, Ordering::SeqCst);
            drop(first);
            assert_eq!(next.join().unwrap(), Some(1));
        });
    }
}
