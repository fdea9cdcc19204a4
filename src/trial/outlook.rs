//! What is forecast of the whole run of a configuration: the part of a [`TrialRecord`](super::TrialRecord) that no trial
//! measured.
//!
//! A soak sees fifty steps. Where samples vary in size the cache may grow for hundreds, so before a point is soaked its
//! coming run is played to the model of the allocator, step by step ([`long_run`](crate::memory::forecast::long_run)).
//! This is what came of it; the search attaches it to the soak's record, where the rule
//! [`whole_run`](crate::search::rules::whole_run) reads it.

use serde::{Deserialize, Serialize};

use crate::memory::forecast::Method;
use crate::memory::forecast::long_run::LongRunFigures;

/// What is forecast of a whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outlook {
    /// How it was forecast; `none` where it could not be.
    pub method: Method,
    /// Why so, for people.
    pub reason: String,
    /// Steps of the run that was played.
    pub steps: u32,
    /// C.
    pub limit_bytes: u64,
    /// The highest A.
    pub peak_allocated_bytes: u64,
    /// The highest V.
    pub peak_reserved_bytes: u64,
    /// The last step in which V rose to a new height.
    pub last_growth_step: u32,
    /// What rules the point out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breach: Option<RunBreach>,
    /// What a forecast that may err says, and is not sure enough of to rule the point out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<RunBreach>,
}

impl Outlook {
    /// That nothing is known, and why.
    pub fn unknown(reason: String) -> Self {
        Self {
            method: Method::None,
            reason,
            steps: 0,
            limit_bytes: 0,
            peak_allocated_bytes: 0,
            peak_reserved_bytes: 0,
            last_growth_step: 0,
            breach: None,
            doubt: None,
        }
    }
}

/// A run as one allocator would serve it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlayedRun {
    /// The allocator's name, or its settings.
    pub allocator: String,
    /// Of several ranks the one whose run is the worst, which this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
    /// What it takes, step by step.
    pub figures: LongRunFigures,
}

/// Where a run breaks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunBreach {
    /// The step, counted from 0.
    pub step: u32,
    /// How, in a sentence that names the step.
    pub reason: String,
}
