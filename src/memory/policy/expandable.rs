//! PyTorch's expandable segments: address space first, memory page by page.
//!
//! Source: `try_allocate_expandable_block`, `map_block` and `unmap_block` of `c10/cuda/CUDACachingAllocator.cpp`. Each
//! pool of a stream reserves one long range of addresses (9/8 of the device's memory) and puts memory behind its pages
//! as requests need it, so that a segment can grow where a native one would leave a hole and start another. Pages are
//! 2 MiB in the small pool and 20 MiB in the large one. Only whole pages within a free block can be handed back; what is
//! left at their borders stays.
//!
//! These are the parts of [`Native`] that differ when [`Settings::expandable_segments`] is on.

use super::heap::{Block, BlockState, Index, NONE, PoolIndex, whole_pages};
use super::native::Native;
use super::settings::{Request, Settings, round_up};
use crate::memory::trace::SegmentAction;
use crate::units::GIB;

/// The address range of a pool where the device's memory is not known: more than any device has.
const UNLIMITED_RANGE_BYTES: u64 = 16 * 1024 * GIB;

impl Settings {
    /// The largest request that mapping new pages can serve when `budget_bytes` are left. A partial page that is free
    /// at the end of the segment could add to it: this is at most one page too little.
    pub(super) fn largest_by_mapping(&self, budget_bytes: u64) -> u64 {
        let whole_pages = |page: u64| self.round_down(budget_bytes - budget_bytes % page.max(1));
        let allowed = self.largest_in_new_segment(budget_bytes);
        let large = allowed.min(whole_pages(self.large_segment_bytes));
        if large > self.small_request_bytes {
            return large;
        }
        allowed.min(whole_pages(self.small_segment_bytes)).min(self.round_down(self.small_request_bytes))
    }
}

impl Native {
    /// Best fit where the block at the growing end counts with all it could grow to: an interior hole is preferred.
    pub(super) fn best_fit_expandable(&self, pool: PoolIndex, wanted: u64) -> Option<(u64, Index)> {
        let free = &self.heap.pool(pool).free;
        let mut best = free.best_fit(wanted)?;
        while let Some(next) = free.after(best)
            && self.size_with_growth(next.2) < self.size_with_growth(best.2)
        {
            best = next;
        }
        Some((best.0, best.2))
    }

    fn size_with_growth(&self, index: Index) -> u64 {
        let block = self.heap.block(index);
        let growth = self.heap.neighbour(block.next).filter(|next| next.state == BlockState::Unmapped);
        block.bytes + growth.map_or(0, |next| next.bytes)
    }

    /// A free block of at least the request's size, with memory mapped behind all of it, in no list.
    pub(super) fn expand(&mut self, pool: PoolIndex, request: Request) -> Option<Index> {
        let wanted = request.rounded_bytes;
        let mut candidate = match self.room_for(pool, wanted) {
            Some(found) => found,
            None => self.reserve_range(pool, wanted)?,
        };
        if self.heap.block(candidate).state == BlockState::Unmapped {
            candidate = self.map(candidate, wanted)?;
        }
        while self.heap.block(candidate).bytes < wanted {
            let missing = wanted - self.heap.block(candidate).bytes;
            candidate = self.map(self.heap.block(candidate).next, missing)?;
        }
        self.heap.remove_free(candidate, &self.settings);
        Some(candidate)
    }

    /// The lowest place where unmapped space and its free neighbours add up to `wanted`.
    fn room_for(&self, pool: PoolIndex, wanted: u64) -> Option<Index> {
        self.heap.pool(pool).unmapped.iter().find_map(|&(_, unmapped)| {
            let previous = self.heap.block(unmapped).previous;
            let start = if self.is_allocatable(previous) { previous } else { unmapped };
            let (mut at, mut room) = (start, 0);
            while room < wanted && self.is_allocatable(at) {
                room += self.heap.block(at).bytes;
                at = self.heap.block(at).next;
            }
            (room >= wanted).then_some(start)
        })
    }

    fn is_allocatable(&self, index: Index) -> bool {
        self.heap.neighbour(index).is_some_and(|block| matches!(block.state, BlockState::Free | BlockState::Unmapped))
    }

    /// A new range of addresses with no memory behind it.
    fn reserve_range(&mut self, pool: PoolIndex, wanted: u64) -> Option<Index> {
        let page = self.settings.page_bytes(self.heap.pool(pool).kind);
        let bytes = round_up(self.limit_bytes.saturating_add(self.limit_bytes / 8).min(UNLIMITED_RANGE_BYTES), page)?;
        if bytes < wanted {
            return None;
        }
        let address = self.range_address(pool, bytes)?;
        let index = self.heap.add(Block {
            address,
            bytes,
            requested_bytes: 0,
            pool,
            previous: NONE,
            next: NONE,
            state: BlockState::Unmapped,
            freed_at_search: 0,
            range_start: Some(address),
        });
        self.heap.insert_unmapped(index);
        Some(index)
    }

    /// Puts memory behind the first `wanted` bytes of an unmapped block, in whole pages, and joins it with its free
    /// neighbours. The result is free. Where the device has too little left nothing happens.
    fn map(&mut self, index: Index, wanted: u64) -> Option<Index> {
        let block = *self.heap.block(index);
        let page = self.settings.page_bytes(self.heap.pool(block.pool).kind);
        let bytes = round_up(wanted.min(block.bytes), page)?.min(block.bytes);
        if bytes > self.limit_bytes.saturating_sub(self.heap.figures.reserved) {
            return None;
        }
        self.heap.remove_unmapped(index);
        if bytes < block.bytes {
            let rest = self.heap.split_at(index, bytes);
            self.heap.insert_unmapped(rest);
        }
        self.take_placed(bytes, self.heap.pool(block.pool).stream);
        let mapped = [self.heap.block(index).previous, self.heap.block(index).next].map(|side| self.is_mapped(side));
        self.heap.figures.segments += 1;
        self.heap.figures.segments -= mapped.iter().filter(|side| **side).count() as u64;
        self.heap.reserve(bytes);
        self.log(SegmentAction::Map, block.address, bytes, block.pool);
        self.heap.block_mut(index).state = BlockState::Free;
        self.heap.merge_free_neighbours(index, &self.settings);
        self.heap.insert_free(index, &self.settings);
        Some(index)
    }

    /// Hands the whole pages of a free block back, and its address range when nothing of it is mapped any more.
    pub(super) fn unmap(&mut self, index: Index, range_start: u64) {
        let block = *self.heap.block(index);
        let (low, high) = whole_pages(&block, range_start, self.settings.page_bytes(self.heap.pool(block.pool).kind));
        if high <= low {
            return;
        }
        self.heap.remove_free(index, &self.settings);
        let end = block.address + block.bytes;
        if high < end {
            let after = self.heap.split_at(index, high - block.address);
            self.heap.insert_free(after, &self.settings);
        }
        let mut pages = index;
        if block.address < low {
            pages = self.heap.split_at(index, low - block.address);
            self.heap.insert_free(index, &self.settings);
        }
        let mapped =
            [self.heap.block(pages).previous, self.heap.block(pages).next].map(|neighbour| self.is_mapped(neighbour));
        self.heap.figures.segments += mapped.iter().filter(|side| **side).count() as u64;
        self.heap.figures.segments -= 1;
        self.heap.unreserve(high - low);
        self.log(SegmentAction::Unmap, low, high - low, block.pool);
        self.heap.block_mut(pages).state = BlockState::Unmapped;
        self.heap.merge_unmapped_neighbours(pages);
        if self.heap.block(pages).is_whole() {
            self.heap.vacate(pages);
        } else {
            self.heap.insert_unmapped(pages);
        }
    }

    fn is_mapped(&self, index: Index) -> bool {
        self.heap.neighbour(index).is_some_and(|block| block.state != BlockState::Unmapped)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Address, Policy, Stream};
    use super::*;
    use crate::units::MIB;

    const STREAM: Stream = Stream(0);

    fn expandable(limit_bytes: u64) -> Native {
        Native::with_settings(Settings::expandable(), limit_bytes)
    }

    fn reserved_mib(policy: &Native) -> u64 {
        policy.state().reserved_bytes / MIB
    }

    fn take(policy: &mut Native, count: usize, bytes: u64) -> Vec<Address> {
        (0..count).map(|_| policy.allocate(bytes, STREAM).unwrap()).collect()
    }

    #[test]
    fn a_segment_grows_page_by_page_and_then_serves_larger_requests() {
        let mut policy = expandable(u64::MAX);
        let mut blocks = Vec::new();
        let mut sizes = Vec::new();
        for _ in 0..8 {
            blocks.extend(take(&mut policy, 1, 16 * MIB));
            sizes.push(reserved_mib(&policy));
        }
        assert_eq!(sizes, [20, 40, 60, 80, 80, 100, 120, 140]);
        for block in blocks {
            policy.free(block);
        }
        take(&mut policy, 4, 32 * MIB);
        assert_eq!(reserved_mib(&policy), 140);
        assert_eq!(policy.state().segments, 1);
    }

    #[test]
    fn interleaved_long_lived_blocks_still_leave_holes() {
        let mut policy = expandable(u64::MAX);
        let blocks = take(&mut policy, 4, 16 * MIB);
        assert_eq!(reserved_mib(&policy), 80);
        policy.free(blocks[0]);
        policy.free(blocks[2]);
        take(&mut policy, 1, 32 * MIB);
        assert_eq!(reserved_mib(&policy), 100);
    }

    #[test]
    fn small_and_large_requests_have_segments_of_their_own() {
        let mut policy = expandable(u64::MAX);
        let first = take(&mut policy, 1, 2 * MIB);
        policy.free(first[0]);
        take(&mut policy, 1, MIB / 2);
        assert_eq!((reserved_mib(&policy), policy.state().segments), (22, 2));
    }

    #[test]
    fn only_whole_pages_are_handed_back() {
        let mut policy = expandable(u64::MAX);
        let blocks = take(&mut policy, 5, 16 * MIB);
        policy.free(blocks[1]);
        policy.free(blocks[2]);
        // [16, 48) MiB are free, of which one page, [20, 40), is whole.
        assert_eq!(policy.state().unreleasable_bytes, 12 * MIB);
        policy.release_cached();
        assert_eq!((reserved_mib(&policy), policy.state().segments), (60, 2));
        assert_eq!(policy.state().unreleasable_bytes, 12 * MIB);
        // The hole is found again, with one page mapped.
        assert_eq!(policy.allocate(32 * MIB, STREAM), Ok(blocks[1]));
        assert_eq!((reserved_mib(&policy), policy.state().segments), (80, 1));
    }

    #[test]
    fn an_interior_hole_is_preferred_to_the_growing_end() {
        let mut policy = expandable(u64::MAX);
        let blocks = take(&mut policy, 3, 16 * MIB);
        policy.free(blocks[0]);
        // 12 MiB are free at the end, 16 MiB in the hole.
        assert_eq!(policy.allocate(10 * MIB, STREAM), Ok(blocks[0]));
    }

    #[test]
    fn pages_are_taken_from_free_blocks_when_the_limit_is_reached() {
        let mut policy = expandable(100 * MIB);
        let blocks = take(&mut policy, 5, 20 * MIB);
        assert_eq!(reserved_mib(&policy), 100);
        policy.free(blocks[0]);
        policy.free(blocks[3]);
        assert_eq!(policy.state().largest_satisfiable_bytes, 40 * MIB);
        let moved = policy.allocate(40 * MIB, STREAM).unwrap();
        assert!(moved > blocks[4]);
        assert_eq!(policy.counts().retries, 1);
        assert!(policy.allocate(2 * MIB, STREAM).is_err());
    }
}
