//! PyTorch's caching allocator, rule for rule, over addresses of its own making.
//!
//! Source: `c10/cuda/CUDACachingAllocator.cpp` of PyTorch 2.11. A request is rounded ([`Settings::round`]), looked for
//! in its stream's pool by best fit, else met by a new segment under the limit, else by releasing cached segments and
//! trying again. What is left of a block is split off only where the rules allow, and joined again when its
//! neighbours are free.
//!
//! What it is not: there are no CUDA graphs' private pools and no events. A block that another stream still uses is
//! pending from [`Policy::free_requested`] until [`Policy::free`], which a trace gives both of.

use std::collections::{HashMap, VecDeque};

use super::hash::FastHash;
use super::heap::{Block, BlockState, Heap, Index, NONE, PlacedBlock, PoolIndex};
use super::settings::{PoolKind, ReleaseThreshold, Request, Settings};
use super::{Address, Counts, Fingerprint, OutOfMemory, Policy, PoolState, Stream};
use crate::memory::trace::{SegmentAction, SegmentEvent};
use crate::units::MIB;

/// Where the first segment is put. High enough to look like a device address, low enough that 2^53 is far away.
const FIRST_ADDRESS: u64 = 1 << 40;
/// Left between segments, so that two never look like neighbours.
const SEGMENT_GAP_BYTES: u64 = 2 * MIB;

/// A segment whose address is known beforehand, from a recorded trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedSegment {
    /// Its first address.
    pub address: Address,
    /// Its size.
    pub bytes: u64,
    /// Its stream.
    pub stream: Stream,
}

/// The caching allocator, with native or expandable segments as its [`Settings`] say.
#[derive(Debug)]
pub struct Native {
    pub(super) settings: Settings,
    pub(super) limit_bytes: u64,
    pub(super) heap: Heap,
    /// Blocks in use, by address.
    addresses: HashMap<u64, Index, FastHash>,
    next_address: u64,
    placed: VecDeque<PlacedSegment>,
    /// Garbage collections that had anything to look for.
    collections: u64,
    /// What was taken from the device and given back, where somebody asked for it.
    log: Option<Vec<SegmentEvent>>,
}

impl Native {
    /// PyTorch's defaults under a limit; `u64::MAX` is none.
    pub fn new(limit_bytes: u64) -> Self {
        Self::with_settings(Settings::default(), limit_bytes)
    }

    /// Other settings under a limit.
    pub fn with_settings(settings: Settings, limit_bytes: u64) -> Self {
        Self {
            settings,
            limit_bytes,
            heap: Heap::default(),
            addresses: HashMap::default(),
            next_address: FIRST_ADDRESS,
            placed: VecDeque::new(),
            collections: 0,
            log: None,
        }
    }

    /// Says where the next new segment will be, if its size and stream are these.
    ///
    /// Ties between blocks are broken by address, so a trace replays exactly only at its own addresses.
    pub fn expect_segment(&mut self, segment: PlacedSegment) {
        self.placed.push_back(segment);
    }

    /// Hands back the segment of this size and stream that starts at `address`, if it is wholly free.
    pub fn release_segment(&mut self, segment: PlacedSegment) -> bool {
        let PlacedSegment { address, bytes, stream } = segment;
        let pools = [PoolKind::Small, PoolKind::Large].map(|kind| self.heap.pool_index(stream, kind));
        let found = pools.into_iter().find_map(|pool| self.heap.pool(pool).free.find(bytes, address.0));
        let found = found.filter(|key| self.is_segment(key.2));
        if let Some((_, _, index)) = found {
            self.release_whole(index);
        }
        found.is_some()
    }

    /// Keeps what is taken from the device and given back from here on, for [`take_segments`](Self::take_segments).
    pub(crate) fn record_segments(&mut self) {
        self.log = Some(Vec::new());
    }

    /// What was taken from the device and given back since the last call.
    pub(crate) fn take_segments(&mut self) -> Vec<SegmentEvent> {
        self.log.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Notes a change, where somebody asked for it.
    pub(super) fn log(&mut self, action: SegmentAction, address: u64, bytes: u64, pool: PoolIndex) {
        let stream = self.heap.pool(pool).stream;
        if let Some(log) = &mut self.log {
            log.push(SegmentEvent { before: 0, action, address: Address(address), bytes, stream });
        }
    }

    /// Whether a block is in use by the program (and not only by another stream).
    pub(crate) fn is_live(&self, address: Address) -> bool {
        self.addresses.get(&address.0).is_some_and(|index| self.heap.block(*index).state == BlockState::Live)
    }

    /// Every block with memory behind it, segment by segment in the order of addresses.
    pub(crate) fn blocks(&self) -> Vec<PlacedBlock> {
        self.heap.mapped_blocks()
    }

    /// Best fit: the smallest free block of the pool that is large enough, the lowest address among equals.
    fn take_best_fit(&mut self, pool: PoolIndex, request: Request) -> Option<Index> {
        let wanted = request.rounded_bytes;
        self.heap.pool_mut(pool).searches += 1;
        let (bytes, index) = if self.settings.expandable_segments {
            self.best_fit_expandable(pool, wanted)?
        } else {
            let (bytes, _, index) = self.heap.pool(pool).free.best_fit(wanted)?;
            (bytes, index)
        };
        // A block that may not serve ends the search: PyTorch does not look at the next one.
        if !self.settings.may_serve(bytes, wanted) {
            return None;
        }
        self.heap.remove_free(index, &self.settings);
        Some(index)
    }

    /// Memory for a request that no cached block serves.
    fn grow(&mut self, pool: PoolIndex, stream: Stream, request: Request) -> Option<Index> {
        self.collect_garbage();
        if let Some(index) = self.new_segment(pool, stream, request) {
            return Some(index);
        }
        if self.settings.max_split_bytes.is_some()
            && self.release_available(pool, request.rounded_bytes)
            && let Some(index) = self.new_segment(pool, stream, request)
        {
            return Some(index);
        }
        self.release_all();
        self.heap.counts.retries += 1;
        let again = self.new_segment(pool, stream, request);
        if again.is_none() && self.settings.search_after_release {
            return self.take_best_fit(pool, request);
        }
        again
    }

    /// A segment from the device, as one block in no list.
    fn new_segment(&mut self, pool: PoolIndex, stream: Stream, request: Request) -> Option<Index> {
        let bytes = request.segment_bytes;
        if self.heap.figures.reserved.checked_add(bytes).is_none_or(|total| total > self.limit_bytes) {
            return None;
        }
        if self.settings.expandable_segments {
            return self.expand(pool, request);
        }
        let address = self.segment_address(bytes, stream)?;
        self.heap.reserve(bytes);
        self.heap.figures.segments += 1;
        self.log(SegmentAction::Allocate, address, bytes, pool);
        Some(self.heap.add(Block {
            address,
            bytes,
            requested_bytes: 0,
            pool,
            previous: NONE,
            next: NONE,
            state: BlockState::Free,
            freed_at_search: 0,
            range_start: None,
        }))
    }

    /// Where a new segment goes: where the trace says, else behind all others.
    fn segment_address(&mut self, bytes: u64, stream: Stream) -> Option<u64> {
        match self.take_placed(bytes, stream) {
            Some(address) if address.checked_add(bytes).is_some() => Some(address),
            _ => self.bump(bytes),
        }
    }

    /// The address of the next expected segment, if it is this one.
    pub(super) fn take_placed(&mut self, bytes: u64, stream: Stream) -> Option<u64> {
        let placed = self.placed.front().filter(|placed| (placed.bytes, placed.stream) == (bytes, stream))?;
        let address = placed.address.0;
        self.placed.pop_front();
        Some(address)
    }

    /// Where a new range of an expandable segment goes: its first pages are the next expected ones.
    pub(super) fn range_address(&mut self, pool: PoolIndex, bytes: u64) -> Option<u64> {
        let stream = self.heap.pool(pool).stream;
        let placed = self.placed.front().filter(|placed| placed.stream == stream).map(|placed| placed.address.0);
        placed.filter(|address| address.checked_add(bytes).is_some()).or_else(|| self.bump(bytes))
    }

    /// A range of addresses that was never used.
    pub(super) fn bump(&mut self, bytes: u64) -> Option<u64> {
        let address = self.next_address;
        self.next_address = address.checked_add(bytes)?.checked_add(SEGMENT_GAP_BYTES)?;
        Some(address)
    }

    /// Hands a free whole block back to the device.
    fn release_whole(&mut self, index: Index) {
        let Block { address, bytes, pool, .. } = *self.heap.block(index);
        self.log(SegmentAction::Free, address, bytes, pool);
        self.heap.remove_free(index, &self.settings);
        self.heap.vacate(index);
        self.heap.unreserve(bytes);
        self.heap.figures.segments -= 1;
    }

    /// Hands back every whole free block, and every whole page of expandable segments.
    fn release_all(&mut self) {
        for index in self.free_blocks(PoolKind::Large).chain(self.free_blocks(PoolKind::Small)).collect::<Vec<_>>() {
            match self.heap.block(index).range_start {
                Some(range_start) => self.unmap(index, range_start),
                None if self.heap.block(index).is_whole() => self.release_whole(index),
                None => {}
            }
        }
    }

    fn free_blocks(&self, kind: PoolKind) -> impl Iterator<Item = Index> {
        self.heap.pools_of(kind).flat_map(|pool| pool.free.iter().map(|key| key.2))
    }

    /// With `max_split_size`: hands back one oversize block that is large enough, else the largest ones until their
    /// sum is.
    fn release_available(&mut self, pool: PoolIndex, wanted: u64) -> bool {
        let Some(max_split) = self.settings.max_split_bytes else { return false };
        let key = wanted.max(max_split);
        let free = &self.heap.pool(pool).free;
        let mut victims: Vec<Index> = free.best_fit(key).map(|found| found.2).into_iter().collect();
        let mut sum = if victims.is_empty() { 0 } else { key };
        if victims.is_empty() {
            for (bytes, _, index) in free.iter().rev().take_while(|found| found.0 >= max_split) {
                if sum >= key {
                    break;
                }
                victims.push(index);
                sum = sum.saturating_add(bytes);
            }
        }
        for index in victims {
            // Blocks of at least `max_split_size` are never split, so each is a segment, unless it can expand.
            if self.is_segment(index) {
                self.release_whole(index);
            }
        }
        sum >= key
    }

    /// Whether a block is a native segment by itself.
    fn is_segment(&self, index: Index) -> bool {
        let block = self.heap.block(index);
        block.is_whole() && block.range_start.is_none()
    }

    fn out_of_memory(&self, requested_bytes: u64) -> OutOfMemory {
        OutOfMemory {
            requested_bytes,
            allocated_bytes: self.heap.figures.allocated,
            reserved_bytes: self.heap.figures.reserved,
            limit_bytes: self.limit_bytes,
        }
    }
}

/// The same without a table of addresses, for a replay that keeps the handles itself.
impl Native {
    /// Places a request; the result is its handle until it is given back.
    pub(crate) fn take(&mut self, bytes: u64, stream: Stream) -> Result<Index, OutOfMemory> {
        let Some(request) = self.settings.request(bytes) else {
            self.heap.counts.out_of_memory += 1;
            return Err(self.out_of_memory(bytes));
        };
        let pool = self.heap.pool_index(stream, request.pool);
        let found = self.take_best_fit(pool, request).or_else(|| self.grow(pool, stream, request));
        let Some(index) = found else {
            self.heap.counts.out_of_memory += 1;
            return Err(self.out_of_memory(bytes));
        };
        if self.settings.splits(request.pool, self.heap.block(index).bytes, request.rounded_bytes) {
            let tail = self.heap.split_at(index, request.rounded_bytes);
            self.heap.insert_free(tail, &self.settings);
        }
        self.heap.make_live(index, bytes);
        Ok(index)
    }

    /// Where a block in use is.
    pub(crate) fn address_of(&self, handle: Index) -> Address {
        Address(self.heap.block(handle).address)
    }

    /// [`Policy::free_requested`] by handle.
    pub(crate) fn give_later(&mut self, handle: Index) {
        self.heap.make_pending(handle);
    }

    /// [`Policy::free`] by handle.
    pub(crate) fn give(&mut self, handle: Index) {
        self.heap.retire(handle);
        self.heap.merge_free_neighbours(handle, &self.settings);
        self.heap.insert_free(handle, &self.settings);
    }
}

impl Policy for Native {
    fn allocate(&mut self, bytes: u64, stream: Stream) -> Result<Address, OutOfMemory> {
        let index = self.take(bytes, stream)?;
        let address = self.address_of(index);
        self.addresses.insert(address.0, index);
        Ok(address)
    }

    fn free_requested(&mut self, address: Address) {
        if let Some(index) = self.addresses.get(&address.0).copied() {
            self.give_later(index);
        }
    }

    fn free(&mut self, address: Address) {
        if let Some(index) = self.addresses.remove(&address.0) {
            self.give(index);
        }
    }

    fn release_cached(&mut self) {
        self.release_all();
    }

    fn synchronised(&mut self) {
        if self.settings.release_threshold == ReleaseThreshold::Zero {
            self.release_all();
        }
    }

    fn state(&self) -> PoolState {
        let figures = &self.heap.figures;
        let budget = self.limit_bytes.saturating_sub(figures.reserved - figures.releasable);
        let growth = if self.settings.expandable_segments {
            self.settings.largest_by_mapping(budget)
        } else {
            self.settings.largest_in_new_segment(budget)
        };
        self.heap.state(self.limit_bytes, growth, &self.settings)
    }

    fn counts(&self) -> Counts {
        self.heap.counts
    }

    fn reset_peaks(&mut self) {
        self.heap.reset_peaks();
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        // Where a recording says what comes next, or changes are kept, a state is more than its blocks.
        if !self.placed.is_empty() || self.log.is_some() {
            return None;
        }
        Some(self.heap.fingerprint(self.collections))
    }
}

mod garbage;
#[cfg(test)]
mod tests;
