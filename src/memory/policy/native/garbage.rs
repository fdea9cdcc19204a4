//! The garbage collection of PyTorch's allocator (`garbage_collect_cached_blocks`).

use super::{Index, Native, PoolKind};

impl Native {
    /// Hands back whole large blocks that were passed over for longer than the average, while more than the
    /// threshold is reserved.
    pub(super) fn collect_garbage(&mut self) {
        let Some(threshold) = self.settings.garbage_collection_threshold.filter(|threshold| *threshold > 0.0) else {
            return;
        };
        let allowed = (threshold * self.limit_bytes as f64) as u64;
        let target = self.heap.figures.reserved.saturating_sub(allowed);
        if target == 0 {
            return;
        }
        self.collections += 1;
        let mut idle: Vec<(Index, u64)> = self
            .free_blocks(PoolKind::Large)
            .filter(|index| self.is_segment(*index))
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
}
