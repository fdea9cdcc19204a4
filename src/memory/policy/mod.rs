//! Allocator policies: where an allocator would put each request.
//!
//! A policy works on addresses of its own making. It never touches memory, so the same code serves as the virtual
//! device's allocator, as the shadow of a real one, and as the engine of a replay.

use serde::{Deserialize, Serialize};

use super::event::Stream;
use super::spec::AllocatorKind;

pub mod conf;
pub mod native;
pub mod settings;
pub mod supervised;

mod expandable;
mod free_list;
mod hash;
mod heap;

#[cfg(test)]
mod contract;

pub use conf::{AllocConf, Backend, ConfError};
pub(crate) use hash::FastHash;
pub use settings::{ReleaseThreshold, Settings};

/// An address in a policy's own space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Address(pub u64);

/// A request that could not be met under the limit, with the figures at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error(
    "out of memory: {} requested, {} allocated, {} reserved of a limit of {}",
    crate::units::Bytes(*.requested_bytes),
    crate::units::Bytes(*.allocated_bytes),
    crate::units::Bytes(*.reserved_bytes),
    crate::units::Bytes(*.limit_bytes)
)]
pub struct OutOfMemory {
    /// The request, before rounding.
    pub requested_bytes: u64,
    /// A at that moment.
    pub allocated_bytes: u64,
    /// V at that moment.
    pub reserved_bytes: u64,
    /// C.
    pub limit_bytes: u64,
}

/// A pool's figures at one moment. Peaks count since the last [`Policy::reset_peaks`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolState {
    /// A: bytes of live blocks, after the policy's rounding.
    pub allocated_bytes: u64,
    /// What the live blocks were asked for, before rounding: the same under every policy.
    #[serde(default)]
    pub requested_bytes: u64,
    /// V: bytes held from the device.
    pub reserved_bytes: u64,
    /// C.
    pub limit_bytes: u64,
    /// The highest A.
    pub peak_allocated_bytes: u64,
    /// The highest V.
    pub peak_reserved_bytes: u64,
    /// The largest free block.
    pub largest_free_bytes: u64,
    /// L: the largest single request that would succeed, counting what can be released.
    pub largest_satisfiable_bytes: u64,
    /// U: free bytes that releasing the cache could not give back.
    pub unreleasable_bytes: u64,
    /// Live blocks.
    pub allocated_blocks: u64,
    /// Free blocks held in the cache.
    pub free_blocks: u64,
    /// Segments held from the device.
    pub segments: u64,
}

/// What a policy has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Segments (or groups of pages) taken from the device.
    pub segments_allocated: u64,
    /// Segments (or groups of pages) handed back.
    pub segments_freed: u64,
    /// Requests that had to release the cache first.
    pub retries: u64,
    /// Requests that failed.
    pub out_of_memory: u64,
}

/// What decides how a policy goes on, as numbers that are the same for two states in which all that follows goes the same
/// way: the blocks in the order of their addresses, what is live and what is free, and whatever else decides. Where blocks
/// lie absolutely does not, nor do counts and peaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Of all but the ages.
    pub blocks: u64,
    /// Of how long free blocks have been passed over. A garbage collection compares them, and nothing else does.
    pub ages: u64,
    /// Collections so far that had something to look for.
    pub collections: u64,
}

impl Fingerprint {
    /// Whether a policy goes the same way again that it went since an earlier moment.
    ///
    /// Blocks that nobody asks for grow older for ever, so their ages never come again. That does not matter where no
    /// collection has compared any since: whether one has something to look for follows from the blocks alone, so going the
    /// same way again compares none either.
    pub fn repeats(self, earlier: Self) -> bool {
        self.blocks == earlier.blocks && (self.collections == earlier.collections || self.ages == earlier.ages)
    }
}

/// An exact (or, where its docs say so, an approximate) model of an allocator.
///
/// Called in this order: any number of [`allocate`](Policy::allocate) and [`free`](Policy::free), with
/// [`state`](Policy::state) at any time. A failed `allocate` leaves every live block where it was.
pub trait Policy: Send {
    /// Places a request of `bytes` on `stream`. Zero bytes are a request like any other.
    fn allocate(&mut self, bytes: u64, stream: Stream) -> Result<Address, OutOfMemory>;

    /// Notes that the program has freed a block that another stream still uses: it no longer counts as allocated, and
    /// serves no request until [`free`](Policy::free). Without such news `free` alone is called.
    fn free_requested(&mut self, address: Address);

    /// Frees a block. An address that is not live is ignored: a stranger's trace may hold anything.
    fn free(&mut self, address: Address);

    /// Hands every releasable free byte back to the device (`torch.cuda.empty_cache`, `cuMemPoolTrimTo`).
    fn release_cached(&mut self);

    /// The host waited for the device, as it does after every step: a pool with a release threshold of 0 hands its
    /// cache back here.
    fn synchronised(&mut self) {}

    /// The figures now, in O(log n).
    fn state(&self) -> PoolState;

    /// What was done so far.
    fn counts(&self) -> Counts;

    /// Starts a new window for the peaks.
    fn reset_peaks(&mut self);

    /// What decides how it goes on. `None` where the policy cannot tell.
    fn fingerprint(&self) -> Option<Fingerprint> {
        None
    }
}

/// The kinds that a plan can name.
pub const KINDS: [AllocatorKind; 3] =
    [AllocatorKind::Native, AllocatorKind::Expandable, AllocatorKind::CudaMallocAsync];

/// The registry: the settings that make the model one of a kind. `auto` is the CPU device's own, `native`.
pub fn settings_of(kind: AllocatorKind) -> Settings {
    match kind {
        AllocatorKind::Auto | AllocatorKind::Native => Settings::default(),
        AllocatorKind::Expandable => Settings::expandable(),
        AllocatorKind::CudaMallocAsync => Settings::driver_pool(ReleaseThreshold::Max),
    }
}

/// The policy of a kind, with a limit of `limit_bytes`.
pub fn build(kind: AllocatorKind, limit_bytes: u64) -> Box<dyn Policy> {
    with_settings(settings_of(kind), limit_bytes)
}

/// The policy with these settings, with a limit of `limit_bytes`.
pub fn with_settings(settings: Settings, limit_bytes: u64) -> Box<dyn Policy> {
    Box::new(native::Native::with_settings(settings, limit_bytes))
}
