//! Replicas on CUDA devices: tensors through NCCL, everything else through the sockets of the same group.
//!
//! NCCL (`nccl.h`, NVIDIA's collectives) works on candle's own stream, so an exchange comes after the kernels that made
//! the tensor and before those that use it, and nobody waits on the host. One that is begun to be waited for later goes on
//! [beside it](exchange), on a stream of its own. What NCCL cannot do is to lose a rank: a kernel
//! whose peer is gone spins for ever. So a thread watches the sockets, which the kernel of the operating system closes
//! when a process ends, and NCCL's own asynchronous errors; on either it aborts the communicator (`ncclCommAbort`, the
//! one call that may be made while another thread is inside of NCCL). The spinning kernel then ends, the phase does, and
//! the trainer finds the group's failure.
//!
//! What NCCL allocates for itself (some hundred MiB) is outside of the tensors' pool, and measured as external memory. Its
//! environment variables are left as they are: where `NCCL_NVLS_ENABLE=0` is set, a machine has a reason for it.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaStorage, DType, Device, InplaceOp1, Layout, Tensor, bail};
use cudarc::driver::{CudaStream, DevicePtrMut};
use half::{bf16, f16};

use self::exchange::Exchanges;
use self::library::{Library, UNIQUE_ID_BYTES, UniqueId};
use crate::device::collective::{Collective, CollectiveError, Reduction, Relay, Replica, UnixGroup, Work};

mod exchange;
mod library;

/// Between two looks of the watch.
const LOOK: Duration = Duration::from_millis(20);

/// A rank's place in a group whose tensors lie on CUDA devices, one device a rank.
#[derive(Debug)]
pub struct NcclGroup {
    control: Arc<UnixGroup>,
    communicator: Arc<Communicator>,
    stream: Arc<CudaStream>,
    watch: Option<Watch>,
    /// Operations on tensors that were given to a stream.
    submitted: AtomicU64,
    /// Waits for its stream where it is dropped: after the communicator's end, which ends what is on it.
    exchanges: Exchanges,
}

impl NcclGroup {
    /// Meets the other ranks, on an open device, and forms the communicator with them.
    pub fn join(replica: &Replica, device: &Device, relay: &Relay) -> Result<Self, CollectiveError> {
        // Before anybody is waited for: where one machine lacks the library, so do all its ranks.
        let library = Library::get()?;
        let unusable = |reason: String| CollectiveError::Library { operation: "use the device", reason };
        let stream = device.as_cuda_device().map_err(|error| unusable(error.to_string()))?.cuda_stream();
        // NCCL takes the device whose context is the thread's.
        stream.context().bind_to_thread().map_err(|error| unusable(error.to_string()))?;
        let exchanges = Exchanges::beside(&stream).map_err(|error| unusable(error.to_string()))?;
        let control = UnixGroup::meet(replica, relay)?;
        let id = shared_id(library, &control)?;
        let communicator = library.communicator(replica.world, replica.rank, id).inspect_err(|error| {
            control.give_up(error.clone());
        })?;
        let communicator =
            Arc::new(Communicator { library, handle: AtomicPtr::new(communicator), asking: Mutex::default() });
        let control = Arc::new(control);
        let watch = Watch::start(Arc::clone(&control), Arc::clone(&communicator));
        control.barrier()?;
        Ok(Self { control, communicator, stream, watch, submitted: AtomicU64::new(0), exchanges })
    }

    /// Runs an operation on every tensor, as one of NCCL's groups, on candle's stream: after those that were begun.
    fn on_each(&self, tensors: &[&Tensor], kind: Kind) -> Result<(), CollectiveError> {
        if let Some(failure) = self.control.failure() {
            return Err(failure);
        }
        self.exchanges.hold_back(&self.stream).map_err(|error| self.broken(error))?;
        let on = self.stream.cu_stream().cast::<c_void>();
        self.submit(&Operation { group: self, kind, on }, tensors).map_err(|error| self.broken(error))
    }

    /// Gives an operation on every tensor to its stream.
    fn submit(&self, operation: &Operation<'_>, tensors: &[&Tensor]) -> Result<(), CollectiveError> {
        self.submitted.fetch_add(1, Ordering::Relaxed);
        let each = || tensors.iter().try_for_each(|tensor| tensor.inplace_op1(operation));
        self.communicator.library.group(each)
    }

    /// Ends the group for the others too, and gives what ended it: where that was the watch, meanwhile, it is why this failed.
    fn broken(&self, error: CollectiveError) -> CollectiveError {
        self.control.give_up(error.clone());
        self.control.failure().unwrap_or(error)
    }
}

/// The identity of the group's communicator: rank 0 makes it, and the others get it through the sockets.
fn shared_id(library: &Library, control: &UnixGroup) -> Result<UniqueId, CollectiveError> {
    let mut bytes = if control.rank() == 0 { library.unique_id()? } else { [0; UNIQUE_ID_BYTES] };
    for word in bytes.as_chunks_mut::<8>().0 {
        let of_ranks = control.gather(u64::from_le_bytes(*word))?;
        *word = of_ranks.first().copied().unwrap_or_default().to_le_bytes();
    }
    Ok(bytes)
}

impl Collective for NcclGroup {
    fn rank(&self) -> usize {
        self.control.rank()
    }

    fn world(&self) -> usize {
        self.control.world()
    }

    fn gather(&self, word: u64) -> Result<Vec<u64>, CollectiveError> {
        self.control.gather(word)
    }

    fn all_reduce(&self, tensors: &[&Tensor], reduction: Reduction) -> Result<(), CollectiveError> {
        self.on_each(tensors, Kind::Reduce(reduction))
    }

    fn begin_all_reduce(&self, tensor: &Tensor, reduction: Reduction) -> Result<Box<dyn Work>, CollectiveError> {
        if let Some(failure) = self.control.failure() {
            return Err(failure);
        }
        let submit = |on| self.submit(&Operation { group: self, kind: Kind::Reduce(reduction), on }, &[tensor]);
        let begun = self.exchanges.begin((&self.stream, tensor), submit, || self.communicator.abort());
        Ok(Box::new(begun.map_err(|error| self.broken(error))?))
    }

    fn broadcast(&self, tensors: &[&Tensor]) -> Result<(), CollectiveError> {
        self.on_each(tensors, Kind::Broadcast)
    }

    fn entered(&self) -> u64 {
        self.control.entered() + self.submitted.load(Ordering::Relaxed)
    }

    fn set_patience(&self, patience: Duration) {
        self.control.set_patience(patience);
    }

    fn give_up(&self, error: CollectiveError) {
        self.control.give_up(error);
        self.communicator.abort();
    }

    fn failure(&self) -> Option<CollectiveError> {
        self.control.failure()
    }
}

impl Drop for NcclGroup {
    fn drop(&mut self) {
        // The watch first: it uses the communicator.
        drop(self.watch.take());
        self.communicator.abort();
    }
}

/// NCCL's communicator, until it is aborted.
#[derive(Debug)]
struct Communicator {
    library: &'static Library,
    /// Null once aborted.
    handle: AtomicPtr<c_void>,
    /// Held while NCCL is asked for an error, which takes no time. Operations are not: one may wait for a lost rank until
    /// it is aborted, and NCCL allows that.
    asking: Mutex<()>,
}

impl Communicator {
    fn handle(&self) -> Option<*mut c_void> {
        Some(self.handle.load(Ordering::Acquire)).filter(|handle| !handle.is_null())
    }

    /// What failed since it was last asked, in the background.
    fn asynchronous_error(&self) -> Option<CollectiveError> {
        let _asking = self.asking();
        self.library.asynchronous_error(self.handle()?)
    }

    fn asking(&self) -> MutexGuard<'_, ()> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends every operation of it, finished or not. Only the first call does anything.
    fn abort(&self) {
        let handle = self.handle.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !handle.is_null() {
            // Whoever asks has the communicator in hand, and it goes now.
            let _asking = self.asking();
            self.library.abort(handle);
        }
    }
}

/// The thread that sees a lost rank while this one is in a kernel of NCCL's.
#[derive(Debug)]
struct Watch {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// `None` where the system refuses a thread: then the driver's own patience ends a stuck group.
    fn start(control: Arc<UnixGroup>, communicator: Arc<Communicator>) -> Option<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let work = move || {
            while !over.load(Ordering::Acquire) {
                let failed = control.failure().or_else(|| control.notice_lost()).or_else(|| {
                    let error = communicator.asynchronous_error()?;
                    control.give_up(error.clone());
                    Some(error)
                });
                if failed.is_some() {
                    return communicator.abort();
                }
                thread::sleep(LOOK);
            }
        };
        let thread = thread::Builder::new().name("nccl-watch".to_owned()).spawn(work).ok()?;
        Some(Self { is_over, thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Reduce(Reduction),
    Broadcast,
}

/// An operation on a tensor's storage.
struct Operation<'a> {
    group: &'a NcclGroup,
    kind: Kind,
    /// The stream that it is given to.
    on: *mut c_void,
}

impl Operation<'_> {
    fn run(&self, pointer: u64, count: usize, dtype: DType) -> candle_core::Result<()> {
        let Some(handle) = self.group.communicator.handle() else { bail!("the communicator was aborted") };
        let library = self.group.communicator.library;
        let data = library::Data { pointer, count, dtype };
        let done = match self.kind {
            Kind::Reduce(reduction) => library.all_reduce(handle, data, reduction, self.on),
            Kind::Broadcast => library.broadcast(handle, data, self.on),
        };
        done.map_err(candle_core::Error::wrap)
    }
}

impl InplaceOp1 for Operation<'_> {
    fn name(&self) -> &'static str {
        "nccl"
    }

    fn cpu_fwd(&self, _storage: &mut CpuStorage, _layout: &Layout) -> candle_core::Result<()> {
        bail!("a tensor of the CPU in a group of CUDA devices")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> candle_core::Result<()> {
        let Some((start, end)) = layout.contiguous_offsets() else { bail!("a tensor to exchange is not contiguous") };
        let (dtype, stream) = (storage.dtype(), &self.group.stream);
        let pointer = match dtype {
            DType::F32 => storage.as_cuda_slice_mut::<f32>()?.device_ptr_mut(stream).0,
            DType::F64 => storage.as_cuda_slice_mut::<f64>()?.device_ptr_mut(stream).0,
            DType::F16 => storage.as_cuda_slice_mut::<f16>()?.device_ptr_mut(stream).0,
            DType::BF16 => storage.as_cuda_slice_mut::<bf16>()?.device_ptr_mut(stream).0,
            other => bail!("tensors of type {other:?} cannot be exchanged"),
        };
        let offset_bytes = (start * dtype.size_in_bytes()) as u64;
        self.run(pointer + offset_bytes, end - start, dtype)
    }
}
