//! What a trial runs.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::data::DataSpec;
use crate::device::DeviceChoice;
use crate::memory::{AllocatorKind, LimitSpec, Trim};
use crate::model::ModelSpec;
use crate::train::{GradientCheckpointing, TrainSpec};

/// The number of a trial within its study, counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TrialId(pub u32);

impl fmt::Display for TrialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A point of the search space: everything the search may change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Point {
    /// Samples per forward and backward pass on one device.
    pub batch_size: usize,
    /// Micro-batches per optimizer step, as the planned run has them. A trial runs min(this, 2): memory is the same
    /// for 2 and for more.
    pub accumulation_steps: usize,
    /// Loader threads; 0 loads in the training thread.
    pub loader_workers: usize,
    /// Batches a loader thread keeps ready; 0 loads on demand.
    pub prefetch_depth: usize,
    /// Batches staged on the device ahead of the step.
    pub device_prefetch: usize,
    /// Whether host batches are page-locked.
    pub pin_memory: bool,
    /// Recomputation of activations; never `auto` here.
    pub gradient_checkpointing: GradientCheckpointing,
    /// When cached memory is handed back.
    pub trim: Trim,
    /// Settings of PyTorch's allocator; `None` leaves the program's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alloc_conf: Option<String>,
}

impl Point {
    /// Accumulation as a measuring trial runs it.
    pub fn trial_accumulation(&self) -> usize {
        self.accumulation_steps.clamp(1, 2)
    }

    /// Page-locked batches: those that are staged on the device, the one that is being copied, and the one to come, which
    /// is filled meanwhile. 0 where batches are pageable.
    pub fn pinned_batches(&self) -> usize {
        if self.pin_memory { self.device_prefetch.saturating_add(2) } else { 0 }
    }
}

impl fmt::Display for Point {
    /// `batch 32 × 2, 1 worker × 2`: what changes between trials, for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "batch {} × {}, {} × {}",
            self.batch_size,
            self.accumulation_steps,
            crate::units::plural(self.loader_workers, "worker"),
            self.prefetch_depth
        )?;
        if self.device_prefetch > 0 {
            write!(f, ", {} on device", self.device_prefetch)?;
        }
        if !self.gradient_checkpointing.is_none() {
            write!(f, ", recomputing {}", self.gradient_checkpointing)?;
        }
        if let Some(conf) = &self.alloc_conf {
            write!(f, ", {conf}")?;
        }
        Ok(())
    }
}

/// Why a strategy asks for a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Does the workload run at all?
    Smallest,
    /// A tiny batch with every allocation recorded, for the forecast.
    Probe,
    /// A rung of the batch ladder.
    Ladder,
    /// Between the largest size known to be safe and the smallest known not to be.
    Bisection,
    /// A micro-batch with accumulation that meets the target.
    Accumulation,
    /// A point that fragmented, with less in flight or with its cache handed back.
    Remedy,
    /// The loader alone: how many batches a second its workers make when no step waits for them.
    Throughput,
    /// Loader workers, prefetch depth and device prefetch.
    Loader,
    /// Settings of the allocator that a replay prefers.
    Allocator,
    /// A point of the full grid.
    Grid,
    /// The long verifying run of the recommended configuration.
    Soak,
}

impl Purpose {
    /// Whether such a trial may run beside others of the same host, each on a device of its own.
    ///
    /// What a trial is for decides what of it must not be disturbed. Most compare how long steps take on their device
    /// and what memory they need there, which a neighbour does not change. Three kinds are about the host, whose
    /// processors, memory and disk a neighbour would take a share of: [`Throughput`](Self::Throughput) and
    /// [`Loader`](Self::Loader), whose very question is how fast batches are made, and the [`Soak`](Self::Soak), whose
    /// figures are those that are recommended. They run alone.
    pub fn shares_host(self) -> bool {
        !matches!(self, Self::Throughput | Self::Loader | Self::Soak)
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Smallest => "smallest",
            Self::Probe => "probe",
            Self::Ladder => "ladder",
            Self::Bisection => "bisection",
            Self::Accumulation => "accumulation",
            Self::Remedy => "remedy",
            Self::Throughput => "throughput",
            Self::Loader => "loader",
            Self::Allocator => "allocator",
            Self::Grid => "grid",
            Self::Soak => "soak",
        })
    }
}

/// One trial: a point and how long to run it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialSpec {
    /// Its number.
    pub id: TrialId,
    /// Why it is run.
    pub purpose: Purpose,
    /// What is run.
    pub point: Point,
    /// Steps whose time is dropped.
    pub warmup_steps: u32,
    /// Steps that are measured, after the warm-up. Of the loader alone these are batches, and so are those of the warm-up.
    pub steps: u32,
    /// A memory sample is taken every so many steps.
    pub sample_every: u32,
}

impl TrialSpec {
    /// Whether this is the verifying run, with an evaluation pass and a checkpoint.
    pub fn is_soak(&self) -> bool {
        self.purpose == Purpose::Soak
    }

    /// Whether this trial records every allocation. It runs under what the device has free rather than under C, so it
    /// says nothing of whether its point is safe.
    pub fn is_probe(&self) -> bool {
        self.purpose == Purpose::Probe
    }

    /// Whether this trial runs the loader alone. It has no model and no step, so it says nothing of memory or speed of its
    /// point.
    pub fn is_throughput(&self) -> bool {
        self.purpose == Purpose::Throughput
    }

    /// Whether this trial measures its point under C: neither a probe, nor the loader alone, nor the verifying run.
    pub fn is_measuring(&self) -> bool {
        self.is_judged() && !self.is_soak()
    }

    /// Whether the safety rules have something to say of it: they are about steps under C.
    pub fn is_judged(&self) -> bool {
        !self.is_probe() && !self.is_throughput()
    }

    /// Batches of which each loader thread makes one.
    pub fn loader_round(&self) -> u32 {
        u32::try_from(self.point.loader_workers).unwrap_or(u32::MAX).max(1)
    }

    /// Threads that are busy while this trial runs: the one that trains, and those that load.
    pub fn threads(&self) -> usize {
        self.point.loader_workers.saturating_add(1)
    }

    /// Micro-batches per optimizer step as this trial runs them: the planned run's in a soak, at most two otherwise.
    pub fn accumulation(&self) -> usize {
        if self.is_soak() { self.point.accumulation_steps.max(1) } else { self.point.trial_accumulation() }
    }

    /// All steps that the trial runs: warm-up and measured ones together, at least one, and in a soak enough for two
    /// updates.
    pub fn total_steps(&self) -> u32 {
        let asked = self.warmup_steps.saturating_add(self.steps).max(1);
        if self.is_soak() {
            asked.max(u32::try_from(self.accumulation().saturating_mul(2)).unwrap_or(u32::MAX))
        } else {
            asked
        }
    }
}

/// What all trials of a study share: the workload and the device it runs on. A worker gets it once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadSpec {
    /// The model.
    pub model: ModelSpec,
    /// How it is trained.
    pub train: TrainSpec,
    /// On which data.
    pub data: DataSpec,
    /// On which device.
    pub device: DeviceChoice,
    /// What tensors may use.
    pub limit: LimitSpec,
    /// The allocator of the planned run.
    pub allocator: AllocatorKind,
    /// Seeds everything that is random.
    pub seed: u64,
}

/// The updates that a probe runs. The first makes the optimizer state, the third is followed by an evaluation pass, and
/// the fourth shows what the training steps take from the cache after one; a forecast needs two that are alike.
pub const PROBE_UPDATES: u32 = 4;
/// The update of a probe that an evaluation pass follows.
pub const PROBE_EVALUATION_AFTER: u32 = 3;

/// The recording that a probe leaves in the scratch directory, which is the study's. It stays there for the forecast,
/// for a resumed study and for `tune forecast`.
pub fn trace_path(scratch: &Path, point: &Point) -> PathBuf {
    let accumulation = if point.trial_accumulation() == 1 { "-without-accumulation" } else { "" };
    let recomputation = match point.gradient_checkpointing {
        GradientCheckpointing::Blocks => "-recomputing",
        GradientCheckpointing::None | GradientCheckpointing::Auto => "",
    };
    scratch.join(format!("probe-{}{accumulation}{recomputation}.trace", point.batch_size))
}

/// The checkpoint that a soak writes into the scratch directory, and removes; the driver does, should the worker not
/// live to.
pub fn checkpoint_path(scratch: &Path, trial: TrialId) -> PathBuf {
    scratch.join(format!("checkpoint-of-trial-{trial}.safetensors"))
}
