//! `target:`, what you want.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::leaf::amount::Share;
use crate::config::leaf::number::{MANY, Whole};

/// What you want.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TargetFile {
    /// Samples per optimizer step over all replicas. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<Whole<1, MANY>>,
    /// Devices that train together.
    pub replicas: Whole<1, 1_000_000>,
    /// How far micro-batch × accumulation × replicas may miss the target.
    pub tolerance: Share<0, 50>,
}

impl Default for TargetFile {
    fn default() -> Self {
        Self { batch_size: None, replicas: Whole::clamped(1), tolerance: Share::percent(0) }
    }
}
