//! `budget:`, how long the search may take.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::leaf::number::Whole;
use crate::config::leaf::time::Time;

/// How long the search may take; a larger budget resumes a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetFile {
    /// Wall time.
    pub time: Time,
    /// Trials.
    pub trials: Whole<1, 1_000_000>,
}

impl Default for BudgetFile {
    fn default() -> Self {
        Self { time: Time::clamped(Duration::from_secs(600)), trials: Whole::clamped(40) }
    }
}
