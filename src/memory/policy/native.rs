//! PyTorch's caching allocator (to come).

use super::{Address, OutOfMemory, Policy, PoolState, Stream};

/// To come.
#[derive(Debug)]
pub struct Native {
    state: PoolState,
}

impl Native {
    /// With a limit.
    pub fn new(limit_bytes: u64) -> Self {
        Self { state: PoolState { limit_bytes, ..PoolState::default() } }
    }
}

impl Policy for Native {
    fn allocate(&mut self, _bytes: u64, _stream: Stream) -> Result<Address, OutOfMemory> {
        Ok(Address(0))
    }
    fn free(&mut self, _address: Address) {}
    fn release_cached(&mut self) {}
    fn state(&self) -> PoolState {
        self.state
    }
    fn reset_peaks(&mut self) {}
}
