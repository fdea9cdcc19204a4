//! What a trial runs.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::data::{DataSpec, SampleSize};
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
    /// A micro-batch and nothing beside it: no accumulation, a data path in the training thread, and the defaults.
    pub fn plain(batch_size: usize) -> Self {
        Self {
            batch_size,
            accumulation_steps: 1,
            loader_workers: 0,
            prefetch_depth: 0,
            device_prefetch: 0,
            pin_memory: false,
            gradient_checkpointing: GradientCheckpointing::None,
            trim: Trim::Never,
            alloc_conf: None,
        }
    }

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
    /// The size of every sample, in a probe that tells what memory does as sizes vary; else they are as the data gives
    /// them.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub sample_size: Option<SampleSize>,
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

    /// Whether this is a probe at a shape of its own, for the forecast of the whole run.
    pub fn is_shape_probe(&self) -> bool {
        self.is_probe() && self.sample_size.is_some()
    }

    /// Micro-batches per optimizer step as this trial runs them: the planned run's in a soak, at most four in a probe at
    /// a shape of its own, at most two otherwise.
    pub fn accumulation(&self) -> usize {
        if self.is_soak() {
            self.point.accumulation_steps.max(1)
        } else if self.is_shape_probe() {
            self.point.accumulation_steps.clamp(1, SHAPE_PROBE_ACCUMULATION)
        } else {
            self.point.trial_accumulation()
        }
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

    /// The finished steps after which a soak has its evaluation pass and its checkpoint: half of them, up to the end of an
    /// update. `None` in any other trial.
    pub fn soak_checks_after(&self) -> Option<u32> {
        let (total, update) = (self.total_steps(), u32::try_from(self.accumulation()).unwrap_or(u32::MAX));
        let half = || (total / 2).max(1).checked_next_multiple_of(update).map_or(total, |step| step.min(total));
        self.is_soak().then(half)
    }

    /// Whether more than a step is to come after so many finished ones: the model is built before the first, and the checks
    /// of a soak are none. Whoever waits is more patient then, and all who wait are alike.
    pub fn has_more_than_a_step_ahead(&self, finished: u32) -> bool {
        finished == 0 || self.soak_checks_after() == Some(finished)
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

/// Of the micro-batches of an update the first makes the gradients, the last is followed by the optimizer's step, and
/// those between are alike. With four the last but one comes after one like itself, so it stands for any number more.
pub const SHAPE_PROBE_ACCUMULATION: usize = 4;

/// What a probe does when, in updates counted from 1.
///
/// The first update may make the optimizer's state, and loads what is staged ahead, so it stands for no other. A forecast of
/// a long run needs two plain ones in a row that are alike, the later of which frees nothing that the first has loaded.
/// Then comes one with an evaluation pass (and a checkpoint, where the run will have them), and after it at least one that
/// shows what training steps take from the cache after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeSchedule {
    /// All updates.
    pub updates: u32,
    /// The one that is followed by the evaluation pass.
    pub evaluation_after: u32,
}

impl ProbeSchedule {
    /// Without batches staged ahead and without a shape of its own: what most probes are.
    pub const PLAIN: Self = Self { updates: 5, evaluation_after: 4 };

    /// That of a probe.
    pub fn of(spec: &TrialSpec) -> Self {
        let (ahead, steps) = (spec.point.device_prefetch, spec.accumulation().max(1));
        // Updates more until what is freed was loaded after the first one.
        let settling = ahead.saturating_add(1).div_ceil(steps).saturating_sub(2);
        let settling = u32::try_from(settling).unwrap_or(u32::MAX);
        let evaluation_after = settling.saturating_add(Self::PLAIN.evaluation_after);
        let updates = settling.saturating_add(evaluation_after).saturating_add(1);
        // A run of thousands of steps goes on as the recording does, so it has to be settled after the pass as well.
        let again = u32::from(spec.is_shape_probe());
        Self { updates: updates.saturating_add(again), evaluation_after }
    }
}

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

/// The recording that a probe leaves, whichever it is: those at shapes of their own have names of their own.
pub fn recording_path(scratch: &Path, spec: &TrialSpec) -> PathBuf {
    let Some(size) = spec.sample_size else { return trace_path(scratch, &spec.point) };
    let Point { batch_size, device_prefetch, gradient_checkpointing, trim, .. } = &spec.point;
    let recomputation = if gradient_checkpointing.is_none() { "" } else { "-recomputing" };
    let staged = if *device_prefetch == 0 { String::new() } else { format!("-staging-{device_prefetch}") };
    let trim = if *trim == Trim::Never { String::new() } else { format!("-trimming-{trim}") };
    let (size, steps) = (size.value(), spec.accumulation());
    scratch.join(format!("probe-{batch_size}x{size}-of-{steps}{staged}{recomputation}{trim}.trace"))
}

/// The checkpoint that a soak writes into the scratch directory, and removes; the driver does, should the worker not
/// live to.
pub fn checkpoint_path(scratch: &Path, trial: TrialId) -> PathBuf {
    scratch.join(format!("checkpoint-of-trial-{trial}.safetensors"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(accumulation_steps: usize, device_prefetch: usize, tokens: Option<usize>) -> TrialSpec {
        let point = Point { accumulation_steps, device_prefetch, ..Point::plain(2) };
        let (id, purpose, sample_size) = (TrialId(1), Purpose::Probe, tokens.map(SampleSize::Tokens));
        TrialSpec { id, purpose, point, warmup_steps: 1, steps: 1, sample_every: 2, sample_size }
    }

    #[test]
    fn a_probe_has_two_plain_updates_alike_whose_frees_are_not_of_the_first() {
        for accumulation in 1..=4 {
            for ahead in 0..=9 {
                for tokens in [None, Some(64)] {
                    let spec = probe(accumulation, ahead, tokens);
                    let ProbeSchedule { updates, evaluation_after } = ProbeSchedule::of(&spec);
                    // Counted from 0: the last plain update, and its first step.
                    let last_plain = evaluation_after - 2;
                    let first_step = last_plain as usize * spec.accumulation();
                    assert!(last_plain >= 2 && first_step > ahead && updates > evaluation_after, "{spec:?}");
                }
            }
        }
        assert_eq!(ProbeSchedule::of(&probe(2, 0, None)), ProbeSchedule::PLAIN);
    }

    #[test]
    fn the_size_of_samples_is_one_key_of_a_trial_and_older_trials_are_read() {
        let json = |size| serde_json::to_value(TrialSpec { sample_size: size, ..probe(1, 0, None) }).unwrap();
        assert!(json(None).get("length").is_none() && json(None).get("image_size").is_none());
        for (size, key) in [(SampleSize::Tokens(64), "length"), (SampleSize::Side(64), "image_size")] {
            let written = json(Some(size));
            assert_eq!(written[key], 64);
            assert_eq!(serde_json::from_value::<TrialSpec>(written).unwrap().sample_size, Some(size));
        }
        assert_eq!(serde_json::from_value::<TrialSpec>(json(None)).unwrap(), probe(1, 0, None));
    }

    #[test]
    fn probes_of_other_shapes_have_files_of_their_own() {
        let path = |spec: &TrialSpec| recording_path(Path::new("study"), spec).display().to_string();
        assert_eq!(path(&probe(8, 1, None)), "study/probe-2.trace");
        assert_eq!(path(&probe(1, 0, Some(64))), "study/probe-2x64-of-1.trace");
        let other = probe(8, 1, Some(96));
        let trimming = Point { trim: Trim::AfterUpdate, ..other.point.clone() };
        let trimming = Point { gradient_checkpointing: GradientCheckpointing::Blocks, ..trimming };
        let other = TrialSpec { point: trimming, ..other };
        assert_eq!(path(&other), "study/probe-2x96-of-4-staging-1-recomputing-trimming-after_update.trace");
    }
}
