//! A number for all that decides how an allocator goes on.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use super::{Block, BlockState, Heap};
use crate::memory::policy::Fingerprint;
use crate::memory::policy::settings::PoolKind;

impl Heap {
    /// The blocks in the order of their addresses: sizes, states, who touches whom, and where pages begin.
    ///
    /// Ages are hashed apart, and only of what a collection looks at: whole free segments of the large kind. Any other
    /// free block gets a new age before it can become one.
    ///
    /// Places in the arena, absolute addresses, sums and counts are left out: equal sizes are told apart by which address
    /// is lower, so the order alone decides. The hash is that of `std` with its fixed keys, so it is the same in every
    /// process of one build; it is compared within a run and never stored.
    pub(in crate::memory::policy) fn fingerprint(&self, collections: u64) -> Fingerprint {
        let (mut hasher, mut ages) = (DefaultHasher::new(), DefaultHasher::new());
        for pool in &self.pools {
            (pool.stream, pool.kind == PoolKind::Small).hash(&mut hasher);
        }
        let mut blocks: Vec<&Block> = self.blocks.iter().filter(|block| block.state != BlockState::Vacant).collect();
        blocks.sort_unstable_by_key(|block| block.address);
        for block in blocks {
            let state = match block.state {
                BlockState::Live => 0_u8,
                BlockState::Pending => 1,
                BlockState::Free => 2,
                BlockState::Unmapped | BlockState::Vacant => 3,
            };
            let is_joined = self.neighbour(block.previous).is_some();
            (state, is_joined, block.pool, block.bytes, block.range_start.map(|start| block.address - start))
                .hash(&mut hasher);
            if matches!(block.state, BlockState::Live | BlockState::Pending) {
                block.requested_bytes.hash(&mut hasher);
            }
            let pool = self.pool(block.pool);
            let is_segment = block.is_whole() && block.range_start.is_none() && pool.kind == PoolKind::Large;
            if is_segment && block.state == BlockState::Free {
                pool.searches.wrapping_sub(block.freed_at_search).hash(&mut ages);
            }
        }
        Fingerprint { blocks: hasher.finish(), ages: ages.finish(), collections }
    }
}
