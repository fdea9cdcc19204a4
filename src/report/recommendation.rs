//! `recommendation.yaml`: the answer, what was measured of it, and why everything else was rejected.
//!
//! Field names are fixed by the schema `batchtune/recommendation/v1`; other programs read them.

use serde::{Deserialize, Serialize};

use crate::device::DeviceFacts;
use crate::memory::forecast::Method;
use crate::memory::{FragmentationMetric, Trim};
use crate::search::Check;
use crate::search::recommend::Status;
use crate::train::{BatchNorm, GradientCheckpointing, Precision};
use crate::trial::outcome::StepQuantiles;

mod file;
mod made;
mod nesting;
mod notes;
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
    /// Other safe points that are slower and need less memory.
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

/// Another safe point on the front of speed and memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alternative {
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
    /// End to end.
    pub samples_per_second: f64,
    /// Highest V.
    pub peak_reserved_bytes: u64,
}

/// A point that was ruled out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rejected {
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
}
