//! How far a replica has come, told beside its trial.
//!
//! A rank that hangs cannot say so, and neither can one that waits for it in a kernel. What tells the two apart is how many
//! exchanges each has come to: a thread looks at that number from time to time, and tells the driver where it stays. So a
//! trial that goes well tells next to nothing, and of one that stops the driver knows where every rank is.

use std::thread;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};

use crate::device::collective::Collective;

/// Between two looks. Whoever is there at two of them has been there for as long as this, at least.
const LOOK: Duration = Duration::from_millis(50);

/// Does some work, and calls `tell` meanwhile with the number of exchanges that this rank has come to, wherever it stays
/// at one; never again once that is refused. The last call has returned when this does.
pub(super) fn beside<T>(
    group: Option<&dyn Collective>,
    tell: impl FnMut(u64) -> bool + Send,
    work: impl FnOnce() -> T,
) -> T {
    let Some(group) = group else { return work() };
    thread::scope(|scope| {
        let (_over, is_over) = bounded::<()>(0);
        let mut pulse = Pulse { seen: None, told: None, tell };
        let look = move || {
            while is_over.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) && pulse.look(group.entered()) {}
        };
        if thread::Builder::new().name("pulse".to_owned()).spawn_scoped(scope, look).is_err() {
            tracing::warn!("no thread to tell how far this replica has come");
        }
        work()
    })
}

/// What was seen and what was told of a number.
struct Pulse<F> {
    seen: Option<u64>,
    told: Option<u64>,
    tell: F,
}

impl<F: FnMut(u64) -> bool> Pulse<F> {
    /// Looks at the number; whether it is worth another look.
    fn look(&mut self, now: u64) -> bool {
        let stays = self.seen.replace(now) == Some(now);
        if !stays || self.told == Some(now) {
            return true;
        }
        self.told = Some(now);
        (self.tell)(now)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::device::collective::UnixGroup;

    #[test]
    fn what_stays_is_told_once() {
        let mut told = Vec::new();
        let mut pulse = Pulse {
            seen: None,
            told: None,
            tell: |number| {
                told.push(number);
                true
            },
        };
        assert!([3, 4, 5, 5, 5, 7, 8, 8, 9].into_iter().all(|number| pulse.look(number)));
        assert_eq!(told, [5, 8]);
        let mut refused = Pulse { seen: Some(1), told: None, tell: |_| false };
        assert!(!refused.look(1), "nobody listens");
    }

    #[test]
    fn a_rank_that_waits_for_another_is_known_to_be_ahead_of_it() {
        let mut groups = UnixGroup::within_process(2).into_iter();
        let (first, second) = (groups.next().unwrap(), groups.next().unwrap());
        let (told, heard) = mpsc::channel();
        let tell = |rank: usize| {
            let told = told.clone();
            move |number| told.send((rank, number)).is_ok()
        };
        thread::scope(|scope| {
            scope.spawn(|| beside(Some(&first), tell(0), || first.barrier().unwrap()));
            beside(Some(&second), tell(1), || {
                // It works on something else until both are known to stand still.
                let mut last = [None; 2];
                while last != [Some(1), Some(0)] {
                    let (rank, number) = heard.recv().unwrap();
                    last[rank] = Some(number);
                }
                second.barrier().unwrap();
            });
        });
        assert_eq!((first.entered(), second.entered()), (1, 1));
        assert_eq!(beside(None, |_| panic!("it is alone"), || 7), 7);
    }
}
