//! Data-parallel training: replicas of one model that stay equal.
//!
//! Every replica starts from the parameters of rank 0, and before each update all of them average their gradients, so
//! that the same update is made everywhere. Between the micro-batches of an update nothing is exchanged (what PyTorch's
//! `DistributedDataParallel` calls `no_sync`). The gradients go in [buckets](bucket). candle's backward pass has no hook at
//! which a bucket could be sent while the pass goes on, so the exchange comes after it, and its time is part of the
//! optimizer's, once an update. Where segments are recomputed, the pass comes back after each of them, and what is final
//! then goes [beside it](overlap): the optimizer's time has what was still waited for.
//!
//! A bucket is a tensor on the device, and after the exchange the gradients are views of it. So the exchange needs the
//! memory of one bucket beside the gradients, and that of the largest parameter at least; a recording sees it, so it is
//! in every forecast.
//!
//! What must be equal is checked rather than hoped for: which gradients there are before every exchange, and the bits of
//! the parameters at the start and after the first updates, when a program that lets its replicas drift apart does so.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use candle_core::{Result, Tensor};

use self::bucket::Slot;
use self::overlap::Overlap;
use super::checkpoint;
use super::gradients::Gradients;
use super::recompute::Follow;
use crate::device::collective::{Collective, CollectiveError, Reduction};
use crate::model::{Buffers, Workload};

mod bucket;
mod overlap;

pub use bucket::BUCKET_BYTES;

/// The parameters are compared after the updates that end within so many micro-batches, and after the first in any case:
/// those are steps that nobody times.
const CHECKED_MICRO_BATCHES: u32 = 2;

/// Which micro-batch of its update one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Another one may follow.
    Earlier,
    /// The update follows.
    Last,
}

/// This replica among the others.
#[derive(Debug)]
pub struct Replicas {
    group: Arc<dyn Collective>,
    /// Micro-batches of the updates so far.
    micro_batches: u32,
    overlap: Overlap,
}

impl Replicas {
    /// Gives the workload the parameters and buffers of rank 0, and makes sure that all have them.
    pub fn align(group: Arc<dyn Collective>, workload: &dyn Workload) -> Result<Self> {
        let buffers = workload.buffers().into_iter().flat_map(Buffers::iter);
        let kept: Vec<(&str, &Tensor)> =
            workload.parameters().iter().chain(buffers).map(|(name, variable)| (name, variable.as_tensor())).collect();
        group.check_equal("names and shapes of the parameters", layout(kept.iter().copied())).map_err(into_candle)?;
        let tensors: Vec<&Tensor> = kept.iter().map(|(_, tensor)| *tensor).collect();
        group.broadcast(&tensors).map_err(into_candle)?;
        let replicas = Self { group, micro_batches: 0, overlap: Overlap::default() };
        replicas.compare(workload)?;
        Ok(replicas)
    }

    /// What follows a backward pass that comes back after every segment; `None` where nothing is to be done in between.
    pub(super) fn follower(&mut self, turn: Turn) -> Option<Box<dyn Follow + '_>> {
        self.overlap.follower(self.group.as_ref(), turn)
    }

    /// What ended the group, where something did.
    pub fn failure(&self) -> Option<CollectiveError> {
        self.group.failure()
    }

    /// Makes the gradients of all replicas their mean.
    pub(super) fn average(&mut self, gradients: &mut Gradients) -> Result<()> {
        let (group, sums) = (self.group.as_ref(), gradients.sums_mut());
        let sent = self.overlap.send_rest(group, sums)?;
        let found = layout(sums.iter().map(|(name, sum)| (name.as_str(), sum)));
        group.check_equal("gradients", found.wrapping_add(sent.unwrap_or_default())).map_err(into_candle)?;
        for slots in bucket::pack(sums.iter().map(Slot::of), BUCKET_BYTES) {
            let bucket = bucket::fill(slots.iter().filter_map(|slot| sums.get(&slot.name).cloned()).collect())?;
            group.all_reduce(&[&bucket], Reduction::Mean).map_err(into_candle)?;
            for (slot, view) in slots.iter().zip(bucket::views(&bucket, &slots)) {
                sums.insert(slot.name.clone(), view?);
            }
        }
        self.overlap.take_back(sums)
    }

    /// Notes an update over so many micro-batches. After the first ones the parameters are compared.
    pub(super) fn updated(&mut self, micro_batches: u32, workload: &dyn Workload) -> Result<()> {
        let is_first = self.micro_batches == 0;
        self.micro_batches = self.micro_batches.saturating_add(micro_batches);
        if is_first || self.micro_batches <= CHECKED_MICRO_BATCHES { self.compare(workload) } else { Ok(()) }
    }

    fn compare(&self, workload: &dyn Workload) -> Result<()> {
        let mut checksum = DefaultHasher::new();
        for (_, variable) in workload.parameters().iter() {
            checkpoint::for_each_chunk(variable.as_tensor(), |bytes| {
                checksum.write_u64(sum_of(bytes));
                Ok::<_, candle_core::Error>(())
            })?;
        }
        self.group.check_equal("parameters", checksum.finish()).map_err(into_candle)
    }
}

/// An error on its way through candle. Its kind is lost there; the group keeps what ended it.
fn into_candle(error: CollectiveError) -> candle_core::Error {
    candle_core::Error::wrap(error)
}

/// A number for the names, shapes, and types of tensors. Every replica is the same program, so a hasher's keys are too.
fn layout<'a>(tensors: impl Iterator<Item = (&'a str, &'a Tensor)>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (name, tensor) in tensors {
        (name, tensor.dims(), tensor.dtype().as_str()).hash(&mut hasher);
    }
    hasher.finish()
}

/// A checksum that is as quick as memory: eight bytes at a time, each of which changes what becomes of those before it.
fn sum_of(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mix = |sum: u64, word: u64| (sum.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let sum = words.iter().map(|word| u64::from_le_bytes(*word)).fold(bytes.len() as u64, mix);
    rest.iter().map(|byte| u64::from(*byte)).fold(sum, mix)
}

#[cfg(test)]
mod tests;
