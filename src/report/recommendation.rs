//! `recommendation.yaml`: the answer, what was measured of it, and why everything else was rejected.
//!
//! Field names are fixed by the schema `batchtune/recommendation/v1`; other programs read them.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::Plan;
use crate::device::DeviceFacts;
use crate::memory::forecast::Method;
use crate::memory::{FragmentationMetric, Trim};
use crate::search::knowledge::probed::Summary;
use crate::search::recommend::{Status, front, standing};
use crate::search::{Check, History, JudgedTrial, Skip, Space, rules, staged};
use crate::train::{BatchNorm, GradientCheckpointing, Precision};
use crate::trial::outcome::StepQuantiles;
use crate::trial::{Outcome, Point};

/// The schema's name, with its version.
pub const SCHEMA: &str = "batchtune/recommendation/v1";

/// The name of the driver's pool in [`DeviceFacts::allocator`]. Trials run with a release threshold of u64::MAX, so a
/// launch must too: with the driver's default of 0 it would give its memory back at every synchronisation.
const DRIVER_POOL: &str = "cuda_malloc_async";

/// The largest recommendation file that is read back.
const MAX_FILE_BYTES: u64 = 16 << 20;

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
    /// Mean loss over the first tenth of the steps.
    pub first_loss: f64,
    /// Mean loss over the last tenth of the steps.
    pub last_loss: f64,
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

/// What a recommendation is made from.
#[derive(Clone, Debug)]
pub struct Source<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The finished trials.
    pub history: &'a History,
    /// The points ruled out unseen.
    pub skipped: &'a [Skip],
    /// What the probes foretold, where there were any.
    pub forecast: Option<Summary>,
    /// The device.
    pub facts: &'a DeviceFacts,
    /// When the study began, RFC 3339.
    pub started: &'a str,
    /// Wall time of the study so far.
    pub seconds: f64,
}

impl Recommendation {
    /// The recommendation that a study's history supports so far.
    pub fn new(source: &Source<'_>) -> Self {
        let space = Space::new(source.plan);
        let standing = standing(source.history, &space);
        let trial = standing.trial();
        Self {
            schema: SCHEMA.to_owned(),
            status: standing.status(),
            recommended: trial.map(|trial| recommended(source, &space, &trial.record.spec.point)),
            measured: trial.and_then(|trial| measured(source.plan, trial)),
            checks: trial.map(|trial| trial.verdict.checks.clone()).unwrap_or_default(),
            forecast: source.forecast.as_ref().map(forecast),
            alternatives: alternatives(source.history, &space, standing.point()),
            rejected: rejected(source),
            warnings: warnings(source.history),
            environment: source.facts.clone(),
            provenance: provenance(source),
        }
    }

    /// The file's text.
    pub fn to_yaml(&self) -> Result<String, ReportError> {
        Ok(serde_yaml::to_string(self)?)
    }

    /// Writes the file so that a reader sees either the old one or the new one, never a part. What is no file, such as
    /// `/dev/null`, is written to as it is.
    pub fn write(&self, path: &Path) -> Result<(), ReportError> {
        let failed = |source| ReportError::Write { path: path.to_owned(), source };
        let text = self.to_yaml()?;
        let path = match destination(path).map_err(failed)? {
            Destination::File(path) => path,
            Destination::Device => return std::fs::write(path, text).map_err(failed),
        };
        let mut file = draft(&path).map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
        readable_by_all(file.as_file()).map_err(failed)?;
        file.persist(&path).map_err(|error| failed(error.error))?;
        Ok(())
    }

    /// Refuses a path that [`write`](Self::write) could not write to, so that no trial is run in vain.
    pub fn check_writable(path: &Path) -> Result<(), ReportError> {
        let failed = |source| ReportError::Write { path: path.to_owned(), source };
        match destination(path).map_err(failed)? {
            Destination::File(path) => draft(&path).map(drop).map_err(failed),
            Destination::Device => Ok(()),
        }
    }

    /// Reads a recommendation back.
    pub fn read(path: &Path) -> Result<Self, ReportError> {
        let failed = |source| ReportError::Read { path: path.to_owned(), source };
        let mut text = String::new();
        // The length is no bound: a device has none.
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > MAX_FILE_BYTES {
            let source = std::io::Error::other(format!("over {MAX_FILE_BYTES} bytes are no recommendation"));
            return Err(failed(source));
        }
        let read: Self =
            serde_yaml::from_str(&text).map_err(|source| ReportError::Parse { path: path.to_owned(), source })?;
        if read.schema == SCHEMA {
            Ok(read)
        } else {
            Err(ReportError::Schema { path: path.to_owned(), found: read.schema })
        }
    }
}

/// Where a recommendation goes.
enum Destination {
    /// A file, which is replaced as a whole. Links are followed: what they point to is meant.
    File(PathBuf),
    /// A character device. Replacing it would take `/dev/null` away from everybody.
    Device,
}

fn destination(path: &Path) -> std::io::Result<Destination> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::metadata(path).map(|metadata| metadata.file_type()) {
        Ok(kind) if kind.is_file() => std::fs::canonicalize(path).map(Destination::File),
        Ok(kind) if kind.is_char_device() => Ok(Destination::Device),
        Ok(kind) if kind.is_dir() => Err(std::io::Error::from(std::io::ErrorKind::IsADirectory)),
        Ok(_) => Err(std::io::Error::other("it is neither a file nor a character device")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Destination::File(path.to_owned())),
        Err(error) => Err(error),
    }
}

/// A file beside `path` that can take its place, and is gone unless it does.
fn draft(path: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::Builder::new().prefix(".recommendation").tempfile_in(folder)
}

/// Temporary files are private to their owner; a recommendation is for the job that runs next.
fn readable_by_all(file: &std::fs::File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

fn recommended(source: &Source<'_>, space: &Space, point: &Point) -> Recommended {
    Recommended {
        batch_size: point.batch_size,
        accumulation_steps: point.accumulation_steps,
        effective_batch_size: space.effective_batch_size(point),
        loader_workers: point.loader_workers,
        prefetch_depth: point.prefetch_depth,
        device_prefetch: point.device_prefetch,
        pin_memory: point.pin_memory,
        precision: source.plan.train.precision,
        gradient_checkpointing: point.gradient_checkpointing,
        batch_norm: source.plan.train.batch_norm,
        trim: point.trim,
        allocator: Allocator {
            backend: source.facts.allocator.clone(),
            release_threshold: (source.facts.allocator == DRIVER_POOL).then_some(u64::MAX),
            limit_bytes: source.facts.limit_bytes,
            conf: None,
        },
    }
}

fn measured(plan: &Plan, trial: &JudgedTrial) -> Option<Measured> {
    let record = &trial.record;
    let measurement = record.measurement.as_ref()?;
    let steady = || record.samples.iter().filter(|sample| sample.step > rules::WARM_UP_STEPS);
    let limit_bytes = record.samples.iter().map(|sample| sample.limit_bytes).max().unwrap_or(0);
    let rates: Vec<f64> = steady().filter_map(|sample| rules::fragmentation::rate(sample, &plan.safety)).collect();
    Some(Measured {
        samples_per_second: measurement.samples_per_second,
        step_ms: measurement.step_ms,
        data_wait_fraction: measurement.data_wait_fraction,
        peak_allocated_bytes: measurement.peak_allocated_bytes,
        peak_reserved_bytes: measurement.peak_reserved_bytes,
        limit_bytes,
        headroom_bytes: limit_bytes.saturating_sub(measurement.peak_reserved_bytes),
        largest_satisfiable_bytes: steady().map(|sample| sample.largest_satisfiable_bytes).min().unwrap_or(0),
        largest_request_bytes: measurement.largest_request_bytes,
        allocated_blocks: record.samples.last().map_or(0, |sample| sample.allocated_blocks),
        fragmentation: Fragmentation {
            metric: plan.safety.fragmentation_metric,
            max: rates.iter().copied().reduce(f64::max),
            last: rates.last().copied(),
            threshold: plan.safety.fragmentation_threshold.0,
        },
        steps: measurement.steps,
        first_loss: measurement.first_loss,
        last_loss: measurement.last_loss,
    })
}

fn forecast(summary: &Summary) -> Forecast {
    let Summary { method, largest_batch_size, error_percent, .. } = summary;
    Forecast { method: *method, largest_batch_size: *largest_batch_size, error_percent: *error_percent }
}

fn alternatives(history: &History, space: &Space, chosen: Option<&Point>) -> Vec<Alternative> {
    front(history, space)
        .into_iter()
        .filter(|trial| Some(&trial.record.spec.point) != chosen)
        .filter(|trial| history.soaked(&trial.record.spec.point).is_none_or(JudgedTrial::is_safe))
        .filter_map(|trial| {
            let point = &trial.record.spec.point;
            let measurement = trial.record.measurement.as_ref()?;
            Some(Alternative {
                batch_size: point.batch_size,
                accumulation_steps: point.accumulation_steps,
                loader_workers: point.loader_workers,
                prefetch_depth: point.prefetch_depth,
                device_prefetch: point.device_prefetch,
                samples_per_second: measurement.samples_per_second,
                peak_reserved_bytes: measurement.peak_reserved_bytes,
            })
        })
        .collect()
}

fn rejected(source: &Source<'_>) -> Vec<Rejected> {
    let row = |point: &Point, outcome: &str, reason: String| Rejected {
        batch_size: point.batch_size,
        accumulation_steps: point.accumulation_steps,
        loader_workers: point.loader_workers,
        prefetch_depth: point.prefetch_depth,
        device_prefetch: point.device_prefetch,
        outcome: outcome.to_owned(),
        reason,
    };
    // A probe is no candidate, whatever became of it.
    let is_rejected = |trial: &&JudgedTrial| {
        !trial.is_safe() && trial.record.outcome != Outcome::Cancelled && !trial.record.spec.is_probe()
    };
    let tried = source.history.trials().iter().filter(is_rejected);
    let tried = tried.map(|trial| {
        let record = &trial.record;
        row(&record.spec.point, record.outcome.name(), staged::breach_reason(trial))
    });
    let skipped = source.skipped.iter().map(|skip| row(&skip.point, "skipped", skip.reason.clone()));
    tried.chain(skipped).collect()
}

/// Every distinct warning of the trials, in the order in which they came up.
fn warnings(history: &History) -> Vec<String> {
    let mut warnings: Vec<String> = Vec::new();
    for warning in history.trials().iter().flat_map(|trial| &trial.record.warnings) {
        if !warnings.contains(warning) {
            warnings.push(warning.clone());
        }
    }
    warnings
}

fn provenance(source: &Source<'_>) -> Provenance {
    let out_of_memory = |trial: &&JudgedTrial| matches!(trial.record.outcome, Outcome::OutOfMemory { .. });
    Provenance {
        config_sha256: source.plan.sha256(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        seed: source.plan.seed,
        started: source.started.to_owned(),
        seconds: source.seconds,
        trials: source.history.trials().len(),
        oom_trials: source.history.trials().iter().filter(out_of_memory).count(),
    }
}

/// Why a recommendation cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The file cannot be written.
    #[error("cannot write `{}`", path.display())]
    Write {
        /// Which.
        path: std::path::PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The file cannot be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// Which.
        path: std::path::PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The file is no recommendation.
    #[error("`{}` is not a recommendation of this version", path.display())]
    Parse {
        /// Which.
        path: std::path::PathBuf,
        /// Why not.
        #[source]
        source: serde_yaml::Error,
    },
    /// The file is of another schema.
    #[error("`{}` has the schema `{found}`, expected `{SCHEMA}`", path.display())]
    Schema {
        /// Which.
        path: std::path::PathBuf,
        /// What it says.
        found: String,
    },
    /// A value that YAML cannot hold.
    #[error("cannot write the recommendation as YAML")]
    Yaml(#[from] serde_yaml::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_written_to_and_not_replaced() {
        assert!(matches!(destination(Path::new("/dev/null")), Ok(Destination::Device)));
    }

    #[test]
    fn a_link_is_kept_and_what_it_points_to_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let meant = file.canonicalize().unwrap();
        assert!(matches!(destination(&link), Ok(Destination::File(path)) if path == meant));
    }

    #[test]
    fn what_is_neither_a_file_nor_a_device_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(Recommendation::check_writable(&socket).is_err());
        assert!(Recommendation::check_writable(folder.path()).is_err());
    }

    #[test]
    fn what_has_no_end_is_no_recommendation() {
        assert!(matches!(Recommendation::read(Path::new("/dev/zero")), Err(ReportError::Read { .. })));
    }
}
