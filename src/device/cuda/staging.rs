//! Staging on a card: a stream for copies beside candle's.
//!
//! Two streams share a batch's memory, and nothing orders them but what is said here:
//!
//! 1. The destination is allocated on candle's stream, from candle's pool. So it is freed there too, where the tensor is
//!    dropped, and the book and the limit see it like any other tensor.
//! 2. An event on candle's stream, and the copy stream waits for it: before, the block may still be read by a kernel of
//!    the tensor that had it.
//! 3. The copy, and an event behind it on the copy stream.
//! 4. Candle's stream waits for that event when the batch is taken, or, where it never is, before it is freed.
//!
//! Nobody else orders them (see [`side_stream`](super::side_stream)). All of it happens on the training thread; only
//! page-locking does not.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use candle_core::cuda_backend::{CudaStorage, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, DType, Result, Storage, Tensor};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DriverError, result};

use super::page_locked::Locker;
use super::side_stream::{Event, SideStream};
use crate::device::staging::{HostField, HostMemory, PageLocked, PageLocker, Stager, Wait};

/// Copies batches on a stream of its own.
pub(super) struct CudaStager {
    candle: CudaDevice,
    compute: Arc<CudaStream>,
    copies: SideStream,
    locker: Arc<Locker>,
    /// Batches that were not taken yet.
    staged: VecDeque<StagedBatch>,
    /// Host memory whose copy may be under way.
    sources: VecDeque<Source>,
}

impl CudaStager {
    pub(super) fn new(candle: &CudaDevice, context: &Arc<CudaContext>) -> std::result::Result<Self, DriverError> {
        context.bind_to_thread()?;
        Ok(Self {
            candle: candle.clone(),
            compute: candle.cuda_stream(),
            copies: SideStream::create(Arc::clone(context))?,
            locker: Arc::new(Locker::new(Arc::clone(context))),
            staged: VecDeque::new(),
            sources: VecDeque::new(),
        })
    }

    /// The batch's tensors, being copied.
    fn copy(&self, fields: &[HostField]) -> Result<(Vec<Tensor>, Rc<Event>)> {
        // All destinations come first: the copy stream waits for one event, and what fails leaves no copy behind.
        let destinations = fields.iter().map(|field| Destination::allocate(&self.candle, field));
        let destinations: Vec<Destination> = destinations.collect::<Result<_>>()?;
        let copied = self.submit(fields, &destinations).w()?;
        let tensors = fields.iter().zip(destinations);
        Ok((tensors.map(|(field, destination)| destination.tensor(&self.candle, &field.shape)).collect(), copied))
    }

    fn submit(
        &self,
        fields: &[HostField],
        destinations: &[Destination],
    ) -> std::result::Result<Rc<Event>, DriverError> {
        self.copies.follow(&self.compute)?;
        let copied = self.copies.event()?;
        let mut outcome = Ok(());
        for (field, destination) in fields.iter().zip(destinations) {
            outcome = outcome.and_then(|()| destination.fill_from(&field.memory, &self.compute, &self.copies));
        }
        if outcome.is_err() {
            // The destinations are about to be freed and the sources to be dropped.
            self.copies.synchronize()?;
        }
        outcome?;
        copied.record(self.copies.handle())?;
        Ok(Rc::new(copied))
    }
}

impl Stager for CudaStager {
    fn page_locker(&self) -> Arc<dyn PageLocker> {
        Arc::clone(&self.locker) as Arc<dyn PageLocker>
    }

    fn stage(&mut self, fields: Vec<HostField>) -> Result<()> {
        let (tensors, copied) = self.copy(&fields)?;
        self.staged.push_back(StagedBatch { tensors, copied: Rc::clone(&copied), compute: Arc::clone(&self.compute) });
        self.sources.push_back(Source { copied, fields });
        Ok(())
    }

    fn take(&mut self) -> Result<Option<Vec<Tensor>>> {
        let Some(mut batch) = self.staged.pop_front() else { return Ok(None) };
        batch.copied.hold_back(self.compute.cu_stream()).w()?;
        Ok(Some(std::mem::take(&mut batch.tensors)))
    }

    fn reclaim(&mut self, wait: Wait) -> Result<Option<Vec<Box<dyn PageLocked>>>> {
        let Some(first) = self.sources.front() else { return Ok(None) };
        let is_done = match wait {
            Wait::UntilDone => first.copied.wait().map(|()| true),
            Wait::No => first.copied.is_done(),
        };
        if !is_done.w()? {
            return Ok(None);
        }
        let buffers = self.sources.pop_front().into_iter().flat_map(|mut source| std::mem::take(&mut source.fields));
        let page_locked = |field: HostField| match field.memory {
            HostMemory::PageLocked(buffer) => Some(buffer),
            HostMemory::U32(_) | HostMemory::F32(_) => None,
        };
        Ok(Some(buffers.filter_map(page_locked).collect()))
    }
}

/// A batch on its way. Dropped without being taken, its memory is freed on candle's stream, after the copy.
struct StagedBatch {
    tensors: Vec<Tensor>,
    copied: Rc<Event>,
    compute: Arc<CudaStream>,
}

impl Drop for StagedBatch {
    fn drop(&mut self) {
        if !self.tensors.is_empty() {
            // A context that is beyond use frees nothing in order.
            let _ = self.copied.hold_back(self.compute.cu_stream());
        }
    }
}

/// Host memory that is being copied. Dropped before the copy is done, it waits.
struct Source {
    copied: Rc<Event>,
    fields: Vec<HostField>,
}

impl Drop for Source {
    fn drop(&mut self) {
        let _ = self.copied.wait();
    }
}

/// Device memory for one field.
enum Destination {
    U32(CudaSlice<u32>),
    F32(CudaSlice<f32>),
}

impl Destination {
    /// Room for a field, on candle's stream.
    fn allocate(candle: &CudaDevice, field: &HostField) -> Result<Self> {
        let count = field.shape.iter().product();
        let held = match &field.memory {
            HostMemory::U32(values) => values.len(),
            HostMemory::F32(values) => values.len(),
            HostMemory::PageLocked(buffer) => buffer.words().len(),
        };
        if held < count {
            candle_core::bail!("a field of shape {:?} has {held} values only", field.shape);
        }
        // SAFETY: every word is written by the copy before anything can read it: the tensor is handed out by `take`,
        // after candle's stream was told to wait for the copy. Both types are plain words.
        unsafe {
            match field.dtype {
                DType::U32 => Ok(Self::U32(candle.alloc(count)?)),
                DType::F32 => Ok(Self::F32(candle.alloc(count)?)),
                other => candle_core::bail!("a field of type {other:?} cannot be staged"),
            }
        }
    }

    fn fill_from(
        &self,
        memory: &HostMemory,
        compute: &CudaStream,
        copies: &SideStream,
    ) -> std::result::Result<(), DriverError> {
        let (pointer, count) = match self {
            Self::U32(slice) => (slice.device_ptr(compute).0, slice.len()),
            Self::F32(slice) => (slice.device_ptr(compute).0, slice.len()),
        };
        if count == 0 {
            return Ok(());
        }
        // SAFETY: the destination has room for `count` words and lives until candle's stream, which waits for this
        // copy, frees it; the source has as many (`allocate` looked) and is owned by a `Source`, which outlives the
        // copy.
        unsafe {
            match memory {
                HostMemory::U32(values) => result::memcpy_htod_async(pointer, &values[..count], copies.handle()),
                HostMemory::F32(values) => result::memcpy_htod_async(pointer, &values[..count], copies.handle()),
                HostMemory::PageLocked(buffer) => {
                    result::memcpy_htod_async(pointer, &buffer.words()[..count], copies.handle())
                }
            }
        }
    }

    fn tensor(self, candle: &CudaDevice, shape: &[usize]) -> Tensor {
        let storage = match self {
            Self::U32(slice) => CudaStorage::wrap_cuda_slice(slice, candle.clone()),
            Self::F32(slice) => CudaStorage::wrap_cuda_slice(slice, candle.clone()),
        };
        Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false)
    }
}
