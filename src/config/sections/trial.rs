//! `trial:`, how long a trial runs.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::leaf::number::Whole;
use crate::config::leaf::time::Time;

/// How long a trial runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrialFile {
    /// Steps whose time is dropped.
    pub warmup_steps: Whole<0, 1_000_000>,
    /// Measured steps at least; a trial whose times vary goes on for up to three times as many.
    pub steps: Whole<1, 1_000_000>,
    /// Steps of the verifying run; at least two updates are run.
    pub soak_steps: Whole<1, 1_000_000>,
    /// The longest time without a finished step.
    pub timeout: Time,
}

impl Default for TrialFile {
    fn default() -> Self {
        Self {
            warmup_steps: Whole::clamped(2),
            steps: Whole::clamped(10),
            soak_steps: Whole::clamped(50),
            timeout: Time::clamped(Duration::from_secs(120)),
        }
    }
}
