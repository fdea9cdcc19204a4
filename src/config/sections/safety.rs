//! `safety:`, what counts as safe.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::leaf::amount::Share;
use crate::config::leaf::choice::Choice;
use crate::config::leaf::number::{Factor, Whole};
use crate::config::plan::DEFAULT_HORIZON_STEPS;
use crate::memory::{FragmentationMetric, FragmentationSource};

/// What counts as safe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SafetyFile {
    /// The highest fragmentation rate.
    pub fragmentation_threshold: Share<0, 100>,
    /// Which rate: peak is 1 − peak allocated / peak reserved.
    pub fragmentation_metric: Choice<FragmentationMetric>,
    /// Whose rate: the device's own allocator, the planned one's replay, or the worse of both.
    pub fragmentation_source: Choice<FragmentationSource>,
    /// A memory sample is taken every so many steps.
    pub sample_every: Whole<1, 1_000_000>,
    /// The largest request that would succeed must be at least this times the step's largest.
    pub largest_block_factor: Factor,
    /// The share of the limit that must stay free at the peak, and at least the step's largest request.
    pub headroom: Share<0, 90>,
    /// Steps (micro-batches) of the coming run that are forecast before a configuration is called safe; 0 forecasts none.
    pub horizon_steps: Whole<0, 1_000_000>,
}

impl Default for SafetyFile {
    fn default() -> Self {
        Self {
            fragmentation_threshold: Share::percent(30),
            fragmentation_metric: Choice::default(),
            fragmentation_source: Choice::default(),
            sample_every: Whole::clamped(2),
            largest_block_factor: Factor(1.5),
            headroom: Share::percent(5),
            horizon_steps: Whole::clamped(DEFAULT_HORIZON_STEPS.into()),
        }
    }
}
