//! One session at a time in a process: the recorder's state is global.

use std::sync::atomic::{AtomicBool, Ordering};

use super::DeviceError;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// The right to record. Given back when dropped.
#[derive(Debug)]
pub(super) struct Claim(());

impl Claim {
    /// Takes it, if nobody has it.
    pub(super) fn take() -> Result<Self, DeviceError> {
        #[cfg(test)]
        testing::wait_for_turn();
        if TAKEN.swap(true, Ordering::SeqCst) {
            return Err(DeviceError::Busy);
        }
        Ok(Self(()))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        TAKEN.store(false, Ordering::SeqCst);
        #[cfg(test)]
        testing::end_turn();
    }
}

/// Unit tests run on many threads of one process: they take turns, so that each may open a session.
#[cfg(test)]
mod testing {
    use std::sync::{Condvar, Mutex};
    use std::thread::{self, ThreadId};

    static TURN: Mutex<Option<ThreadId>> = Mutex::new(None);
    static ENDED: Condvar = Condvar::new();

    /// Waits while another thread has the session. The thread that has it itself goes on, and finds it busy.
    pub(super) fn wait_for_turn() {
        let me = thread::current().id();
        let turn = TURN.lock().unwrap();
        *ENDED.wait_while(turn, |owner| owner.is_some_and(|owner| owner != me)).unwrap() = Some(me);
    }

    pub(super) fn end_turn() {
        *TURN.lock().unwrap() = None;
        ENDED.notify_one();
    }
}
