//! Stands in for the CUDA device in builds without the feature `cuda`: the same functions, and one clear answer.

use std::convert::Infallible;
use std::sync::Arc;

use crate::device::collective::{Collective, CollectiveError, Relay, Replica};
use crate::device::{AllocatorKind, DeviceChoice, DeviceError, DeviceSession, LimitSpec};

/// The release of the toolkit that this was built with, as 1000 × major + 10 × minor: none.
pub fn toolkit() -> Option<u32> {
    None
}

/// Whether there is a CUDA device that this build can use: never.
pub fn is_present() -> Result<bool, DeviceError> {
    Ok(false)
}

/// Opens a CUDA device: never.
pub fn open(
    ordinal: usize,
    _limit: LimitSpec,
    _allocator: AllocatorKind,
) -> Result<Box<dyn DeviceSession>, DeviceError> {
    Err(DeviceError::NotCompiled(DeviceChoice::Cuda(ordinal)))
}

/// A pool on a CUDA device. There is none in this build.
#[derive(Debug)]
pub struct PoolGuard(Infallible);

impl PoolGuard {
    /// The limit that the pool keeps.
    pub fn limit_bytes(&self) -> u64 {
        match self.0 {}
    }

    /// Hands memory that no tensor needs back to the device.
    pub fn trim(&self) -> Result<(), DeviceError> {
        match self.0 {}
    }
}

/// Gives a program the allocator of a recommendation: never.
pub fn apply_pool(ordinal: usize, _limit_bytes: u64) -> Result<PoolGuard, DeviceError> {
    Err(DeviceError::NotCompiled(DeviceChoice::Cuda(ordinal)))
}

/// Makes a rank's place in a group of CUDA devices: never.
pub fn join(
    _replica: &Replica,
    _device: &candle_core::Device,
    _relay: &Relay,
) -> Result<Arc<dyn Collective>, CollectiveError> {
    Err(CollectiveError::NotCompiled)
}
