//! What a soak does beside training: an evaluation pass and a checkpoint, where a long run would have them.
//!
//! Both come in the middle, between two updates, and training goes on after them: an evaluation pass fills the cache with
//! blocks of other sizes, and whether the steps after it still fit is what the soak is to show.

use std::fs;
use std::path::PathBuf;

use super::open::Training;
use super::trial::{Halt, Trial, failed};
use crate::device::{DeviceSession, StepError};
use crate::memory::Trim;
use crate::text::with_causes;
use crate::trial::disk;
use crate::trial::spec::checkpoint_path;
use crate::units::Bytes;

/// Batches of the evaluation pass: memory is the same from the second on.
const EVALUATION_BATCHES: usize = 4;

impl Trial<'_> {
    /// The evaluation pass and the checkpoint. Their memory counts in the window of the sample that follows: alone, a
    /// pass without gradients would hold the training steps' cache against itself and read as fragmentation.
    pub(super) fn check_evaluation_and_checkpoint(&mut self, training: &dyn Training) -> Result<(), Halt> {
        self.evaluate(training)?;
        if self.spec.point.trim == Trim::AfterEval {
            self.session.trim();
        }
        // Of replicas that are equal one is written.
        if self.leads() { self.checkpoint(training) } else { Ok(()) }
    }

    /// The mean loss over a few held-out batches of the training size, without a graph.
    pub(super) fn evaluate(&mut self, training: &dyn Training) -> Result<(), Halt> {
        let mut batches = self.supplies.evaluation_batches(&self.spec.point);
        let mut sum = 0.0;
        for _ in 0..EVALUATION_BATCHES {
            let host = batches.next_batch().map_err(|error| failed(with_causes(&error)))?;
            let batch = self.load(&host)?;
            let evaluated = training.evaluate(&batch, &mut self.session);
            sum += self.judge(evaluated)?;
        }
        self.series.evaluation_loss = Some(sum / EVALUATION_BATCHES as f64);
        Ok(())
    }

    /// Writes a checkpoint and removes it. A disk that is too full for one says nothing about the batch size, so it is
    /// a warning.
    fn checkpoint(&mut self, training: &dyn Training) -> Result<(), Halt> {
        // Between steps what lives is parameters, optimizer state and staged batches.
        let needed_bytes = self.session.state().allocated_bytes.saturating_mul(disk::CHECKPOINT_FACTOR);
        let free_bytes = disk::free_bytes(self.scratch);
        if let Some(free_bytes) = free_bytes
            && free_bytes < needed_bytes
        {
            return self.warn(format!(
                "the checkpoint was skipped: `{}` has {} free, less than twice its size, {}",
                self.scratch.display(),
                Bytes(free_bytes),
                Bytes(needed_bytes)
            ));
        }
        let file = Removed(checkpoint_path(self.scratch, self.spec.id));
        match training.checkpoint(&file.0, &mut self.session) {
            Ok(bytes) => {
                self.series.checkpoint_bytes = Some(bytes);
                Ok(())
            }
            Err(StepError::Workload(reason)) => {
                self.session.close();
                self.warn(format!("the checkpoint could not be written: {reason}"))
            }
            Err(error) => self.judge(Err(error)),
        }
    }
}

/// A file that is removed in the end, whatever that is.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // What cannot be removed now, the driver tries again.
        let _ = fs::remove_file(&self.0);
    }
}
