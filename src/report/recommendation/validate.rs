//! What a recommendation cannot say.
//!
//! `tune` writes none of this. People edit the file, tools merge it, and a job script launches what it says: a batch of
//! 0, or accumulation that misses the effective batch, is found here and not hours later. What a soak would have to show
//! is not checked again; it is in the journal.

use super::{Measured, Recommendation, Recommended};
use crate::search::recommend::Status;
use crate::train::GradientCheckpointing;

/// What a configuration may ask for.
const MOST_WORKERS: usize = 1024;
/// A program is held to a fraction of its card, which is not the limit to the byte: one part in so many may be missing.
const ROUNDING: u64 = 1000;

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
    /// A safe configuration that no rule was asked about.
    #[error("`status: safe` goes with checks that all passed, and `checks` is empty")]
    NoChecks,
    /// More memory than there was.
    #[error("`peak_reserved_bytes: {peak}` is above `limit_bytes: {limit}`, and no safe configuration is")]
    OverLimit {
        /// Highest V.
        peak: u64,
        /// C.
        limit: u64,
    },
    /// A launch under another limit than the trials.
    #[error("`allocator.limit_bytes: {recommended}` is not the limit that was measured under, {measured}")]
    OtherLimit {
        /// What is recommended.
        recommended: u64,
        /// What was measured.
        measured: u64,
    },
    /// A figure that nothing can be measured to be.
    #[error("`measured.{0}` is no figure that can be measured")]
    Figure(&'static str),
    /// More loader workers than are ever tried.
    #[error("`loader_workers: {0}` is over {MOST_WORKERS}")]
    TooManyWorkers(usize),
    /// A count of nothing.
    #[error("`{0}` is 0, and must be at least 1")]
    Zero(&'static str),
    /// Batch size, accumulation and replicas do not make up the effective batch.
    #[error(
        "`effective_batch_size: {effective}` is not `batch_size: {batch}` × `accumulation_steps: {steps}` × `replicas: \
         {replicas}` (hint: `replicas` may be left out where it is 1)"
    )]
    NotTheProduct {
        /// Samples per optimizer step.
        effective: usize,
        /// Samples per pass.
        batch: usize,
        /// Passes per optimizer step.
        steps: usize,
        /// Devices that train together.
        replicas: usize,
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
    pub(in crate::report) fn validate(&self) -> Result<(), Impossible> {
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
        self.measured.as_ref().ok_or(Impossible::NotMeasured)?.validate(recommended)?;
        if self.checks.is_empty() {
            return Err(Impossible::NoChecks);
        }
        match self.checks.iter().find(|check| !check.passed) {
            Some(failed) => Err(Impossible::FailedCheck(crate::text::harmless(&failed.rule))),
            None => Ok(()),
        }
    }
}

impl Measured {
    fn validate(&self, recommended: &Recommended) -> Result<(), Impossible> {
        let fragmentation = &self.fragmentation;
        let figures = [
            ("samples_per_second", Some(self.samples_per_second)),
            ("step_ms.p50", Some(self.step_ms.p50)),
            ("step_ms.p95", Some(self.step_ms.p95)),
            ("data_wait_fraction", Some(self.data_wait_fraction)),
            ("fragmentation.max", fragmentation.max),
            ("fragmentation.last", fragmentation.last),
            ("fragmentation.threshold", Some(fragmentation.threshold)),
            ("fragmentation.native", fragmentation.native),
            // A loss may be below zero.
            ("first_loss", self.first_loss.map(f64::abs)),
            ("last_loss", self.last_loss.map(f64::abs)),
        ];
        let is_one = |figure: f64| figure.is_finite() && figure >= 0.0;
        if let Some((name, _)) = figures.iter().find(|(_, figure)| !figure.is_none_or(is_one)) {
            return Err(Impossible::Figure(name));
        }
        if self.peak_reserved_bytes > self.limit_bytes {
            return Err(Impossible::OverLimit { peak: self.peak_reserved_bytes, limit: self.limit_bytes });
        }
        let of_launch = recommended.allocator.limit_bytes;
        if of_launch.abs_diff(self.limit_bytes) > self.limit_bytes / ROUNDING {
            return Err(Impossible::OtherLimit { recommended: of_launch, measured: self.limit_bytes });
        }
        Ok(())
    }
}

impl Recommended {
    fn validate(&self) -> Result<(), Impossible> {
        let counts = [
            ("batch_size", self.batch_size as u64),
            ("accumulation_steps", self.accumulation_steps as u64),
            ("effective_batch_size", self.effective_batch_size as u64),
            ("replicas", self.replicas as u64),
            ("allocator.limit_bytes", self.allocator.limit_bytes),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(Impossible::Zero(name));
        }
        let of_a_replica = self.batch_size.checked_mul(self.accumulation_steps);
        let product = of_a_replica.and_then(|samples| samples.checked_mul(self.replicas));
        if product != Some(self.effective_batch_size) {
            return Err(Impossible::NotTheProduct {
                effective: self.effective_batch_size,
                batch: self.batch_size,
                steps: self.accumulation_steps,
                replicas: self.replicas,
            });
        }
        if self.loader_workers > MOST_WORKERS {
            return Err(Impossible::TooManyWorkers(self.loader_workers));
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
