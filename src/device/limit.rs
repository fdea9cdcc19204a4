//! C on a CUDA device: what tensors may use.

use crate::device::DeviceError;
use crate::memory::LimitSpec;
use crate::units::{Bytes, Fraction, GIB, MIB};

/// The share of the device's memory that the default limit is under.
const DEFAULT_SHARE: Fraction = Fraction(0.85);
/// What the default limit leaves of the memory that is free at the start: kernels and library workspaces that are
/// loaded later.
pub(crate) const DEFAULT_RESERVE_BYTES: u64 = GIB;
/// A pool below this could not hold one training step of anything. To the driver, a limit of 0 would mean none.
pub(crate) const MINIMUM_BYTES: u64 = 64 * MIB;

/// A device's memory before any tensor is on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CardMemory {
    /// All of it.
    pub(crate) total_bytes: u64,
    /// What is free.
    pub(crate) free_bytes: u64,
}

impl CardMemory {
    /// Context, kernels, workspaces and other processes.
    pub(crate) fn external_bytes(self) -> u64 {
        self.total_bytes.saturating_sub(self.free_bytes)
    }
}

/// The limit that `spec` asks for, in bytes.
pub(crate) fn resolve(spec: LimitSpec, memory: CardMemory) -> u64 {
    match spec {
        LimitSpec::Auto => {
            let left_bytes = memory.free_bytes.saturating_sub(DEFAULT_RESERVE_BYTES);
            DEFAULT_SHARE.of(memory.total_bytes).min(left_bytes)
        }
        LimitSpec::Fraction(share) => share.of(memory.total_bytes),
        LimitSpec::Bytes(bytes) => bytes.0,
    }
}

/// Whether a limit can be kept: the device has that much beside what others use.
pub(crate) fn check(limit_bytes: u64, memory: CardMemory) -> Result<(), DeviceError> {
    if limit_bytes.saturating_add(memory.external_bytes()) > memory.total_bytes {
        return Err(DeviceError::LimitTooLarge {
            limit: Bytes(limit_bytes),
            total: Bytes(memory.total_bytes),
            external: Bytes(memory.external_bytes()),
        });
    }
    if limit_bytes < MINIMUM_BYTES {
        return Err(DeviceError::LimitTooSmall { limit: Bytes(limit_bytes), minimum: Bytes(MINIMUM_BYTES) });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: CardMemory = CardMemory { total_bytes: 140 * GIB, free_bytes: 139 * GIB };

    #[test]
    fn the_default_is_the_smaller_of_85_percent_and_what_is_free_less_a_gibibyte() {
        assert_eq!(resolve(LimitSpec::Auto, CARD), 119 * GIB);
        let shared = CardMemory { free_bytes: 30 * GIB, ..CARD };
        assert_eq!(resolve(LimitSpec::Auto, shared), 29 * GIB);
        assert!(check(resolve(LimitSpec::Auto, shared), shared).is_ok());
    }

    #[test]
    fn a_limit_that_others_leave_no_room_for_is_refused_with_the_figures() {
        let shared = CardMemory { free_bytes: 30 * GIB, ..CARD };
        let error = check(40 * GIB, shared).unwrap_err();
        assert!(matches!(error, DeviceError::LimitTooLarge { external: Bytes(external), .. } if external == 110 * GIB));
        assert!(check(resolve(LimitSpec::Fraction(Fraction(2.0)), CARD), CARD).is_err());
        assert!(check(u64::MAX, CARD).is_err());
    }

    #[test]
    fn a_limit_of_nothing_never_reaches_the_driver() {
        assert!(matches!(check(0, CARD), Err(DeviceError::LimitTooSmall { .. })));
        let full = CardMemory { free_bytes: 0, ..CARD };
        assert!(matches!(check(resolve(LimitSpec::Auto, full), full), Err(DeviceError::LimitTooSmall { .. })));
    }
}
