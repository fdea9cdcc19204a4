//! Trials of a program of the user's own: PyTorch or anything else that can be started.
//!
//! [`CommandExecutor`] is the second [`Executor`] that ships. Where a [worker](super::worker) trains a model of ours in a
//! process of ours, here each trial is one run of the user's command, told by its arguments and its environment what to do
//! ([`template`], [`spec`]). What happens in it is seen from three sides:
//!
//! | side | room | seen |
//! |---|---|---|
//! | its own report | [`report`] | steps, losses, allocator figures, in a probe every allocation ([`trace`]) |
//! | its process | [`spawn`](super::spawn), `run` | exit status, signal, the last lines that it printed |
//! | the card | [`spawn`](super::spawn) | memory by NVML, every 100 ms |
//!
//! A program that does not report is tuned by the other two: whether it fits, and how much of the card it held. How its
//! memory is fragmented nobody sees, and the result says so.
//!
//! With `target.replicas: N` the program is one that starts N ranks, as `torchrun --nproc-per-node={replicas}` does. It is
//! one trial still: each [`rank`] reports by itself, and the [`worst`] decides. The forecast is made from the trace of the
//! rank with the highest peak, since that is the one to run out of memory; of equal ones, as nearly always, from rank 0's.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use super::disk;
use super::executor::{Executor, ExecutorError, Interrupt, Observation};
use super::launcher::Place;
use super::outcome::{Outcome, TrialRecord};
use super::process::{OomKills, Patience};
use super::spawn::{Launch, Running, SpawnError, Spawner, Start};
use super::spec::TrialSpec;
use crate::data::SampleSize;
use crate::device::visible::VISIBLE_DEVICES;
use crate::device::{DeviceChoice, DeviceFacts};
use crate::memory::{AllocatorKind, LimitSpec};
use crate::text::{harmless, with_causes};
use crate::units::Bytes;

mod blame;
mod device;
mod ending;
mod figures;
mod host;
mod process;
mod rank;
mod remarks;
pub mod report;
mod run;
mod settle;
mod spec;
mod template;
#[cfg(test)]
mod testing;
pub mod trace;
mod worst;

pub use device::{allocator_of, conf_of};
pub use spec::{ALLOC_CONF, CommandSpec};
pub use template::{Placeholder, Template, UnknownPlaceholder};

use device::{Placement, Watches};
use report::Reader;
use run::Terms;
use settle::Seen;
use spec::{Bounds, TrialFiles, environment};
use template::Filling;

/// What an executor of commands needs to know.
#[derive(Clone, Debug)]
pub struct CommandConfig {
    /// The program.
    pub command: CommandSpec,
    /// The word of `train.precision`, for its placeholder.
    pub precision: String,
    /// For its placeholder.
    pub seed: u64,
    /// Ranks that train together, a device each.
    pub replicas: usize,
    /// On which device; of several the first.
    pub device: DeviceChoice,
    /// What tensors may use.
    pub limit: LimitSpec,
    /// The allocator that the program is to use; `auto` leaves it as it is.
    pub allocator: AllocatorKind,
    /// Where reports, traces and checkpoints go.
    pub scratch: PathBuf,
    /// How long to wait for what.
    pub patience: Patience,
    /// A request to stop.
    pub interrupt: Interrupt,
    /// When the budget ends.
    pub deadline: Option<Instant>,
    /// The kernel's count of processes ended for want of host memory.
    pub oom_kills: OomKills,
}

impl CommandConfig {
    /// The allocator settings that every run has: those of the configuration, else of `command.env`, else the tuner's own.
    fn alloc_conf(&self) -> Option<String> {
        // With a placeholder they differ from trial to trial, and are the program's own affair.
        let settings = self.command.env.get(ALLOC_CONF).filter(|conf| !conf.holds_any());
        let written = || settings.map(|conf| conf.as_written().to_owned());
        conf_of(self.allocator).map(str::to_owned).or_else(written).or_else(|| std::env::var(ALLOC_CONF).ok())
    }
}

/// Runs each trial as one run of the user's program.
#[derive(Debug)]
pub struct CommandExecutor {
    config: CommandConfig,
    spawner: Spawner,
    placement: Option<Placement>,
    /// What there was to say of how the program is started.
    start_warnings: Vec<String>,
    /// Whether a run has reported, so that the next ones will.
    reports: bool,
    /// The most that a run held, which bounds a checkpoint's size.
    peak_allocated_bytes: u64,
    /// The rank that probes are traced of.
    traced_rank: Option<usize>,
    /// For each batch size the first size of samples that was recorded, and what it took.
    sample_sizes: HashMap<usize, (SampleSize, u64)>,
}

impl CommandExecutor {
    /// An executor that has started nothing yet.
    pub fn new(config: CommandConfig) -> Self {
        let spawner = Spawner::new(config.command.preload.clone()).heeding(config.interrupt.clone(), config.deadline);
        Self {
            config,
            spawner,
            placement: None,
            start_warnings: Vec::new(),
            reports: false,
            peak_allocated_bytes: 0,
            traced_rank: None,
            sample_sizes: HashMap::new(),
        }
    }

    fn launch(&self, spec: &TrialSpec, files: &TrialFiles, placement: &Placement) -> Launch {
        let config = &self.config;
        let Self { config: CommandConfig { precision, seed, replicas, .. }, .. } = self;
        let filling = Filling { trial: spec, precision, seed: *seed, replicas: *replicas };
        // What `command.env` or the tuner's own environment says stays as it is.
        let conf = spec.point.alloc_conf.clone().or_else(|| conf_of(config.allocator).map(str::to_owned));
        let bounds = Bounds {
            limit_bytes: (!spec.is_probe()).then_some(placement.facts.limit_bytes),
            alloc_conf: conf.as_deref(),
        };
        let mut variables = environment(&config.command, &filling, files, bounds);
        if let Some(card) = &placement.visible_devices {
            variables.push((VISIBLE_DEVICES.to_owned(), card.clone()));
        }
        Launch {
            arguments: config.command.run.iter().map(|argument| OsString::from(argument.fill(&filling))).collect(),
            environment: variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            directory: config.command.cwd.clone().unwrap_or_else(|| PathBuf::from(".")),
        }
    }

    /// Starts the program. One that is not there fails whatever the size, as one that leaves at once does.
    fn start_run(&mut self, launch: &Launch, observe: &mut dyn FnMut(Observation)) -> Result<Running, Outcome> {
        let running = self.spawner.start(launch).map_err(|error| match error {
            SpawnError::Cancelled => Outcome::Cancelled,
            error => Outcome::Failed { message: harmless(&with_causes(&error)) },
        })?;
        if let Some(Start::Plain { why: Some(why) }) = self.spawner.news() {
            let text = format!("every trial starts a new interpreter: {why}");
            observe(Observation::Warning(text.clone()));
            self.start_warnings.push(text);
        }
        Ok(running)
    }

    /// The checkpoint's place, unless the disk has too little room for what the program holds at most.
    fn files(&self, spec: &TrialSpec, record: &mut TrialRecord) -> TrialFiles {
        let mut files = TrialFiles::of(&self.config.scratch, spec).of_ranks(self.config.replicas);
        let needed_bytes = self.peak_allocated_bytes.saturating_mul(disk::CHECKPOINT_FACTOR);
        if files.checkpoint.is_some()
            && let Some(free_bytes) = disk::free_bytes(&self.config.scratch)
            && free_bytes < needed_bytes
        {
            files.checkpoint = None;
            record.warnings.push(format!(
                "no checkpoint was written: `{}` has {} free, less than twice what the program holds, {}",
                self.config.scratch.display(),
                Bytes(free_bytes),
                Bytes(needed_bytes)
            ));
        }
        files
    }

    /// One run, from its start to its record.
    fn attempt(
        &mut self,
        spec: &TrialSpec,
        placement: &Placement,
        record: &mut TrialRecord,
        observe: &mut dyn FnMut(Observation),
    ) -> Result<(), ExecutorError> {
        let files = Removed(self.files(spec, record));
        let reader = |path: PathBuf| Reader::create(&path).map_err(|source| ExecutorError::Scratch { path, source });
        let readers: Vec<Reader> = files.0.reports().map(reader).collect::<Result<_, _>>()?;
        let launch = self.launch(spec, &files.0, placement);
        let watches = Watches::over(placement);
        let started = self.start_run(&launch, observe);
        record.warnings.append(&mut self.start_warnings);
        let running = match started {
            Ok(running) => running,
            Err(outcome) => {
                record.outcome = outcome;
                return Ok(());
            }
        };
        let watches = watches.follow(running.pid());
        let begun = Instant::now();
        let terms = Terms {
            trial: spec,
            replicas: self.config.replicas,
            limit_bytes: placement.facts.limit_bytes,
            patience: self.config.patience,
            timeout: self.config.command.timeout,
            interrupt: &self.config.interrupt,
            deadline: self.config.deadline,
            oom_kills: &self.config.oom_kills,
            is_known_to_report: self.reports,
        };
        let heard = run::follow(&terms, readers, running, observe);
        let took = begun.elapsed();
        let used = watches.finish();
        self.settle(spec, heard, &Seen { files: &files.0, placement, used, took }, record);
        Ok(())
    }
}

impl Executor for CommandExecutor {
    fn start(&mut self) -> Result<DeviceFacts, ExecutorError> {
        let allocator = allocator_of(self.config.alloc_conf().as_deref());
        let wanted = device::Wanted { first: self.config.device, count: self.config.replicas };
        let mut placement = device::place(wanted, self.config.limit, allocator)
            .map_err(|error| ExecutorError::DeviceUnavailable(with_causes(&error)))?;
        placement.facts.alloc_conf = self.config.alloc_conf();
        let facts = placement.facts.clone();
        self.placement = Some(placement);
        Ok(facts)
    }

    fn run(&mut self, spec: &TrialSpec, observe: &mut dyn FnMut(Observation)) -> Result<TrialRecord, ExecutorError> {
        let begun = Instant::now();
        let Some(placement) = self.placement.clone() else {
            return Err(ExecutorError::Startup { reason: "the device was not looked for".to_owned() });
        };
        let mut record = TrialRecord::begun(spec);
        self.attempt(spec, &placement, &mut record, observe)?;
        record.seconds = begun.elapsed().as_secs_f64();
        Ok(record.canonical())
    }

    fn places(&self) -> Vec<Place> {
        vec![Place::here(); self.config.replicas.max(1)]
    }
}

/// The files of a trial, removed in the end. A checkpoint may be a folder.
struct Removed(TrialFiles);

impl Drop for Removed {
    fn drop(&mut self) {
        for file in self.0.reports().chain((0..self.0.ranks).map(|rank| self.0.snapshot_of(rank))) {
            let _ = fs::remove_file(file);
        }
        if let Some(checkpoint) = &self.0.checkpoint {
            let _ = fs::remove_file(checkpoint).or_else(|_| fs::remove_dir_all(checkpoint));
        }
    }
}
