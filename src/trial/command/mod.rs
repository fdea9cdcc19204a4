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

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::disk;
use super::executor::{Executor, ExecutorError, Interrupt, Observation};
use super::outcome::{Measurement, Outcome, TrialRecord};
use super::process::{OomKills, Patience};
use super::spawn::{GpuBaseline, GpuUse, Launch, Running, SpawnError, Spawner, Start};
use super::spec::{TrialSpec, recording_path};
use crate::device::nvml::CardId;
use crate::device::visible::VISIBLE_DEVICES;
use crate::device::{DeviceChoice, DeviceFacts};
use crate::memory::{AllocatorKind, LimitSpec, MemorySample};
use crate::text::{harmless, with_causes};
use crate::units::Bytes;

mod device;
mod ending;
mod host;
mod remarks;
pub mod report;
mod run;
mod spec;
mod template;
#[cfg(test)]
mod testing;
pub mod trace;

pub use device::{allocator_of, conf_of};
pub use spec::{ALLOC_CONF, CommandSpec};
pub use template::{Placeholder, Template, UnknownPlaceholder};

use device::Placement;
use host::HostReader;
use remarks::{incomplete_soak, unreported, unsampled};
use report::Reader;
use run::{Terms, Told};
use spec::{Bounds, TrialFiles, environment};
use template::Filling;
use trace::{Beside, Content};

/// What an executor of commands needs to know.
#[derive(Clone, Debug)]
pub struct CommandConfig {
    /// The program.
    pub command: CommandSpec,
    /// The word of `train.precision`, for its placeholder.
    pub precision: String,
    /// For its placeholder.
    pub seed: u64,
    /// On which device.
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
    /// For each batch size the first length that was recorded, and what it took.
    lengths: HashMap<usize, (usize, u64)>,
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
            lengths: HashMap::new(),
        }
    }

    fn launch(&self, spec: &TrialSpec, files: &TrialFiles, placement: &Placement) -> Launch {
        let config = &self.config;
        let filling = Filling { trial: spec, precision: &config.precision, seed: config.seed };
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
        let mut files = TrialFiles::of(&self.config.scratch, spec);
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
        let scratch = |source| ExecutorError::Scratch { path: files.0.report.clone(), source };
        let mut reader = Reader::create(&files.0.report).map_err(scratch)?;
        let launch = self.launch(spec, &files.0, placement);
        let baseline = match placement.facts.uuid.as_deref() {
            Some(uuid) => GpuBaseline::take(CardId::Uuid(uuid)),
            None => GpuBaseline::with(Some(Box::new(HostReader))),
        };
        let started = self.start_run(&launch, observe);
        record.warnings.append(&mut self.start_warnings);
        let running = match started {
            Ok(running) => running,
            Err(outcome) => {
                record.outcome = outcome;
                return Ok(());
            }
        };
        let watch = baseline.follow(running.pid());
        let begun = Instant::now();
        let terms = Terms {
            trial: spec,
            limit_bytes: placement.facts.limit_bytes,
            patience: self.config.patience,
            timeout: self.config.command.timeout,
            interrupt: &self.config.interrupt,
            deadline: self.config.deadline,
            oom_kills: &self.config.oom_kills,
            is_known_to_report: self.reports,
        };
        let (mut told, mut outcome) = run::follow(&terms, &mut reader, running, observe);
        let took = begun.elapsed();
        let used = watch.finish();
        let is_on_a_card = placement.facts.uuid.is_some();
        if told.was_stopped_unheard && is_on_a_card && used.peak_bytes.is_some_and(|peak| peak > 0) {
            outcome = Outcome::Completed;
        }
        self.reports |= told.hello.is_some();
        if spec.is_probe() && outcome == Outcome::Completed {
            outcome = self.keep_trace(spec, &files.0, &mut told);
        }
        if outcome == Outcome::Completed {
            record.measurement = Some(self.measure(spec, &told, &used, took));
        }
        record.warnings.append(&mut told.warnings);
        if told.series.samples.is_empty() && outcome == Outcome::Completed {
            record.warnings.push(if told.hello.is_none() {
                unreported(&used, &self.config.command, told.complaint.as_deref())
            } else {
                unsampled(&used)
            });
            told.series.samples.extend(used.peak_bytes.map(|peak| MemorySample {
                step: spec.total_steps(),
                reserved_bytes: peak,
                peak_reserved_bytes: peak,
                limit_bytes: placement.facts.limit_bytes,
                ..MemorySample::default()
            }));
        }
        if spec.is_soak() && told.hello.is_some() && outcome == Outcome::Completed {
            record.warnings.extend(incomplete_soak(&told));
        }
        record.samples = told.series.samples;
        record.outcome = outcome;
        Ok(())
    }

    /// Turns the snapshot of a probe into the trace that the forecast reads. Without one the probe was for nothing.
    fn keep_trace(&mut self, spec: &TrialSpec, files: &TrialFiles, told: &mut Told) -> Outcome {
        let failed = |message: String| Outcome::Failed { message };
        if told.hello.is_none() || !told.has_trace {
            return failed("the program recorded no allocations, so nothing can be forecast from it".to_owned());
        }
        let path = recording_path(&self.config.scratch, spec);
        let sampled = told.series.samples.iter().map(|sample| sample.peak_allocated_bytes);
        let beside = Beside { accumulation: spec.accumulation(), sampled_peak_bytes: sampled.max().unwrap_or(0) };
        match trace::convert(&files.snapshot, &told.marks, beside, &path) {
            Ok(content) => {
                tracing::debug!("{} events recorded", content.events);
                self.heeded(spec, content).map_or(Outcome::Completed, failed)
            }
            Err(error) => failed(format!("the recorded allocations are of no use: {}", with_causes(&error))),
        }
    }

    /// What is to be said of a program that allocates the same at two lengths. Taken for what lengths do, its recordings
    /// would make a forecast that is wrong and looks exact.
    fn heeded(&mut self, spec: &TrialSpec, content: Content) -> Option<String> {
        let length = spec.length?;
        let (before, sizes) = *self.lengths.entry(spec.point.batch_size).or_insert((length, content.sizes));
        (before != length && sizes == content.sizes).then(|| {
            format!(
                "the program allocates the same at a length of {before} and of {length} (hint: pad every batch to \
                 `{{sequence_length}}` where it is not 0)"
            )
        })
    }

    fn measure(&mut self, spec: &TrialSpec, told: &Told, used: &GpuUse, took: Duration) -> Measurement {
        if told.hello.is_some() {
            let mut measurement = told.series.measure(spec);
            if told.series.samples.is_empty() {
                measurement.peak_reserved_bytes = used.peak_bytes.unwrap_or(0);
            }
            self.peak_allocated_bytes = self.peak_allocated_bytes.max(measurement.peak_allocated_bytes);
            return measurement;
        }
        // Of a program that was told how many steps to run the time of a step is known, its start included.
        let is_told = self.config.command.holds(Placeholder::Steps);
        let steps = if is_told { spec.total_steps() } else { 0 };
        let seconds = took.as_secs_f64().max(f64::MIN_POSITIVE);
        Measurement {
            steps,
            samples_per_second: f64::from(steps) * spec.point.batch_size as f64 / seconds,
            peak_reserved_bytes: used.peak_bytes.unwrap_or(0),
            ..Measurement::default()
        }
    }
}

impl Executor for CommandExecutor {
    fn start(&mut self) -> Result<DeviceFacts, ExecutorError> {
        let allocator = allocator_of(self.config.alloc_conf().as_deref());
        let mut placement = device::place(self.config.device, self.config.limit, allocator)
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
}

/// The files of a trial, removed in the end. A checkpoint may be a folder.
struct Removed(TrialFiles);

impl Drop for Removed {
    fn drop(&mut self) {
        for file in [&self.0.report, &self.0.snapshot] {
            let _ = fs::remove_file(file);
        }
        if let Some(checkpoint) = &self.0.checkpoint {
            let _ = fs::remove_file(checkpoint).or_else(|_| fs::remove_dir_all(checkpoint));
        }
    }
}
