//! Supplies that weigh the batches they give: what a batch takes in host memory is part of what a trial measures.
//!
//! How much the loader may keep ready is decided from it before more workers are tried, see
//! [`host_memory`](crate::search::rules::host_memory).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::open::{Supplies, Training};
use crate::data::loader::Batches;
use crate::data::rules::Skipped;
use crate::data::{DataError, HostBatch};
use crate::device::{DeviceSession, StepError};
use crate::trial::protocol::FromWorker;
use crate::trial::spec::Point;

/// Supplies whose training batches are weighed.
pub(super) struct Weighed<'a> {
    inner: &'a dyn Supplies,
    largest_bytes: Arc<AtomicU64>,
}

impl<'a> Weighed<'a> {
    pub(super) fn new(inner: &'a dyn Supplies) -> Self {
        Self { inner, largest_bytes: Arc::default() }
    }

    /// The end of a trial with the weight of its largest batch.
    pub(super) fn enter_into(&self, mut ended: FromWorker) -> FromWorker {
        if let FromWorker::Ended { measurement: Some(measurement), .. } = &mut ended {
            let largest_bytes = self.largest_bytes.load(Ordering::Relaxed);
            measurement.batch_bytes = (largest_bytes > 0).then_some(largest_bytes);
        }
        ended
    }
}

impl Supplies for Weighed<'_> {
    fn build(&self, point: &Point, session: &dyn DeviceSession) -> Result<Box<dyn Training>, StepError> {
        self.inner.build(point, session)
    }

    fn training_batches(&self, point: &Point) -> Box<dyn Batches> {
        let batches = self.inner.training_batches(point);
        Box::new(WeighedBatches { batches, largest_bytes: Arc::clone(&self.largest_bytes) })
    }

    fn evaluation_batches(&self, point: &Point) -> Box<dyn Batches> {
        self.inner.evaluation_batches(point)
    }

    fn training_samples(&self) -> usize {
        self.inner.training_samples()
    }

    fn has_checkpoints(&self) -> bool {
        self.inner.has_checkpoints()
    }
}

struct WeighedBatches {
    batches: Box<dyn Batches>,
    largest_bytes: Arc<AtomicU64>,
}

impl Batches for WeighedBatches {
    fn next_batch(&mut self) -> Result<HostBatch, DataError> {
        let batch = self.batches.next_batch()?;
        self.largest_bytes.fetch_max(batch.bytes(), Ordering::Relaxed);
        Ok(batch)
    }

    fn skipped(&self) -> Skipped {
        self.batches.skipped()
    }

    fn stop_flag(&self) -> Option<Arc<AtomicBool>> {
        self.batches.stop_flag()
    }
}
