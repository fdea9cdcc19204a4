//! PyTorch's caching allocator, rule for rule, over addresses of its own making.
//!
//! Source: `c10/cuda/CUDACachingAllocator.cpp` of PyTorch 2.11. A request is rounded ([`Settings::round`]), looked for
//! in its stream's pool by best fit, else met by a new segment under the limit, else by releasing cached segments and
//! trying again. What is left of a block is split off only where the rules allow, and joined again when its
//! neighbours are free.
//!
//! What it is not: there are no CUDA graphs' private pools and no events. A block that another stream still uses is
//! pending from [`Policy::free_requested`] until [`Policy::free`], which a trace gives both of.

use std::collections::VecDeque;

use super::heap::{Block, BlockState, Heap, Index, NONE, PoolIndex};
use super::settings::{PoolKind, Request, Settings};
use super::{Address, Counts, OutOfMemory, Policy, PoolState, Stream};
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
    next_address: u64,
    placed: VecDeque<PlacedSegment>,
}

impl Native {
    /// PyTorch's defaults under a limit; `u64::MAX` is none.
    pub fn new(limit_bytes: u64) -> Self {
        Self::with_settings(Settings::default(), limit_bytes)
    }

    /// Other settings under a limit.
    pub fn with_settings(settings: Settings, limit_bytes: u64) -> Self {
        Self { settings, limit_bytes, heap: Heap::default(), next_address: FIRST_ADDRESS, placed: VecDeque::new() }
    }

    /// Says where the next new segment will be, if its size and stream are these.
    ///
    /// Ties between blocks are broken by address, so a trace replays exactly only at its own addresses.
    pub fn expect_segment(&mut self, segment: PlacedSegment) {
        self.placed.push_back(segment);
    }

    /// Hands back the segment that starts at `address`, if it is wholly free.
    pub fn release_segment(&mut self, address: Address) -> bool {
        let found = [PoolKind::Small, PoolKind::Large]
            .into_iter()
            .flat_map(|kind| self.heap.pools_of(kind))
            .flat_map(|pool| pool.free.iter())
            .find(|(_, start, index)| *start == address.0 && self.heap.block(*index).is_whole())
            .map(|(_, _, index)| *index);
        if let Some(index) = found {
            self.release_whole(index);
        }
        found.is_some()
    }

    /// Best fit: the smallest free block of the pool that is large enough, the lowest address among equals.
    fn take_best_fit(&mut self, pool: PoolIndex, request: Request) -> Option<Index> {
        let wanted = request.rounded_bytes;
        let pool = self.heap.pool_mut(pool);
        pool.searches += 1;
        let &(bytes, _, index) = pool.free.range((wanted, 0, 0)..).next()?;
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
        let address = self.segment_address(bytes, stream)?;
        self.heap.reserve(bytes);
        self.heap.figures.segments += 1;
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
        if let Some(placed) = self.placed.front()
            && (placed.bytes, placed.stream) == (bytes, stream)
        {
            let address = placed.address.0;
            self.placed.pop_front();
            return Some(address);
        }
        self.bump(bytes)
    }

    /// A range of addresses that was never used.
    pub(super) fn bump(&mut self, bytes: u64) -> Option<u64> {
        let address = self.next_address;
        self.next_address = address.checked_add(bytes)?.checked_add(SEGMENT_GAP_BYTES)?;
        Some(address)
    }

    /// Hands a free whole block back to the device.
    fn release_whole(&mut self, index: Index) {
        let bytes = self.heap.block(index).bytes;
        self.heap.remove_free(index, &self.settings);
        self.heap.vacate(index);
        self.heap.unreserve(bytes);
        self.heap.figures.segments -= 1;
    }

    /// Hands back every whole free block.
    fn release_all(&mut self) {
        for index in self.free_blocks(PoolKind::Large).chain(self.free_blocks(PoolKind::Small)).collect::<Vec<_>>() {
            if self.heap.block(index).is_whole() {
                self.release_whole(index);
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
        let mut victims: Vec<Index> = free.range((key, 0, 0)..).take(1).map(|found| found.2).collect();
        let mut sum = if victims.is_empty() { 0 } else { key };
        if victims.is_empty() {
            for &(bytes, _, index) in free.iter().rev().take_while(|found| found.0 >= max_split) {
                if sum >= key {
                    break;
                }
                victims.push(index);
                sum = sum.saturating_add(bytes);
            }
        }
        for index in victims {
            // Blocks of at least `max_split_size` are never split, so each is a segment, unless the setting changed.
            if self.heap.block(index).is_whole() {
                self.release_whole(index);
            }
        }
        sum >= key
    }

    /// Hands back whole large blocks that were passed over for longer than the average, while more than the
    /// threshold is reserved.
    fn collect_garbage(&mut self) {
        let Some(threshold) = self.settings.garbage_collection_threshold.filter(|threshold| *threshold > 0.0) else {
            return;
        };
        let allowed = (threshold * self.limit_bytes as f64) as u64;
        let target = self.heap.figures.reserved.saturating_sub(allowed);
        let mut idle: Vec<(Index, u64)> = self
            .free_blocks(PoolKind::Large)
            .filter(|index| self.heap.block(*index).is_whole())
            .map(|index| (index, self.age(index)))
            .collect();
        let mut reclaimed = 0;
        while reclaimed < target && !idle.is_empty() {
            let mean_age = idle.iter().map(|(_, age)| age).sum::<u64>() / idle.len() as u64;
            let (old, young): (Vec<_>, Vec<_>) = idle.into_iter().partition(|(_, age)| *age >= mean_age);
            idle = young;
            // PyTorch finishes a pass even when the target is met half-way.
            for (index, _) in old {
                reclaimed += self.heap.block(index).bytes;
                self.release_whole(index);
            }
        }
    }

    fn age(&self, index: Index) -> u64 {
        let block = self.heap.block(index);
        self.heap.pool(block.pool).searches - block.freed_at_search
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

impl Policy for Native {
    fn allocate(&mut self, bytes: u64, stream: Stream) -> Result<Address, OutOfMemory> {
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
        Ok(self.heap.make_live(index, bytes))
    }

    fn free_requested(&mut self, address: Address) {
        if let Some(index) = self.heap.live_at(address) {
            self.heap.make_pending(index);
        }
    }

    fn free(&mut self, address: Address) {
        if let Some(index) = self.heap.live_at(address) {
            self.heap.retire(index);
            self.heap.merge_free_neighbours(index, &self.settings);
            self.heap.insert_free(index, &self.settings);
        }
    }

    fn release_cached(&mut self) {
        self.release_all();
    }

    fn state(&self) -> PoolState {
        let figures = &self.heap.figures;
        let budget = self.limit_bytes.saturating_sub(figures.reserved - figures.releasable);
        self.heap.state(self.limit_bytes, self.settings.largest_in_new_segment(budget), &self.settings)
    }

    fn counts(&self) -> Counts {
        self.heap.counts
    }

    fn reset_peaks(&mut self) {
        self.heap.reset_peaks();
    }
}

#[cfg(test)]
mod tests;
