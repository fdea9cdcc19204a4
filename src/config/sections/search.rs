//! `search:`, what is tried and how.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::leaf::amount::{Amount, Rung};
use crate::config::leaf::choice::Choice;
use crate::config::leaf::list::{Accumulation, AllocConfs, Candidates};
use crate::search::StrategyKind;
use crate::units::Fraction;

/// What is tried, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SearchFile {
    /// The strategy: staged goes stage by stage, grid measures every point.
    pub strategy: Choice<StrategyKind>,
    /// The micro-batch sizes of the ladder, per device.
    pub batch_size: BatchSizeFile,
    /// Accumulation steps to allow; auto takes what the target asks for.
    pub accumulation_steps: Accumulation,
    /// Loader threads to try; 0 loads in the training thread.
    pub loader_workers: Candidates<0, 1024>,
    /// Batches that a worker keeps ready, to try; the fewest that do are taken. 0 loads on demand.
    pub prefetch_depth: Candidates<0, 1024>,
    /// Batches staged on the device ahead of the step, the preferred first.
    pub device_prefetch: Candidates<0, 64>,
    /// Settings of PyTorch's allocator to try, ranked by replay; for a command.
    pub alloc_conf: AllocConfs,
}

impl Default for SearchFile {
    fn default() -> Self {
        Self {
            strategy: Choice::default(),
            batch_size: BatchSizeFile::default(),
            accumulation_steps: Accumulation::Auto,
            loader_workers: Candidates::clamped(&[0, 1, 2, 4]),
            prefetch_depth: Candidates::clamped(&[2, 1]),
            device_prefetch: Candidates::clamped(&[0, 1]),
            alloc_conf: AllocConfs::Auto,
        }
    }
}

/// The micro-batch sizes of the ladder: shares of the target per replica, or samples per device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BatchSizeFile {
    /// The lowest rung; a share is rounded up.
    pub start: Amount,
    /// The highest size.
    pub max: Amount,
    /// From rung to rung; auto is an eighth of the target.
    pub step: Rung,
}

impl Default for BatchSizeFile {
    fn default() -> Self {
        Self { start: Amount::Share(Fraction(0.5)), max: Amount::Share(Fraction(1.0)), step: Rung::Auto }
    }
}
