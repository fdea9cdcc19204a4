//! What a recommendation cannot say.
//!
//! `tune` writes none of this. People edit the file, tools merge it, and a job script launches what it says: a batch of
//! 0, or accumulation that misses the effective batch, is found here and not hours later. What a soak would have to show
//! is not checked again; it is in the journal.

use super::{Recommendation, Recommended};
use crate::search::recommend::Status;
use crate::train::GradientCheckpointing;

/// Why a recommendation cannot be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Impossible {
    /// A status that needs a configuration, and none.
    #[error("`status: {0}` goes with a configuration, and `recommended` is null")]
    NothingRecommended(&'static str),
    /// A configuration that nothing stands for.
    #[error("`status: none` goes with `recommended: null`")]
    NothingFound,
    /// A safe configuration that was not measured.
    #[error("`status: safe` goes with what was measured, and `measured` is null")]
    NotMeasured,
    /// A safe configuration that a rule rejected.
    #[error("`status: safe` goes with checks that all passed, and `{0}` did not")]
    FailedCheck(String),
    /// A count of nothing.
    #[error("`{0}` is 0, and must be at least 1")]
    Zero(&'static str),
    /// Accumulation and batch size do not make up the effective batch.
    #[error(
        "`effective_batch_size: {effective}` is no multiple of `batch_size: {batch}` × `accumulation_steps: {steps}`"
    )]
    NotAMultiple {
        /// Samples per optimizer step.
        effective: usize,
        /// Samples per pass.
        batch: usize,
        /// Passes per optimizer step.
        steps: usize,
    },
    /// Prefetching by nobody.
    #[error("`prefetch_depth: {0}` needs loader workers, and `loader_workers` is 0")]
    PrefetchWithoutWorkers(usize),
    /// A choice that is the search's to make.
    #[error("`gradient_checkpointing: auto` is left to the search, and this is its result")]
    Undecided,
}

impl Recommendation {
    /// Refuses what cannot be launched as it stands.
    pub(super) fn validate(&self) -> Result<(), Impossible> {
        let recommended = match (self.status, &self.recommended) {
            (Status::None, None) => return Ok(()),
            (Status::None, Some(_)) => return Err(Impossible::NothingFound),
            (status, None) => return Err(Impossible::NothingRecommended(status.name())),
            (_, Some(recommended)) => recommended,
        };
        recommended.validate()?;
        if self.status != Status::Safe {
            return Ok(());
        }
        if self.measured.is_none() {
            return Err(Impossible::NotMeasured);
        }
        match self.checks.iter().find(|check| !check.passed) {
            Some(failed) => Err(Impossible::FailedCheck(crate::text::harmless(&failed.rule))),
            None => Ok(()),
        }
    }
}

impl Recommended {
    fn validate(&self) -> Result<(), Impossible> {
        let counts = [
            ("batch_size", self.batch_size as u64),
            ("accumulation_steps", self.accumulation_steps as u64),
            ("effective_batch_size", self.effective_batch_size as u64),
            ("allocator.limit_bytes", self.allocator.limit_bytes),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(Impossible::Zero(name));
        }
        // Over all replicas, of which the file does not tell the number.
        let of_a_replica = self.batch_size.checked_mul(self.accumulation_steps);
        if !of_a_replica.is_some_and(|samples| self.effective_batch_size.is_multiple_of(samples)) {
            return Err(Impossible::NotAMultiple {
                effective: self.effective_batch_size,
                batch: self.batch_size,
                steps: self.accumulation_steps,
            });
        }
        if self.loader_workers == 0 && self.prefetch_depth > 0 {
            return Err(Impossible::PrefetchWithoutWorkers(self.prefetch_depth));
        }
        if self.gradient_checkpointing == GradientCheckpointing::Auto {
            return Err(Impossible::Undecided);
        }
        Ok(())
    }
}
