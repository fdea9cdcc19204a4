//! The pool: candle's allocations, held by a driver pool of our own with the limit C.
//!
//! `cuMemAllocAsync` takes memory from the device's *current* pool. The default one hands unused memory back whenever
//! the device is synchronised (release threshold 0), which costs a step up to 5 %, and knows no limit. Ours keeps what
//! it has and never holds more than C: the driver itself refuses a request beyond it, with a typed error after which
//! the process goes on. (CUDA Driver API, "Stream Ordered Memory Allocator"; `maxSize` since CUDA 12.2.)
//!
//! The driver does not document how its pools place blocks. What can be seen are bytes reserved and used, now and at
//! their highest, and whether a request succeeds, which is how the largest satisfiable one is found.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUmemPool_attribute as Attribute};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};

use super::hook;
use crate::units::MIB;

/// The finest step of the search for the largest request: the driver maps physical memory in pages of this size.
const PROBE_STEP_BYTES: u64 = 2 * MIB;
/// The search is as fine as one part in this many of the range.
const PROBE_RESOLUTION: u64 = 1024;

/// A pool's figures. The last two count since the last [`Pool::start_window`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolFigures {
    /// Bytes held from the device.
    pub reserved_bytes: u64,
    /// Bytes handed out, after the driver's rounding.
    pub used_bytes: u64,
    /// The highest `reserved_bytes`.
    pub peak_reserved_bytes: u64,
    /// The highest `used_bytes`.
    pub peak_used_bytes: u64,
}

/// A driver pool with a limit. Destroyed on drop, with the default pool made current again.
#[derive(Debug)]
pub struct Pool {
    context: Arc<CudaContext>,
    handle: sys::CUmemoryPool,
    limit_bytes: u64,
    window_start: PoolFigures,
}

// SAFETY: the handle is the driver's, whose pool functions may be called from any thread (CUDA Driver API, "thread
// safety"); everything that changes the Rust side takes `&mut self`.
unsafe impl Send for Pool {}

impl Pool {
    /// A pool on the context's device that holds `limit_bytes` at most, not yet current.
    pub fn create(context: Arc<CudaContext>, limit_bytes: u64) -> Result<Self, DriverError> {
        context.bind_to_thread()?;
        let properties = properties(context.cu_device(), limit_bytes);
        // SAFETY: the properties are initialised and live during the call.
        let handle = unsafe { result::mem_pool::create(&raw const properties) }?;
        let pool = Self { context, handle, limit_bytes, window_start: PoolFigures::default() };
        pool.set(Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX)?;
        Ok(pool)
    }

    /// Makes this the pool that allocations on the device come from.
    pub fn make_current(&self) -> Result<(), DriverError> {
        // SAFETY: the device is the context's and the pool lives until `drop`, which makes another one current.
        unsafe { result::device::set_mem_pool(self.context.cu_device(), self.handle) }
    }

    /// Makes the device's default pool current again. Blocks of this pool stay good.
    pub fn make_default_current(&self) -> Result<(), DriverError> {
        let device = self.context.cu_device();
        // SAFETY: the device is the context's; its default pool is the driver's and lives as long as the device.
        unsafe { result::device::set_mem_pool(device, result::device::get_default_mem_pool(device)?) }
    }

    /// C.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// The figures now.
    pub fn figures(&self) -> Result<PoolFigures, DriverError> {
        let reserved_bytes = self.get(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let used_bytes = self.get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        // The marks can only be reset to zero and rise again with the next request, so a window without one would
        // read less than what the pool held all along.
        let peak = |mark, now: u64, before: u64| Ok::<_, DriverError>(self.get(mark)?.max(now).max(before));
        Ok(PoolFigures {
            reserved_bytes,
            used_bytes,
            peak_reserved_bytes: peak(
                Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
                reserved_bytes,
                self.window_start.reserved_bytes,
            )?,
            peak_used_bytes: peak(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, used_bytes, self.window_start.used_bytes)?,
        })
    }

    /// Starts a new window for the high-water marks.
    pub fn start_window(&mut self) -> Result<(), DriverError> {
        self.set(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0)?;
        self.set(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0)?;
        self.window_start = self.figures()?;
        Ok(())
    }

    /// Hands memory that no block needs back to the device, keeping `keep_bytes` reserved. Blocks whose free is still
    /// pending on a stream count as needed: synchronise first.
    pub fn trim(&self, keep_bytes: u64) -> Result<(), DriverError> {
        // SAFETY: the pool lives.
        unsafe { result::mem_pool::trim_to(self.handle, usize::try_from(keep_bytes).unwrap_or(usize::MAX)) }
    }

    /// The largest single request up to `upper_bytes` that succeeds now, by asking; to within a thousandth of
    /// `upper_bytes`, or 2 MiB.
    ///
    /// What the requests made the pool reserve is handed back, and they do not go through the hook; they do raise the
    /// pool's own marks, so start a new window afterwards. A request that is refused costs nothing, one that is met
    /// has its pages mapped and unmapped, some 4 ms a GiB; and the answer is mostly close to `upper_bytes`. So the
    /// search comes down from there in steps that double, and then goes back up between the last two.
    pub fn largest_satisfiable(&self, stream: &CudaStream, upper_bytes: u64) -> Result<u64, DriverError> {
        stream.synchronize()?;
        let keep_bytes = self.get(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let step_bytes = PROBE_STEP_BYTES.max(upper_bytes / PROBE_RESOLUTION);
        let can = |short_bytes| self.can_satisfy(stream, upper_bytes - short_bytes, keep_bytes);
        if upper_bytes == 0 || can(0)? {
            return Ok(upper_bytes);
        }
        // Invariant: a request that is `fails` short is refused; once the first loop ends, one that is `fits` short
        // is met (or is of no bytes at all).
        let (mut fails, mut fits) = (0, step_bytes.min(upper_bytes));
        while fits < upper_bytes && !can(fits)? {
            fails = fits;
            fits = fits.saturating_mul(2).min(upper_bytes);
        }
        while fits - fails > step_bytes {
            let middle = u64::midpoint(fails, fits);
            if can(middle)? {
                fits = middle;
            } else {
                fails = middle;
            }
        }
        Ok(upper_bytes - fits)
    }

    fn can_satisfy(&self, stream: &CudaStream, bytes: u64, keep_bytes: u64) -> Result<bool, DriverError> {
        let Ok(bytes) = usize::try_from(bytes) else { return Ok(false) };
        // SAFETY: pool and stream live; the block is not written to, is freed once on the stream it was made on, and
        // the stream is waited for before anything else is done.
        let satisfied = unsafe {
            match result::mem_pool::alloc_async(self.handle, bytes, stream.cu_stream()) {
                Ok(pointer) => {
                    let code = hook::free_past_the_book(pointer, stream.cu_stream().cast());
                    super::classify::check(code)?;
                    true
                }
                Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => false,
                Err(error) => return Err(error),
            }
        };
        stream.synchronize()?;
        self.trim(keep_bytes)?;
        Ok(satisfied)
    }

    fn get(&self, attribute: Attribute) -> Result<u64, DriverError> {
        let mut value = 0_u64;
        // SAFETY: the pool lives, and every attribute read here is a `cuuint64_t` (cuda.h).
        unsafe { result::mem_pool::get_attribute(self.handle, attribute, (&raw mut value).cast::<c_void>()) }?;
        Ok(value)
    }

    fn set(&self, attribute: Attribute, mut value: u64) -> Result<(), DriverError> {
        // SAFETY: the pool lives, and every attribute set here is a `cuuint64_t` (cuda.h).
        unsafe { result::mem_pool::set_attribute(self.handle, attribute, (&raw mut value).cast::<c_void>()) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // On a context that is beyond use nothing can be put right any more; the process has to go.
        if self.context.synchronize().is_err() || self.make_default_current().is_err() {
            return;
        }
        // SAFETY: the handle is dropped with `self`. Blocks that still live keep the driver's side of the pool until
        // they are freed (cuMemPoolDestroy).
        let _ = unsafe { result::mem_pool::destroy(self.handle) };
    }
}

/// The properties of a pool on `device`.
fn properties(device: sys::CUdevice, limit_bytes: u64) -> sys::CUmemPoolProps {
    // The location is a kind and a number, of 32 bits each, in every release; newer headers put the number into a
    // union, so that its field's name depends on the toolkit that cudarc was built against.
    const { assert!(size_of::<sys::CUmemLocation>() == 2 * size_of::<c_int>()) };
    // SAFETY: all-zero bytes are valid for every field: integers, a null pointer, and enums that have a zero value.
    let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.maxSize = usize::try_from(limit_bytes).unwrap_or(usize::MAX);
    // SAFETY: within the location, as asserted above.
    unsafe { (&raw mut properties.location).cast::<c_int>().add(1).write(device) };
    properties
}
