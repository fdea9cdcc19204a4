//! What no allocator can do without: the live bytes.
//!
//! An allocator holds at least what is live, in blocks of 512 bytes. This one holds no more than that, wherever there is
//! room for it, as if memory could be moved. What runs out here runs out under every setting.

use std::collections::HashMap;

use crate::memory::event::Stream;
use crate::memory::policy::{Address, Counts, FastHash, OutOfMemory, Policy, PoolState, Settings};

/// The ideal allocator.
pub(super) struct Live {
    limit_bytes: u64,
    blocks: HashMap<u64, u64, FastHash>,
    next: u64,
    held_bytes: u64,
    peak_bytes: u64,
    failed: u64,
}

impl Live {
    pub(super) fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, blocks: HashMap::default(), next: 0, held_bytes: 0, peak_bytes: 0, failed: 0 }
    }
}

impl Policy for Live {
    fn allocate(&mut self, bytes: u64, _stream: Stream) -> Result<Address, OutOfMemory> {
        let rounded = Settings::default().round(bytes);
        let total = rounded.and_then(|rounded| self.held_bytes.checked_add(rounded));
        let (Some(rounded), Some(total)) = (rounded, total.filter(|total| *total <= self.limit_bytes)) else {
            self.failed += 1;
            return Err(OutOfMemory {
                requested_bytes: bytes,
                allocated_bytes: self.held_bytes,
                reserved_bytes: self.held_bytes,
                limit_bytes: self.limit_bytes,
            });
        };
        self.held_bytes = total;
        self.peak_bytes = self.peak_bytes.max(total);
        self.next += 1;
        self.blocks.insert(self.next, rounded);
        Ok(Address(self.next))
    }

    fn free_requested(&mut self, _address: Address) {}

    fn free(&mut self, address: Address) {
        self.held_bytes -= self.blocks.remove(&address.0).unwrap_or(0);
    }

    fn release_cached(&mut self) {}

    fn state(&self) -> PoolState {
        let free_bytes = self.limit_bytes.saturating_sub(self.held_bytes);
        PoolState {
            allocated_bytes: self.held_bytes,
            requested_bytes: self.held_bytes,
            reserved_bytes: self.held_bytes,
            limit_bytes: self.limit_bytes,
            peak_allocated_bytes: self.peak_bytes,
            peak_reserved_bytes: self.peak_bytes,
            largest_satisfiable_bytes: free_bytes,
            allocated_blocks: self.blocks.len() as u64,
            ..PoolState::default()
        }
    }

    fn counts(&self) -> Counts {
        Counts { out_of_memory: self.failed, ..Counts::default() }
    }

    fn reset_peaks(&mut self) {
        self.peak_bytes = self.held_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_is_live_in_blocks_of_512_bytes() {
        let mut live = Live::new(2048);
        let first = live.allocate(1, Stream(0)).unwrap();
        let second = live.allocate(1000, Stream(1)).unwrap();
        assert_eq!(live.state().reserved_bytes, 1536);
        assert_eq!(live.allocate(513, Stream(0)).unwrap_err().allocated_bytes, 1536);
        live.free(first);
        live.free(first);
        assert!(live.allocate(1024, Stream(0)).is_ok());
        live.free(second);
        assert_eq!((live.state().allocated_bytes, live.state().peak_allocated_bytes), (1024, 2048));
        assert!(live.allocate(u64::MAX, Stream(0)).is_err());
    }
}
