//! A number for all that decides how an allocator goes on.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use super::{Block, BlockState, Heap};
use crate::memory::policy::settings::PoolKind;

/// Whether the ages of idle blocks decide anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::memory::policy) enum Ages {
    /// Nothing was collected so far, nor could be by going the same way again.
    Idle,
    /// The garbage collection has compared them.
    Compared,
}

impl Heap {
    /// The blocks in the order of their addresses: sizes, states, who touches whom, and where pages begin.
    ///
    /// Places in the arena, absolute addresses, sums and counts are left out: equal sizes are told apart by which address
    /// is lower, so the order alone decides. The hash is that of `std` with its fixed keys, so it is the same in every
    /// process of one build; it is compared within a run and never stored.
    pub(in crate::memory::policy) fn fingerprint(&self, ages: Ages) -> u64 {
        let mut hasher = DefaultHasher::new();
        ages.hash_into(&mut hasher);
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
            if ages == Ages::Compared && block.state == BlockState::Free {
                self.pool(block.pool).searches.wrapping_sub(block.freed_at_search).hash(&mut hasher);
            }
        }
        hasher.finish()
    }
}

impl Ages {
    fn hash_into(self, hasher: &mut DefaultHasher) {
        (self == Self::Compared).hash(hasher);
    }
}
