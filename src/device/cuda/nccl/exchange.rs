//! Exchanges beside the kernels: reductions that are begun while the backward pass goes on.
//!
//! They have a [side stream](SideStream), and follow its rules: the stream comes after the kernels that have made the
//! tensor, candle's stream waits for the end of the reduction before anything is done with the tensor, and before its memory
//! is freed there, whether or not anybody waited. The one that was begun holds the tensor until candle's stream has been told
//! so.
//!
//! A communicator's operations have one order on all ranks. On this stream that is the order of their beginning, and what
//! is called on candle's stream waits there for the last one that was begun; one that is begun after it follows candle's
//! stream, so it comes later.
//!
//! All of it is submitted on the training thread, and the host waits for none of it. A rank whose peer is gone has a kernel on this stream that spins, and candle's stream
//! behind it once somebody waits for it; the watch of the group aborts the communicator, which ends both.
//!
//! This was compiled and read, and has **not run on cards yet**: what speaks for it is that staging follows the same rules on
//! the same kind of stream, and has. `tests/gpu/replicas.sh` is what will show it.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::Tensor;
use cudarc::driver::{CudaStream, DriverError};

use crate::device::collective::{CollectiveError, Work};
use crate::device::cuda::side_stream::{Event, SideStream};

/// The stream of the reductions that are begun.
#[derive(Debug)]
pub(super) struct Exchanges {
    stream: SideStream,
    /// The end of the one that was begun last, until candle's stream waits for it.
    last: Mutex<Option<Arc<Event>>>,
}

impl Exchanges {
    /// A stream beside candle's, on the device whose context is the thread's.
    pub(super) fn beside(candle: &CudaStream) -> Result<Self, DriverError> {
        Ok(Self { stream: SideStream::create(Arc::clone(candle.context()))?, last: Mutex::new(None) })
    }

    fn last(&self) -> MutexGuard<'_, Option<Arc<Event>>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets what candle's stream is given from now on come after all that was begun.
    pub(super) fn hold_back(&self, candle: &CudaStream) -> Result<(), CollectiveError> {
        let last = self.last().take();
        last.map_or(Ok(()), |last| last.hold_back(candle.cu_stream())).map_err(out_of_order)
    }

    /// Gives a reduction of a tensor of candle's stream to this one, by `submit`. Where that is only half done, `abort` ends
    /// what is on the stream, and nothing of it is left.
    pub(super) fn begin(
        &self,
        (candle, tensor): (&Arc<CudaStream>, &Tensor),
        submit: impl FnOnce(*mut c_void) -> Result<(), CollectiveError>,
        abort: impl FnOnce(),
    ) -> Result<Begun, CollectiveError> {
        self.stream.follow(candle).map_err(out_of_order)?;
        let done = self.stream.event().map_err(out_of_order)?;
        let submitted = submit(self.stream.handle().cast::<c_void>());
        let recorded = done.record(self.stream.handle()).map_err(out_of_order);
        if let Err(error) = submitted.and(recorded) {
            // The tensor is about to be freed by a stream that knows nothing of what may be under way here.
            abort();
            let _ = self.stream.synchronize();
            return Err(error);
        }
        let done = Arc::new(done);
        *self.last() = Some(Arc::clone(&done));
        Ok(Begun { done: Some(done), candle: Arc::clone(candle), _tensor: tensor.clone() })
    }
}

/// A reduction on the stream.
#[derive(Debug)]
pub(super) struct Begun {
    /// Its end; `None` once candle's stream waits for it.
    done: Option<Arc<Event>>,
    candle: Arc<CudaStream>,
    /// Dropped after candle's stream was told to wait: its memory may go with it.
    _tensor: Tensor,
}

impl Begun {
    fn hold_back(&mut self) -> Result<(), DriverError> {
        self.done.take().map_or(Ok(()), |done| done.hold_back(self.candle.cu_stream()))
    }
}

impl Work for Begun {
    fn wait(mut self: Box<Self>) -> Result<(), CollectiveError> {
        self.hold_back().map_err(out_of_order)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        // A context that is beyond use frees nothing in order.
        let _ = self.hold_back();
    }
}

/// The driver cannot order two streams.
fn out_of_order(error: DriverError) -> CollectiveError {
    CollectiveError::Library { operation: "be ordered against the kernels", reason: error.to_string() }
}
