//! Copies of batches to the device that run beside the steps.
//!
//! A step that copies its own batch waits for the copy. A [`Stager`] copies the batches of later steps on a stream of
//! its own meanwhile, which needs the host's side page-locked to be more than a promise: from pageable memory the driver
//! copies through a buffer of its own while the caller waits (CUDA Driver API, "API synchronization behavior"). Only a
//! device with memory of its own has a stager; the virtual device copies in the step and keeps the batches in a queue.
//!
//! A [`HostField`] is owned by the stager while it is copied, so nobody can write to it or free it meanwhile.

use std::fmt::Debug;
use std::sync::Arc;

use candle_core::{DType, Result, Tensor};

/// Page-locked host memory: the device reads it without the processor. In words of 32 bits, the size of a token and of a
/// feature.
pub trait PageLocked: Send + Debug {
    /// The memory.
    fn words(&self) -> &[u32];

    /// The memory, to fill it.
    fn words_mut(&mut self) -> &mut [u32];
}

/// Page-locks memory. May be asked on any thread.
pub trait PageLocker: Send + Sync {
    /// So many words of zeros; or why there are none.
    fn lock(&self, words: usize) -> std::result::Result<Box<dyn PageLocked>, String>;
}

/// Where the values of a field are.
#[derive(Debug)]
pub enum HostMemory {
    /// Ids in pageable memory.
    U32(Vec<u32>),
    /// Features in pageable memory.
    F32(Vec<f32>),
    /// The values are the first words of a page-locked buffer.
    PageLocked(Box<dyn PageLocked>),
}

/// A field of a batch on its way to the device.
#[derive(Debug)]
pub struct HostField {
    /// The values, row-major.
    pub memory: HostMemory,
    /// Their type: `U32` or `F32`.
    pub dtype: DType,
    /// Their shape.
    pub shape: Vec<usize>,
}

/// Copies batches to the device, first in, first out. Used on the training thread alone.
pub trait Stager {
    /// What page-locks memory for this device.
    fn page_locker(&self) -> Arc<dyn PageLocker>;

    /// Begins to copy a batch.
    fn stage(&mut self, fields: Vec<HostField>) -> Result<()>;

    /// The batch that was staged first, as tensors that work submitted from now on may use; `None` where none is staged.
    fn take(&mut self) -> Result<Option<Vec<Tensor>>>;

    /// The page-locked buffers of the first batch whose copy is done and was not given back yet. With `wait`, of the
    /// first batch that was not given back yet, once its copy is done. `None` where there is no such batch.
    fn reclaim(&mut self, wait: Wait) -> Result<Option<Vec<Box<dyn PageLocked>>>>;
}

/// Whether to wait for something that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until it is done.
    UntilDone,
    /// Not at all.
    No,
}
