//! A study folder with an executor of one program, and forecasts from what its probes leave there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use batchtune::data::SampleSize;
use batchtune::device::DeviceChoice;
use batchtune::memory::forecast::long_run::{LongRunFigures, play};
use batchtune::memory::forecast::shape::{Axes, LongRun, Shape, ShapeForecaster, ShapeProbe};
use batchtune::memory::forecast::{PartKind, Recording as Recorded};
use batchtune::memory::policy::native::Native;
use batchtune::memory::policy::{AllocConf, Settings};
use batchtune::memory::recording::Recording;
use batchtune::memory::{AllocatorKind, Event, LimitSpec};
use batchtune::trial::command::{CommandConfig, CommandExecutor, CommandSpec, Template};
use batchtune::trial::process::{OomKills, Patience};
use batchtune::trial::spec::{ProbeSchedule, recording_path};
use batchtune::trial::{Executor, Interrupt, Observation, Outcome, Point, Purpose, TrialId, TrialRecord, TrialSpec};
use batchtune::units::Bytes;

/// Halvings until a limit is known to about a MiB.
const HALVINGS: u32 = 14;

/// What is run, and under which limit.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// The program and its options, without those that the trial decides.
    pub(crate) run: Vec<String>,
    pub(crate) preload: Vec<String>,
    pub(crate) device: DeviceChoice,
    pub(crate) limit_bytes: u64,
}

/// The batches of a run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) batch_size: u64,
    /// Of each batch.
    pub(crate) lengths: Vec<u64>,
}

impl Run {
    fn shapes(&self) -> Vec<Shape> {
        self.lengths.iter().map(|length| Shape::of([self.batch_size, *length])).collect()
    }
}

/// The shape of a probe, and what it recorded.
pub(crate) type Probe = ([u64; 2], Vec<Event>);

/// An executor with its folder.
pub(crate) struct Rig {
    folder: tempfile::TempDir,
    lengths: PathBuf,
    executor: CommandExecutor,
    trials: u32,
    /// Where traces are kept.
    traces: Option<PathBuf>,
}

impl Rig {
    pub(crate) fn new(program: &Program) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let lengths = folder.path().join("lengths.txt");
        std::fs::write(&lengths, "1\n").unwrap();
        let decided = [
            "--batch-size={batch_size}".to_owned(),
            "--steps={steps}".to_owned(),
            "--sequence-length={sequence_length}".to_owned(),
            format!("--lengths-file={}", lengths.display()),
        ];
        let run = program.run.iter().chain(&decided).map(|argument| Template::parse(argument).unwrap()).collect();
        let mut executor = CommandExecutor::new(CommandConfig {
            command: CommandSpec {
                run,
                env: BTreeMap::new(),
                cwd: None,
                preload: program.preload.clone(),
                timeout: Duration::from_secs(120),
            },
            precision: "mixed_bf16".to_owned(),
            seed: 0,
            replicas: 1,
            device: program.device,
            limit: LimitSpec::Bytes(Bytes(program.limit_bytes)),
            allocator: AllocatorKind::Auto,
            scratch: folder.path().to_owned(),
            patience: Patience::with_step_timeout(Duration::from_secs(30)),
            interrupt: Interrupt::default(),
            deadline: None,
            oom_kills: OomKills::default(),
        });
        executor.start().unwrap();
        Self { folder, lengths, executor, trials: 0, traces: None }
    }

    /// Keeps a copy of every trace in a folder.
    pub(crate) fn keeping_traces(self, folder: &Path) -> Self {
        Self { traces: Some(folder.to_owned()), ..self }
    }

    fn trial(&mut self, purpose: Purpose, batch_size: u64, steps: u32) -> TrialSpec {
        self.trials += 1;
        let point = Point::plain(usize::try_from(batch_size).unwrap());
        let warmup_steps = 2;
        let steps = steps.saturating_sub(warmup_steps);
        TrialSpec { id: TrialId(self.trials), purpose, point, warmup_steps, steps, sample_every: 1, sample_size: None }
    }

    fn trial_of(&mut self, purpose: Purpose, run: &Run) -> TrialSpec {
        let lines: Vec<String> = run.lengths.iter().map(u64::to_string).collect();
        std::fs::write(&self.lengths, lines.join("\n")).unwrap();
        self.trial(purpose, run.batch_size, u32::try_from(run.lengths.len()).unwrap())
    }

    fn execute(&mut self, spec: &TrialSpec) -> TrialRecord {
        let mut log = |observation| {
            if let Observation::Log(line) = observation {
                println!("    | {line}");
            }
        };
        self.executor.run(spec, &mut log).unwrap()
    }

    /// A probe of each shape, its samples of that size, or what was said of the first that failed.
    pub(crate) fn probes(&mut self, shapes: &[[u64; 2]], of: fn(usize) -> SampleSize) -> Result<Vec<Probe>, String> {
        let mut probes = Vec::new();
        for [batch_size, size] in shapes.iter().copied() {
            let sample_size = Some(of(usize::try_from(size).unwrap()));
            let spec = TrialSpec { sample_size, ..self.trial(Purpose::Probe, batch_size, 0) };
            let steps = ProbeSchedule::of(&spec).updates;
            let spec = TrialSpec { warmup_steps: 0, steps, ..spec };
            let events = self.record(&spec).map_err(|error| format!("the probe at {batch_size} × {size}: {error}"))?;
            probes.push(([batch_size, size], events));
        }
        Ok(probes)
    }

    /// The run itself with every event recorded.
    pub(crate) fn witness(&mut self, run: &Run) -> Result<Vec<Event>, String> {
        let spec = self.trial_of(Purpose::Probe, run);
        self.record(&spec)
    }

    fn record(&mut self, spec: &TrialSpec) -> Result<Vec<Event>, String> {
        let record = self.execute(spec);
        if record.outcome != Outcome::Completed {
            return Err(record.outcome.to_string());
        }
        let path = recording_path(self.folder.path(), spec);
        let trace = std::fs::read(&path).map_err(|error| error.to_string())?;
        if let Some(kept) = &self.traces {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            std::fs::write(kept.join(name), &trace).map_err(|error| error.to_string())?;
        }
        Ok(Recording::read(&trace).map_err(|error| error.to_string())?.into_trace().events)
    }

    /// The run itself, with the figures of every step.
    pub(crate) fn train(&mut self, run: &Run, conf: &str) -> TrialRecord {
        let mut spec = self.trial_of(Purpose::Ladder, run);
        spec.point.alloc_conf = (!conf.is_empty()).then(|| conf.to_owned());
        self.execute(&spec)
    }
}

/// Steps that a run finished.
pub(crate) fn steps_done(record: &TrialRecord) -> u32 {
    record.samples.last().map_or(0, |sample| sample.step)
}

pub(crate) fn settings(conf: &str) -> Settings {
    conf.parse::<AllocConf>().unwrap().settings
}

pub(crate) fn forecaster(probes: &[Probe]) -> Result<ShapeForecaster, String> {
    let probes: Vec<ShapeProbe<'_>> =
        probes.iter().map(|(shape, events)| ShapeProbe { shape: Shape::of(*shape), events }).collect();
    ShapeForecaster::new(Axes::batch_and_length(), &probes).map_err(|error| error.to_string())
}

/// What the run takes under these settings.
pub(crate) fn forecast(
    forecaster: &ShapeForecaster,
    run: &Run,
    settings: &Settings,
    limit_bytes: u64,
) -> LongRunFigures {
    let shapes = run.shapes();
    let long = LongRun::of(&shapes);
    let policy = Box::new(Native::with_settings(*settings, limit_bytes));
    play(forecaster.events(long).unwrap(), policy, &mut |_| ())
}

/// In how many steps a recording of the run made as many allocations as forecast, and in how many of the same sizes.
pub(crate) fn aligned_steps(forecaster: &ShapeForecaster, run: &Run, real: &[Event]) -> (usize, usize) {
    let shapes = run.shapes();
    let long = LongRun::of(&shapes);
    let sizes = |events: Recorded| -> Vec<Vec<u64>> {
        let all: Vec<u64> = events.sizes().collect();
        let steps = events.parts().iter().filter(|part| part.kind == PartKind::Step);
        steps.map(|part| all[part.allocations.clone()].to_vec()).collect()
    };
    let expected = sizes(Recorded::collect(forecaster.events(long).unwrap()));
    let steps: Vec<_> = expected.into_iter().zip(sizes(Recorded::of(real))).collect();
    let count = |alike: fn(&(Vec<u64>, Vec<u64>)) -> bool| steps.iter().filter(|step| alike(step)).count();
    (count(|(expected, real)| expected.len() == real.len()), count(|(expected, real)| expected == real))
}

/// The least limit under which the run comes to its end, to about a MiB. One that holds what the run reserves without a
/// limit is enough; what it needs at one moment is not always.
pub(crate) fn least_limit(forecaster: &ShapeForecaster, run: &Run, settings: &Settings) -> u64 {
    let free = forecast(forecaster, run, settings, u64::MAX);
    let (mut low, mut high) = (free.peak_allocated_bytes, free.peak_reserved_bytes);
    for _ in 0..HALVINGS {
        let middle = low.midpoint(high);
        if forecast(forecaster, run, settings, middle).out_of_memory.is_none() {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}
