//! Who may change a device's current pool: one at a time, and one session for the whole process, because the hook
//! keeps one book.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::device::DeviceError;

struct Claims {
    session: bool,
    pools: BTreeSet<usize>,
}

static CLAIMS: Mutex<Claims> = Mutex::new(Claims { session: false, pools: BTreeSet::new() });

fn claims() -> MutexGuard<'static, Claims> {
    CLAIMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to a device's current pool, given back on drop.
#[derive(Debug)]
pub(super) struct Claim {
    ordinal: usize,
    session: bool,
}

impl Claim {
    /// For a pool alone.
    pub(super) fn pool(ordinal: usize) -> Result<Self, DeviceError> {
        if claims().pools.insert(ordinal) { Ok(Self { ordinal, session: false }) } else { Err(DeviceError::Busy) }
    }

    /// For a session, which needs a pool and the hook's book.
    pub(super) fn session(ordinal: usize) -> Result<Self, DeviceError> {
        let mut claims = claims();
        if claims.session || claims.pools.contains(&ordinal) {
            return Err(DeviceError::Busy);
        }
        claims.session = true;
        claims.pools.insert(ordinal);
        Ok(Self { ordinal, session: true })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = claims();
        claims.pools.remove(&self.ordinal);
        if self.session {
            claims.session = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_one_pool_of_ours_and_a_process_one_session() {
        let session = Claim::session(1000).unwrap();
        assert!(matches!(Claim::session(1001), Err(DeviceError::Busy)));
        assert!(matches!(Claim::pool(1000), Err(DeviceError::Busy)));
        let pool = Claim::pool(1001).unwrap();
        drop(session);
        assert!(matches!(Claim::session(1001), Err(DeviceError::Busy)));
        drop(pool);
        assert!(Claim::session(1001).is_ok());
    }
}
