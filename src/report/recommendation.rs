//! `recommendation.yaml`: the answer, what was measured of it, and why everything else was rejected.
//!
//! Field names are fixed by the schema `batchtune/recommendation/v1`; other programs read them.

use serde::{Deserialize, Serialize};

use crate::device::DeviceFacts;
use crate::memory::forecast::Method;
use crate::memory::forecast::batching::BatchedRun;
use crate::memory::{FragmentationMetric, Trim};
use crate::search::Check;
use crate::search::recommend::Status;
use crate::train::{BatchNorm, GradientCheckpointing, Precision};
use crate::trial::Point;
use crate::trial::outcome::StepQuantiles;
use crate::trial::remedies::Changes;

mod file;
mod made;
mod nesting;
mod notes;
mod remedies;
mod validate;

pub use file::{ReportError, write_whole};
pub use made::Source;
pub use validate::Impossible;

/// The schema's name, with its version.
pub const SCHEMA: &str = "batchtune/recommendation/v1";

/// The whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recommendation {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Whether it may be launched.
    pub status: Status,
    /// The configuration; absent without one.
    pub recommended: Option<Recommended>,
    /// What was measured of it.
    pub measured: Option<Measured>,
    /// What the safety rules say of it.
    pub checks: Vec<Check>,
    /// What was computed before anything was measured; absent where nothing was.
    pub forecast: Option<Forecast>,
    /// Other safe points that are slower and need less memory; and, by forecast, what other shapes would do.
    pub alternatives: Vec<Alternative>,
    /// What was ruled out, and why.
    pub rejected: Vec<Rejected>,
    /// What the workload should be told about.
    pub warnings: Vec<String>,
    /// What else there is to be said of the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Where it was measured.
    pub environment: DeviceFacts,
    /// How it came about.
    pub provenance: Provenance,
}

/// The recommended configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recommended {
    /// Samples per forward and backward pass on one device.
    pub batch_size: usize,
    /// Micro-batches per optimizer step.
    pub accumulation_steps: usize,
    /// Samples per optimizer step over all replicas.
    pub effective_batch_size: usize,
    /// Devices that train together; absent where it is one.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub replicas: usize,
    /// Loader threads.
    pub loader_workers: usize,
    /// Batches a loader thread keeps ready.
    pub prefetch_depth: usize,
    /// Batches staged on the device.
    pub device_prefetch: usize,
    /// Whether host batches are page-locked.
    pub pin_memory: bool,
    /// Types.
    pub precision: Precision,
    /// Recomputation of activations.
    pub gradient_checkpointing: GradientCheckpointing,
    /// Batch normalisation.
    pub batch_norm: BatchNorm,
    /// When cached memory is handed back.
    pub trim: Trim,
    /// The allocator.
    pub allocator: Allocator,
}

fn one() -> usize {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(count: &usize) -> bool {
    *count == 1
}

/// The allocator of the recommended configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Allocator {
    /// Which.
    pub backend: String,
    /// The driver pool's release threshold in bytes, where there is one.
    pub release_threshold: Option<u64>,
    /// C: what tensors may use.
    pub limit_bytes: u64,
    /// `PYTORCH_CUDA_ALLOC_CONF`, where it applies.
    pub conf: Option<String>,
    /// Why these settings, in a sentence; absent where none were searched for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What was measured of the recommended configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// End to end, the loader included.
    pub samples_per_second: f64,
    /// Time of a step.
    pub step_ms: StepQuantiles,
    /// Share of the time spent blocked on the loader.
    pub data_wait_fraction: f64,
    /// Bytes of the largest batch in host memory; absent where a program of the user's own loads them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_bytes: Option<u64>,
    /// Highest A.
    pub peak_allocated_bytes: u64,
    /// Highest V.
    pub peak_reserved_bytes: u64,
    /// C.
    pub limit_bytes: u64,
    /// C − highest V.
    pub headroom_bytes: u64,
    /// The smallest L at a sample point of the steady state.
    pub largest_satisfiable_bytes: u64,
    /// The largest single request.
    pub largest_request_bytes: u64,
    /// Live allocations at the last sample.
    pub allocated_blocks: u64,
    /// Fragmentation in the steady state.
    pub fragmentation: Fragmentation,
    /// Steps measured.
    pub steps: u32,
    /// Mean loss over the first tenth of the steps; null where the program tells none.
    pub first_loss: Option<f64>,
    /// Mean loss over the last tenth of the steps; null where the program tells none.
    pub last_loss: Option<f64>,
}

/// Fragmentation in the steady state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fragmentation {
    /// Which rate.
    pub metric: FragmentationMetric,
    /// The highest.
    pub max: Option<f64>,
    /// The last.
    pub last: Option<f64>,
    /// What is allowed.
    pub threshold: f64,
    /// The peak rate that the same steps would have under PyTorch's native allocator, by replay; it decides nothing.
    /// Absent without an exact forecast, and where that allocator is the one that was measured.
    #[serde(default)]
    pub native: Option<f64>,
}

/// What was computed before anything was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// `exact`, `affine` or `none`.
    pub method: Method,
    /// The largest batch size that should fit.
    pub largest_batch_size: Option<usize>,
    /// How far the forecast was off where it was checked.
    pub error_percent: Option<f64>,
}

/// A point beside the answer, by what tells points apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherPoint {
    /// Samples per forward and backward pass.
    pub batch_size: usize,
    /// Micro-batches per optimizer step.
    pub accumulation_steps: usize,
    /// Loader threads.
    pub loader_workers: usize,
    /// Batches a loader thread keeps ready.
    pub prefetch_depth: usize,
    /// Batches staged on the device.
    pub device_prefetch: usize,
    /// Recomputation of activations; absent where there is none.
    #[serde(default, skip_serializing_if = "GradientCheckpointing::is_none")]
    pub gradient_checkpointing: GradientCheckpointing,
}

impl From<&Point> for OtherPoint {
    fn from(point: &Point) -> Self {
        Self {
            batch_size: point.batch_size,
            accumulation_steps: point.accumulation_steps,
            loader_workers: point.loader_workers,
            prefetch_depth: point.prefetch_depth,
            device_prefetch: point.device_prefetch,
            gradient_checkpointing: point.gradient_checkpointing,
        }
    }
}

/// What stands behind an alternative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// A trial, in which no safety rule broke.
    #[default]
    Measured,
    /// A forecast of the whole run. Nothing of it was run, so it is not proved.
    Forecast,
}

/// Another point on the front of speed and memory; or, by forecast, another way to run a point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alternative {
    /// Whether it was measured, or is by forecast and not proved.
    #[serde(default)]
    pub basis: Basis,
    /// Which.
    #[serde(flatten)]
    pub point: OtherPoint,
    /// End to end; null where nobody measured it.
    pub samples_per_second: Option<f64>,
    /// Highest V.
    pub peak_reserved_bytes: u64,
    /// What is to be changed, and what it does to the whole run; absent where the point was measured as it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Remedy>,
}

impl Alternative {
    /// A point that holds so much and of which nothing else is known.
    fn at(point: &Point, basis: Basis, peak_reserved_bytes: u64) -> Self {
        Self { basis, point: point.into(), samples_per_second: None, peak_reserved_bytes, remedy: None }
    }
}

/// A change by which a run takes less or lasts, by forecast.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Remedy {
    /// What is changed; all else is as in the point.
    pub changes: Changes,
    /// What it does, in a sentence.
    pub reason: String,
    /// The run with it.
    pub run: BatchedRun,
    /// The run of the point as it is.
    pub as_it_is: BatchedRun,
}

/// A point that was ruled out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rejected {
    /// Which.
    #[serde(flatten)]
    pub point: OtherPoint,
    /// How its trial ended; `skipped` without one.
    pub outcome: String,
    /// Why it was ruled out.
    pub reason: String,
}

/// How the recommendation came about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// The resolved plan's hash.
    pub config_sha256: String,
    /// batchtune's version.
    pub version: String,
    /// The seed.
    pub seed: u64,
    /// When the study began, RFC 3339.
    pub started: String,
    /// Wall time of the study so far.
    pub seconds: f64,
    /// Finished trials.
    pub trials: usize,
    /// Trials that ran out of memory.
    pub oom_trials: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_before_the_native_allocator_s_rate_is_read() {
        let text = "{metric: peak, max: 0.1, last: null, threshold: 0.3}";
        let read: Fragmentation = serde_yaml::from_str(text).unwrap();
        assert_eq!((read.max, read.native), (Some(0.1), None));
    }

    #[test]
    fn a_point_beside_the_answer_is_written_among_the_rest_in_its_order() {
        let point = Point { accumulation_steps: 2, ..Point::plain(4) };
        let other = Alternative { samples_per_second: Some(3.5), ..Alternative::at(&point, Basis::Measured, 7) };
        let text = "basis: measured\nbatch_size: 4\naccumulation_steps: 2\nloader_workers: 0\nprefetch_depth: 0\n\
                    device_prefetch: 0\nsamples_per_second: 3.5\npeak_reserved_bytes: 7\n";
        assert_eq!(serde_yaml::to_string(&other).unwrap(), text);
        let (outcome, reason) = ("skipped".to_owned(), "too large".to_owned());
        let point = Point { gradient_checkpointing: GradientCheckpointing::Blocks, ..point };
        let rejected = Rejected { point: OtherPoint::from(&point), outcome, reason };
        let json = r#"{"batch_size":4,"accumulation_steps":2,"loader_workers":0,"prefetch_depth":0,"device_prefetch":0,"gradient_checkpointing":"blocks","outcome":"skipped","reason":"too large"}"#;
        assert_eq!(serde_json::to_string(&rejected).unwrap(), json);
        assert_eq!(serde_json::from_str::<Rejected>(json).unwrap(), rejected);
    }

    #[test]
    fn an_alternative_of_before_forecasts_among_them_was_measured() {
        let text = "{batch_size: 4, accumulation_steps: 2, loader_workers: 0, prefetch_depth: 0, device_prefetch: 0, \
                    samples_per_second: 3.5, peak_reserved_bytes: 7}";
        let read: Alternative = serde_yaml::from_str(text).unwrap();
        assert_eq!((read.basis, read.samples_per_second, read.remedy), (Basis::Measured, Some(3.5), None));
    }
}
