//! CUDA: real training on a real card, with its memory seen from inside.
//!
//! Four parts make a [session](CudaSession). The [`hook`] takes candle's allocations on their way to the driver, and
//! counts and records them. The [`pool`] is the memory they come from: a driver pool of our own, with the limit C.
//! `kernels` compiles candle's kernels before any clock starts, and `classify` says what an error means for the trial.
//!
//! Only one stream is used, and that from one thread; see [`CudaSession`] for why that matters.
//!
//! A program built with this needs the driver's `libcuda.so.1` to start at all, and a driver as new as the toolkit
//! that it was built with, because the driver compiles candle's PTX.

use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, result, sys};

use super::collective::{Collective, CollectiveError, Relay, Replica};
use super::{AllocatorKind, DeviceChoice, DeviceError, DeviceSession, LimitSpec, limit};

mod card;
mod claim;
mod classify;
pub mod hook;
mod kernels;
mod ledger;
#[cfg(feature = "nccl")]
mod nccl;
mod page_locked;
pub mod pool;
mod session;
mod side_stream;
mod staging;

#[cfg(feature = "nccl")]
pub use nccl::NcclGroup;
pub use session::CudaSession;

use claim::Claim;
use pool::Pool;

/// Whether there is a CUDA device. A driver that is there and does not work is an error, not a "no".
pub fn is_present() -> Result<bool, DeviceError> {
    match device_count() {
        Ok(count) => Ok(count > 0),
        Err(error) if means_no_device(error) => Ok(false),
        Err(error) => Err(driver_error("start the CUDA driver")(error)),
    }
}

/// Opens the device with CUDA's index `ordinal` for tuning.
pub fn open(ordinal: usize, limit: LimitSpec, allocator: AllocatorKind) -> Result<Box<dyn DeviceSession>, DeviceError> {
    Ok(Box::new(CudaSession::open(ordinal, limit, allocator)?))
}

/// Meets the other replicas of a group of CUDA devices.
#[cfg(feature = "nccl")]
pub fn join(
    replica: &Replica,
    device: &candle_core::Device,
    relay: &Relay,
) -> Result<Arc<dyn Collective>, CollectiveError> {
    Ok(Arc::new(NcclGroup::join(replica, device, relay)?))
}

/// Meets the other replicas of a group of CUDA devices: never in a build without NCCL.
#[cfg(not(feature = "nccl"))]
pub fn join(
    _replica: &Replica,
    _device: &candle_core::Device,
    _relay: &Relay,
) -> Result<Arc<dyn Collective>, CollectiveError> {
    Err(CollectiveError::NotCompiled)
}

/// The allocator of a recommendation, at work for as long as this lives.
///
/// Tensors may outlive it: what they hold stays good, new ones come from the device's default pool.
#[derive(Debug)]
#[must_use = "the pool is in use only as long as the guard lives"]
pub struct PoolGuard {
    pool: Pool,
    _claim: Claim,
}

impl PoolGuard {
    /// The limit that the pool keeps.
    pub fn limit_bytes(&self) -> u64 {
        self.pool.limit_bytes()
    }

    /// Hands memory that no tensor needs back to the device; `memory.trim` of a recommendation says when. Synchronise
    /// the device first.
    pub fn trim(&self) -> Result<(), DeviceError> {
        self.pool.trim(0).map_err(driver_error("trim the memory pool"))
    }

    /// The pool's figures.
    pub fn figures(&self) -> Result<pool::PoolFigures, DeviceError> {
        self.pool.figures().map_err(driver_error("read the memory pool"))
    }
}

/// Gives this program the allocator that a recommendation was measured with: a driver pool that keeps its memory and
/// never holds more than `limit_bytes`. Call it before the first tensor is made on the device.
pub fn apply_pool(ordinal: usize, limit_bytes: u64) -> Result<PoolGuard, DeviceError> {
    let claim = Claim::pool(ordinal)?;
    let context = context(ordinal)?;
    let total_bytes = context.total_mem().map_err(driver_error("read the card's memory"))? as u64;
    limit::check(limit_bytes, limit::CardMemory { total_bytes, free_bytes: total_bytes })?;
    Ok(PoolGuard { pool: current_pool(context, limit_bytes)?, _claim: claim })
}

/// The release of the toolkit that this was built with, as 1000 × major + 10 × minor.
pub fn toolkit() -> Option<u32> {
    Some(sys::CUDA_VERSION)
}

/// The context of a device, once it is sure that the device can do what is needed.
fn context(ordinal: usize) -> Result<Arc<CudaContext>, DeviceError> {
    let device = DeviceChoice::Cuda(ordinal);
    let count = match device_count() {
        Ok(count) => count,
        Err(error) if means_no_device(error) => return Err(DeviceError::NoCudaDevice(device)),
        Err(error) => return Err(driver_error("start the CUDA driver")(error)),
    };
    match count {
        0 => return Err(DeviceError::NoCudaDevice(device)),
        count if ordinal >= count => return Err(DeviceError::NoSuchDevice { device, count }),
        _ => {}
    }
    check_version(driver_version().map_err(driver_error("ask for the driver's version"))?, sys::CUDA_VERSION)?;
    let context = CudaContext::new(ordinal).map_err(driver_error("open a CUDA context"))?;
    if !context.has_async_alloc() {
        return Err(DeviceError::NoMemoryPools(device));
    }
    Ok(context)
}

/// A pool of ours, made the device's current one.
fn current_pool(context: Arc<CudaContext>, limit_bytes: u64) -> Result<Pool, DeviceError> {
    let pool = Pool::create(context, limit_bytes).map_err(driver_error("make a memory pool"))?;
    pool.make_current().map_err(driver_error("make the memory pool current"))?;
    Ok(pool)
}

fn device_count() -> Result<usize, DriverError> {
    Ok(usize::try_from(CudaContext::device_count()?).unwrap_or(0))
}

fn means_no_device(error: DriverError) -> bool {
    // The stub is what a toolkit ships to link against where there is no driver.
    matches!(error.0, sys::CUresult::CUDA_ERROR_NO_DEVICE | sys::CUresult::CUDA_ERROR_STUB_LIBRARY)
}

/// The CUDA release that the driver supports, as 1000 × major + 10 × minor.
fn driver_version() -> Result<u32, DriverError> {
    result::init()?;
    let mut version = 0;
    // SAFETY: the pointer is to a live integer.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result()?;
    Ok(u32::try_from(version).unwrap_or(0))
}

/// PTX of a newer toolkit cannot be compiled by an older driver, whatever else CUDA's minor-version compatibility
/// allows.
fn check_version(driver: u32, toolkit: u32) -> Result<(), DeviceError> {
    if driver < toolkit {
        return Err(DeviceError::DriverTooOld { driver: release(driver), toolkit: release(toolkit) });
    }
    Ok(())
}

/// `13.0` for 13000.
fn release(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Makes the driver's error one of ours, for what was being done.
fn driver_error(operation: &'static str) -> impl FnOnce(DriverError) -> DeviceError {
    move |error| match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => DeviceError::NoRoom { operation },
        _ => DeviceError::Driver { operation, source: Box::new(error) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_older_than_the_toolkit_is_named_with_both_releases() {
        assert!(check_version(13_000, 13_000).is_ok());
        assert!(check_version(13_020, 12_040).is_ok());
        let error = check_version(12_080, 13_000).unwrap_err();
        assert!(
            matches!(&error, DeviceError::DriverTooOld { driver, toolkit } if driver == "12.8" && toolkit == "13.0"),
            "{error}"
        );
    }

    #[test]
    fn no_device_and_no_driver_are_the_same_answer() {
        assert!(means_no_device(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)));
        assert!(means_no_device(DriverError(sys::CUresult::CUDA_ERROR_STUB_LIBRARY)));
        assert!(!means_no_device(DriverError(sys::CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)));
    }
}
