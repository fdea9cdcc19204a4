//! A stream beside candle's, and the events that order the two.
//!
//! candle launches everything on one stream. What is to go on beside its kernels (copies of batches, exchanges between
//! cards) is submitted to another, and nothing orders two streams but events: a stream records one behind what it was given
//! so far, and another one waits for it with what it is given from then on.
//!
//! Memory that a side stream uses comes from candle's stream, which frees it too. So two rules hold for every use: the side
//! stream follows candle's before it begins, since the block may still be read by a kernel of the tensor that had it before;
//! and candle's stream waits for the end of the use before the block is freed there, since the pool gives it to the next
//! request of that stream at once.
//!
//! cudarc knows nothing of this. Its own tracking is off (see [`CudaSession`](super::CudaSession)), and the stream is made
//! past it: as soon as it had two, it would record an event for every argument of a kernel (`is_in_multi_stream_mode`).

use std::sync::Arc;

use cudarc::driver::sys::{self, CUevent_flags, CUevent_wait_flags};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};

/// A stream beside candle's.
#[derive(Debug)]
pub(super) struct SideStream {
    context: Arc<CudaContext>,
    handle: sys::CUstream,
}

// SAFETY: the driver's functions may be called with one stream from several threads (CUDA Driver API, "Stream Management":
// all of them are thread-safe); what they need beside it is a current context, which every use here has bound or is given.
unsafe impl Send for SideStream {}
// SAFETY: as above.
unsafe impl Sync for SideStream {}

impl SideStream {
    /// Makes one on the device whose context is the thread's.
    pub(super) fn create(context: Arc<CudaContext>) -> Result<Self, DriverError> {
        // Non-blocking: the legacy default stream would be waited for otherwise.
        let handle = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        Ok(Self { context, handle })
    }

    pub(super) fn handle(&self) -> sys::CUstream {
        self.handle
    }

    /// Lets what is submitted from now on come after all that the other stream was given so far.
    pub(super) fn follow(&self, other: &CudaStream) -> Result<(), DriverError> {
        let given = self.event()?;
        given.record(other.cu_stream())?;
        given.hold_back(self.handle)
    }

    /// A new event, to be recorded.
    pub(super) fn event(&self) -> Result<Event, DriverError> {
        let handle = result::event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
        Ok(Event { context: Arc::clone(&self.context), handle })
    }

    /// Blocks until all of it is done.
    pub(super) fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: the stream lives as long as this.
        unsafe { result::stream::synchronize(self.handle) }
    }
}

impl Drop for SideStream {
    fn drop(&mut self) {
        // On a context that is beyond use nothing can be put right any more; the process has to go.
        if self.context.bind_to_thread().is_err() || self.synchronize().is_err() {
            return;
        }
        // SAFETY: made by `create`, and destroyed once.
        let _ = unsafe { result::stream::destroy(self.handle) };
    }
}

/// A point in a stream's work.
#[derive(Debug)]
pub(super) struct Event {
    context: Arc<CudaContext>,
    handle: sys::CUevent,
}

// SAFETY: as for `SideStream`: events are the driver's, and its functions for them are thread-safe.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Puts the event behind what the stream was given so far.
    pub(super) fn record(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: the event lives, and so does the stream: whoever has the event holds both of its own.
        unsafe { result::event::record(self.handle, stream) }
    }

    /// Lets the stream's further work wait for the event.
    pub(super) fn hold_back(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: as above.
        unsafe { result::stream::wait_event(stream, self.handle, CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
    }

    /// Blocks until the event has come.
    pub(super) fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: the event lives.
        unsafe { result::event::synchronize(self.handle) }
    }

    pub(super) fn is_done(&self) -> Result<bool, DriverError> {
        // SAFETY: the event lives.
        match unsafe { result::event::query(self.handle) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: made by a side stream, and destroyed once. One that has not come yet is let go by the driver in time.
            let _ = unsafe { result::event::destroy(self.handle) };
        }
    }
}
