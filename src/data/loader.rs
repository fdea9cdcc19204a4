//! The loader (to come).

use std::sync::Arc;

use super::{DataError, Dataset, HostBatch};

/// How to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoaderConfig {
    /// Samples per batch.
    pub batch_size: usize,
    /// Threads; 0 loads in the thread that calls [`Loader::next_batch`].
    pub workers: usize,
    /// Batches that each thread keeps ready, as PyTorch counts them; 0 loads on demand.
    pub prefetch_depth: usize,
    /// Seeds the order of each epoch.
    pub seed: u64,
}

/// Endless batches in an order that depends on the seed alone, not on the number of workers.
#[derive(Debug)]
pub struct Loader;

impl Loader {
    /// Starts the threads.
    pub fn start(_dataset: Arc<dyn Dataset>, _config: LoaderConfig) -> Self {
        Self
    }

    /// The next batch; blocks until it is ready.
    pub fn next_batch(&mut self) -> Result<HostBatch, DataError> {
        unimplemented!()
    }
}
