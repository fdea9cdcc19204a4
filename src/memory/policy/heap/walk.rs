//! The figures the slow way, for tests.

use super::{BlockState, Figures, Heap, Index, NONE, releasable};
use crate::memory::policy::settings::Settings;

impl Heap {
    /// The figures by a walk over all blocks, to check the incremental ones against.
    pub(in crate::memory::policy) fn walk(&self, settings: &Settings) -> Figures {
        let mut figures = Figures {
            peak_allocated: self.figures.peak_allocated,
            peak_reserved: self.figures.peak_reserved,
            segments: self.figures.segments,
            ..Figures::default()
        };
        for (index, block) in self.blocks.iter().enumerate().filter(|(_, block)| block.state != BlockState::Vacant) {
            if block.state != BlockState::Unmapped {
                figures.reserved += block.bytes;
            }
            match block.state {
                BlockState::Live => {
                    figures.allocated += block.bytes;
                    figures.requested += block.requested_bytes;
                    figures.live_blocks += 1;
                }
                BlockState::Pending => {
                    figures.pending += block.bytes;
                    figures.requested += block.requested_bytes;
                }
                BlockState::Free => {
                    figures.free += block.bytes;
                    figures.free_blocks += 1;
                    figures.releasable += releasable(block, self.pools[block.pool as usize].kind, settings);
                }
                BlockState::Unmapped | BlockState::Vacant => {}
            }
            if block.next != NONE {
                let next = self.block(block.next);
                assert_eq!(next.previous, index as Index, "neighbours agree");
                assert_eq!(next.address, block.address + block.bytes, "neighbours touch");
            }
        }
        figures
    }
}
