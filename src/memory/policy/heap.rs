//! The blocks of a caching allocator: neighbours, free lists and figures, kept up to date at every change.
//!
//! This is the bookkeeping under the rules of [`native`](super::native) and [`expandable`](super::expandable), which
//! decide what to take, split and release. A block knows its neighbours within its segment; a *whole* block has none
//! and is a segment by itself. Each stream has a small and a large pool, and each pool an ordered set of free blocks
//! by (size, address), which is PyTorch's order within one stream.

use std::collections::{BTreeSet, HashMap};

use super::free_list::FreeList;
use super::hash::FastHash;
use super::settings::{PoolKind, Settings};
use super::{Address, Counts, PoolState, Stream};
use crate::memory::snapshot;

mod fingerprint;
#[cfg(test)]
mod walk;

/// A block's place in the arena.
pub(super) type Index = u32;
/// No block.
pub(super) const NONE: Index = Index::MAX;
/// A pool's place in the list of pools.
pub(super) type PoolIndex = u32;

/// What a block is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockState {
    /// In use.
    Live,
    /// Freed by the program, but still in use on another stream.
    Pending,
    /// In the cache.
    Free,
    /// Address space without memory behind it (expandable segments).
    Unmapped,
    /// Nothing: the place in the arena waits for another block.
    Vacant,
}

/// A range of addresses within a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// What was asked for, while the block is live.
    pub(super) requested_bytes: u64,
    pub(super) pool: PoolIndex,
    pub(super) previous: Index,
    pub(super) next: Index,
    pub(super) state: BlockState,
    /// The pool's search count when the block became free: its age is counted in searches.
    pub(super) freed_at_search: u64,
    /// The start of its address range, where the segment is expandable.
    pub(super) range_start: Option<u64>,
}

impl Block {
    /// Whether the block is a segment by itself.
    pub(super) fn is_whole(&self) -> bool {
        self.previous == NONE && self.next == NONE
    }
}

/// A block as others see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedBlock {
    pub(crate) address: Address,
    pub(crate) bytes: u64,
    pub(crate) requested_bytes: u64,
    pub(crate) state: snapshot::BlockState,
    pub(crate) stream: Stream,
    pub(crate) is_small: bool,
    pub(crate) is_expandable: bool,
    /// Whether it follows the block before it in the same segment.
    pub(crate) continues: bool,
}

/// The free blocks of one stream and kind.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) stream: Stream,
    pub(super) kind: PoolKind,
    pub(super) free: FreeList,
    /// Unmapped blocks by address.
    pub(super) unmapped: BTreeSet<(u64, Index)>,
    /// How often the pool was searched.
    pub(super) searches: u64,
}

/// Blocks, pools and figures.
#[derive(Debug, Default)]
pub(super) struct Heap {
    blocks: Vec<Block>,
    vacant: Vec<Index>,
    pools: Vec<Pool>,
    streams: HashMap<Stream, PoolIndex, FastHash>,
    pub(super) figures: Figures,
    pub(super) counts: Counts,
}

/// Sums over all blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) allocated: u64,
    pub(super) requested: u64,
    pub(super) pending: u64,
    pub(super) reserved: u64,
    pub(super) free: u64,
    pub(super) releasable: u64,
    pub(super) peak_allocated: u64,
    pub(super) peak_reserved: u64,
    pub(super) live_blocks: u64,
    pub(super) free_blocks: u64,
    pub(super) segments: u64,
}

impl Heap {
    /// The pool of a stream and kind, made when it is first asked for.
    pub(super) fn pool_index(&mut self, stream: Stream, kind: PoolKind) -> PoolIndex {
        let pools = &mut self.pools;
        let small = *self.streams.entry(stream).or_insert_with(|| {
            for kind in [PoolKind::Small, PoolKind::Large] {
                pools.push(Pool { stream, kind, free: FreeList::default(), unmapped: BTreeSet::new(), searches: 0 });
            }
            (pools.len() - 2) as PoolIndex
        });
        match kind {
            PoolKind::Small => small,
            PoolKind::Large => small + 1,
        }
    }

    pub(super) fn pool(&self, pool: PoolIndex) -> &Pool {
        &self.pools[pool as usize]
    }

    pub(super) fn pool_mut(&mut self, pool: PoolIndex) -> &mut Pool {
        &mut self.pools[pool as usize]
    }

    /// All pools of a kind.
    pub(super) fn pools_of(&self, kind: PoolKind) -> impl Iterator<Item = &Pool> {
        self.pools.iter().filter(move |pool| pool.kind == kind)
    }

    pub(super) fn block(&self, index: Index) -> &Block {
        &self.blocks[index as usize]
    }

    pub(super) fn block_mut(&mut self, index: Index) -> &mut Block {
        &mut self.blocks[index as usize]
    }

    /// The block at `index`, where there is one.
    pub(super) fn neighbour(&self, index: Index) -> Option<&Block> {
        (index != NONE).then(|| self.block(index))
    }

    /// Puts a block into the arena.
    pub(super) fn add(&mut self, block: Block) -> Index {
        if let Some(index) = self.vacant.pop() {
            *self.block_mut(index) = block;
            return index;
        }
        self.blocks.push(block);
        (self.blocks.len() - 1) as Index
    }

    /// Counts a new segment of `bytes`.
    pub(super) fn reserve(&mut self, bytes: u64) {
        self.figures.reserved += bytes;
        self.figures.peak_reserved = self.figures.peak_reserved.max(self.figures.reserved);
        self.counts.segments_allocated += 1;
    }

    /// Counts `bytes` handed back to the device.
    pub(super) fn unreserve(&mut self, bytes: u64) {
        self.figures.reserved -= bytes;
        self.counts.segments_freed += 1;
    }

    /// Puts a free block into its pool.
    pub(super) fn insert_free(&mut self, index: Index, settings: &Settings) {
        let block = &mut self.blocks[index as usize];
        let pool = &mut self.pools[block.pool as usize];
        block.state = BlockState::Free;
        block.freed_at_search = pool.searches;
        pool.free.insert((block.bytes, block.address, index));
        self.figures.free += block.bytes;
        self.figures.free_blocks += 1;
        self.figures.releasable += releasable(block, pool.kind, settings);
    }

    /// Takes a free block out of its pool.
    pub(super) fn remove_free(&mut self, index: Index, settings: &Settings) {
        let block = &self.blocks[index as usize];
        let pool = &mut self.pools[block.pool as usize];
        pool.free.remove((block.bytes, block.address, index));
        self.figures.free -= block.bytes;
        self.figures.free_blocks -= 1;
        self.figures.releasable -= releasable(block, pool.kind, settings);
    }

    /// Cuts a block in two; the second part, from `bytes` on, is returned and is in no list yet.
    pub(super) fn split_at(&mut self, index: Index, bytes: u64) -> Index {
        let whole = *self.block(index);
        let tail = self.add(Block {
            address: whole.address + bytes,
            bytes: whole.bytes - bytes,
            requested_bytes: 0,
            previous: index,
            ..whole
        });
        if whole.next != NONE {
            self.block_mut(whole.next).previous = tail;
        }
        let block = self.block_mut(index);
        block.bytes = bytes;
        block.next = tail;
        tail
    }

    /// Joins `other`, a neighbour that is in no list any more, to `index`.
    pub(super) fn absorb(&mut self, index: Index, other: Index) {
        let absorbed = *self.block(other);
        if self.block(index).previous == other {
            let block = self.block_mut(index);
            block.address = absorbed.address;
            block.previous = absorbed.previous;
            if absorbed.previous != NONE {
                self.block_mut(absorbed.previous).next = index;
            }
        } else {
            self.block_mut(index).next = absorbed.next;
            if absorbed.next != NONE {
                self.block_mut(absorbed.next).previous = index;
            }
        }
        self.block_mut(index).bytes += absorbed.bytes;
        self.vacate(other);
    }

    /// Gives a block's place in the arena back.
    pub(super) fn vacate(&mut self, index: Index) {
        self.block_mut(index).state = BlockState::Vacant;
        self.vacant.push(index);
    }

    /// Marks a block that is in no list as live.
    pub(super) fn make_live(&mut self, index: Index, requested_bytes: u64) {
        let block = self.block_mut(index);
        block.state = BlockState::Live;
        block.requested_bytes = requested_bytes;
        let bytes = block.bytes;
        let figures = &mut self.figures;
        figures.allocated += bytes;
        figures.requested += requested_bytes;
        figures.live_blocks += 1;
        figures.peak_allocated = figures.peak_allocated.max(figures.allocated);
    }

    /// Notes that the program has freed a live block that another stream still uses.
    pub(super) fn make_pending(&mut self, index: Index) {
        let block = self.block_mut(index);
        if block.state == BlockState::Live {
            block.state = BlockState::Pending;
            let bytes = block.bytes;
            self.figures.allocated -= bytes;
            self.figures.live_blocks -= 1;
            self.figures.pending += bytes;
        }
    }

    /// Takes a live or pending block out of use. It is in no list then.
    pub(super) fn retire(&mut self, index: Index) {
        let block = &self.blocks[index as usize];
        if block.state == BlockState::Pending {
            self.figures.pending -= block.bytes;
        } else {
            self.figures.allocated -= block.bytes;
            self.figures.live_blocks -= 1;
        }
        self.figures.requested -= block.requested_bytes;
    }

    /// Joins a block that is in no list with the free neighbours on both sides.
    pub(super) fn merge_free_neighbours(&mut self, index: Index, settings: &Settings) {
        for neighbour in [self.block(index).previous, self.block(index).next] {
            if self.neighbour(neighbour).is_some_and(|block| block.state == BlockState::Free) {
                self.remove_free(neighbour, settings);
                self.absorb(index, neighbour);
            }
        }
    }

    /// Puts an unmapped block into its pool.
    pub(super) fn insert_unmapped(&mut self, index: Index) {
        let block = *self.block(index);
        self.pools[block.pool as usize].unmapped.insert((block.address, index));
    }

    /// Takes an unmapped block out of its pool.
    pub(super) fn remove_unmapped(&mut self, index: Index) {
        let block = *self.block(index);
        self.pools[block.pool as usize].unmapped.remove(&(block.address, index));
    }

    /// Joins an unmapped block that is in no list with the unmapped neighbours on both sides.
    pub(super) fn merge_unmapped_neighbours(&mut self, index: Index) {
        for neighbour in [self.block(index).previous, self.block(index).next] {
            if self.neighbour(neighbour).is_some_and(|block| block.state == BlockState::Unmapped) {
                self.remove_unmapped(neighbour);
                self.absorb(index, neighbour);
            }
        }
    }

    /// The figures as the seam gives them. `growth` is the largest request that new memory can serve.
    pub(super) fn state(&self, limit_bytes: u64, growth: u64, settings: &Settings) -> PoolState {
        let largest =
            |kind| self.pools_of(kind).filter_map(|pool| pool.free.last()).map(|key| key.0).max().unwrap_or(0);
        let (small, large) = (largest(PoolKind::Small), largest(PoolKind::Large));
        let cached = settings.round_down(large).max(settings.round_down(small).min(settings.small_request_bytes));
        let figures = &self.figures;
        PoolState {
            allocated_bytes: figures.allocated,
            requested_bytes: figures.requested,
            reserved_bytes: figures.reserved,
            limit_bytes,
            peak_allocated_bytes: figures.peak_allocated,
            peak_reserved_bytes: figures.peak_reserved,
            largest_free_bytes: small.max(large),
            largest_satisfiable_bytes: cached.max(growth),
            unreleasable_bytes: figures.free - figures.releasable,
            allocated_blocks: figures.live_blocks,
            free_blocks: figures.free_blocks,
            segments: figures.segments,
        }
    }

    /// Every block with memory behind it, segment by segment.
    pub(super) fn mapped_blocks(&self) -> Vec<PlacedBlock> {
        let is_mapped = |block: &&Block| !matches!(block.state, BlockState::Unmapped | BlockState::Vacant);
        let mut all: Vec<&Block> = self.blocks.iter().filter(is_mapped).collect();
        all.sort_unstable_by_key(|block| block.address);
        let placed = all.into_iter().map(|block| {
            let pool = &self.pools[block.pool as usize];
            PlacedBlock {
                address: Address(block.address),
                bytes: block.bytes,
                requested_bytes: block.requested_bytes,
                state: match block.state {
                    BlockState::Live => snapshot::BlockState::Active,
                    BlockState::Pending => snapshot::BlockState::PendingFree,
                    BlockState::Free | BlockState::Unmapped | BlockState::Vacant => snapshot::BlockState::Inactive,
                },
                stream: pool.stream,
                is_small: pool.kind == PoolKind::Small,
                is_expandable: block.range_start.is_some(),
                continues: self.neighbour(block.previous).as_ref().is_some_and(is_mapped),
            }
        });
        placed.collect()
    }

    /// Starts a new window for the peaks.
    pub(super) fn reset_peaks(&mut self) {
        self.figures.peak_allocated = self.figures.allocated;
        self.figures.peak_reserved = self.figures.reserved;
    }
}

/// The bytes of a free block that releasing the cache would hand back: all of a whole block, the whole pages inside
/// a block of an expandable segment.
fn releasable(block: &Block, kind: PoolKind, settings: &Settings) -> u64 {
    match block.range_start {
        Some(start) => {
            let (low, high) = whole_pages(block, start, settings.page_bytes(kind));
            high.saturating_sub(low)
        }
        None if block.is_whole() => block.bytes,
        None => 0,
    }
}

/// The first and the last page border within a block; the first is above the last where no page is whole.
pub(super) fn whole_pages(block: &Block, range_start: u64, page_bytes: u64) -> (u64, u64) {
    let offset = block.address - range_start;
    let low = range_start + offset.div_ceil(page_bytes) * page_bytes;
    let high = range_start + (offset + block.bytes) / page_bytes * page_bytes;
    (low, high)
}
