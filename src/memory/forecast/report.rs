//! What a forecast says: the JSON of `tune forecast --json`.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::replay::WindowFigures;
use crate::memory::fragmentation::Rates;
use crate::units::Fraction;

/// How a forecast was made, and so how far it can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The probes align and every size is known at any batch: the run is replayed event by event.
    Exact,
    /// Something was continued along a line: a few sizes that fit no whole numbers, or the probes' peaks.
    Affine,
    /// Nothing can be said.
    None,
}

/// By how much of the limit a forecast that is not exact is taken to be off at least, either way. Sizes that nobody knows are a
/// hundredth of all bytes at most and are raised by what they were seen to fall short; what larger blocks do to where others
/// come to lie is no monotone matter, and beyond the probes' shapes the bound is none.
const LEAST_ERROR: Fraction = Fraction(0.03);

impl Method {
    /// The share of the limit by which a play of a run may be off.
    pub fn error_of_a_play(self) -> Fraction {
        match self {
            Self::Exact => Fraction(0.0),
            Self::Affine | Self::None => LEAST_ERROR,
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Exact => "exact",
            Self::Affine => "affine",
            Self::None => "none",
        })
    }
}

/// A forecast of several batch sizes under one allocator and limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// How it was made.
    pub method: Method,
    /// How far the same method was off at a probe that it was not fitted to. `null` where there was no such probe.
    pub error_percent: Option<f64>,
    /// Why this method, in a sentence.
    pub reason: String,
    /// Allocations that padding could have made to look affine. Where there are any, a third probe would tell.
    pub doubtful_allocations: usize,
    /// The batch sizes asked for, in their order.
    pub points: Vec<ForecastPoint>,
    /// The largest batch size that fits under the limit. `null` without a limit, or where none fits.
    pub largest_batch_size: Option<usize>,
}

/// A run at one batch size.
///
/// The peaks are over the whole run. Where it does not fit they are what it would take without a limit, and
/// [`u64::MAX`] where that is more than 64 bits can count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForecastPoint {
    /// Samples in a micro-batch.
    pub batch_size: usize,
    /// The highest A.
    pub peak_allocated_bytes: u64,
    /// The highest V.
    pub peak_reserved_bytes: u64,
    /// The largest single request.
    pub largest_request_bytes: u64,
    /// Over the steady steps (`peak`), and at the end of the last of them (`external`, `reserved`).
    pub rates: Rates,
    /// Whether every request is met under the limit.
    pub fits: bool,
    /// Requests for which the allocator had to release its cache first; each costs a device synchronisation. `null`
    /// where the run was not replayed.
    pub retries: Option<u64>,
    /// The same figures by part of the run: first step, steady steps, partial last batch, evaluation. Empty where the
    /// run was not replayed.
    pub windows: Vec<WindowFigures>,
}
