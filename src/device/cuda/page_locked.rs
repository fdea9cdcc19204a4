//! Page-locked host memory of the driver's (`cuMemHostAlloc`).

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, result};

use crate::device::staging::{PageLocked, PageLocker};
use crate::units::Bytes;

/// Page-locks memory in a context, on whatever thread it is asked.
pub(super) struct Locker {
    context: Arc<CudaContext>,
}

impl Locker {
    pub(super) fn new(context: Arc<CudaContext>) -> Self {
        Self { context }
    }
}

impl PageLocker for Locker {
    fn lock(&self, words: usize) -> Result<Box<dyn PageLocked>, String> {
        let bytes = words.saturating_mul(size_of::<u32>()) as u64;
        let buffer = Buffer::allocate(Arc::clone(&self.context), words);
        buffer.map(|buffer| Box::new(buffer) as Box<dyn PageLocked>).map_err(|error| {
            format!("{} of host memory cannot be page-locked: {error} (hint: `data.pin_memory: false`)", Bytes(bytes))
        })
    }
}

/// A page-locked buffer.
struct Buffer {
    context: Arc<CudaContext>,
    start: NonNull<u32>,
    words: usize,
}

// SAFETY: the memory is this buffer's alone, and the driver's functions may be called from any thread that has the
// context, which is made current before each call.
unsafe impl Send for Buffer {}

impl Buffer {
    fn allocate(context: Arc<CudaContext>, words: usize) -> Result<Self, DriverError> {
        context.bind_to_thread()?;
        // The driver refuses an empty buffer.
        let bytes = words.max(1).saturating_mul(size_of::<u32>());
        // SAFETY: the memory is unset until the lines below; no flag, so that the processor may read it too at full speed.
        let start = unsafe { result::malloc_host(bytes, 0) }?.cast::<u32>();
        let Some(start) = NonNull::new(start) else {
            return Err(DriverError(cudarc::driver::sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        };
        // SAFETY: `bytes` are there, page-aligned, and nobody else knows of them.
        unsafe { start.as_ptr().cast::<u8>().write_bytes(0, bytes) };
        Ok(Self { context, start, words })
    }
}

impl PageLocked for Buffer {
    fn words(&self) -> &[u32] {
        // SAFETY: so many words were allocated and set, and live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    fn words_mut(&mut self) -> &mut [u32] {
        // SAFETY: as above; the borrow is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.words) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("words", &self.words).finish_non_exhaustive()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: made by `malloc_host`, and freed once; what copies from it owns it (see `HostField`).
            let _ = unsafe { result::free_host(self.start.as_ptr().cast()) };
        }
    }
}
