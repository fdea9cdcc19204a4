//! Trials of several replicas: real workers that train together on the CPU, and what becomes of the group when one of
//! them goes wrong.
//!
//! The program has its own main because it plays the workers too: they are real, and train [families] of their own that
//! can be told to fail on one rank.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::fs;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use batchtune::data::DataSpec;
use batchtune::device::DeviceChoice;
use batchtune::memory::{AllocatorKind, LimitSpec, Phase};
use batchtune::model::{ModelSpec, Registry};
use batchtune::train::{GradientCheckpointing, OptimizerKind, TrainSpec};
use batchtune::trial::process::{OomKills, Patience, ProcessConfig, ProcessExecutor, WorkerCommand};
use batchtune::trial::replicas::ReplicaExecutor;
use batchtune::trial::{
    Executor, ExecutorError, Interrupt, Observation, Outcome, Point, Purpose, TrialId, TrialRecord, TrialSpec,
    WorkloadSpec,
};
use batchtune::units::{Bytes, MIB};

use families::{FATAL_BATCH, Faulty, FaultyBlocks};

#[path = "replicas/families.rs"]
mod families;

batchtune::declare_allocator!();

/// Makes this program a worker.
const WORKER: &str = "BATCHTUNE_TEST_REPLICA";
/// Names a file that one worker alone can make; the others leave at once.
const ONLY_ONE: &str = "BATCHTUNE_TEST_ONLY_ONE";

type Test = (&'static str, fn());

macro_rules! tests {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name as fn())),*] };
}

const TESTS: &[Test] = tests![
    replicas_train_as_one_worker_with_the_whole_batch,
    a_rank_that_goes_wrong_ends_the_trial_for_all_and_is_named,
    a_rank_that_goes_wrong_beside_an_exchange_ends_the_trial_for_all_and_is_named,
    a_rank_that_hangs_is_named_in_time,
    a_rank_that_hangs_is_named_where_the_others_come_too_late_to_give_it_up,
    a_rank_that_never_comes_ends_the_start,
    the_user_stops_all_ranks,
    a_study_of_two_replicas_meets_its_target,
];

fn main() -> ExitCode {
    if std::env::var_os(WORKER).is_some() {
        if let Some(file) = std::env::var_os(ONLY_ONE)
            && fs::File::create_new(file).is_err()
        {
            return ExitCode::from(3);
        }
        return batchtune::trial::worker::main(&Registry::builtin().with(Faulty).with(FaultyBlocks));
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
    let mut out = std::io::stdout();
    let mut passed = true;
    for (name, test) in TESTS.iter().filter(|(name, _)| wanted(name) && !has("--ignored")) {
        if has("--list") {
            let _ = writeln!(out, "{name}: test");
            continue;
        }
        let is_ok = catch_unwind(AssertUnwindSafe(test)).is_ok();
        let _ = writeln!(out, "test {name} ... {}", if is_ok { "ok" } else { "FAILED" });
        passed &= is_ok;
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct Stage {
    config: ProcessConfig,
    _directory: tempfile::TempDir,
}

impl Stage {
    fn new(fault: Option<(&str, usize)>) -> Self {
        Self::of("faulty", fault)
    }

    fn of(family: &str, fault: Option<(&str, usize)>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut model = ModelSpec { family: family.to_owned(), ..ModelSpec::default() };
        if let Some((fault, rank)) = fault {
            model.options.insert("fault".to_owned(), fault.into());
            model.options.insert("rank".to_owned(), rank.into());
        }
        let config = ProcessConfig {
            command: WorkerCommand {
                program: std::env::current_exe().unwrap(),
                arguments: Vec::new(),
                environment: vec![(WORKER.into(), "1".into())],
            },
            launcher: None,
            workload: WorkloadSpec {
                model,
                train: TrainSpec { optimizer: OptimizerKind::Sgd, learning_rate: 0.5, ..TrainSpec::default() },
                data: DataSpec::default(),
                device: DeviceChoice::Cpu,
                limit: LimitSpec::Bytes(Bytes(100 * MIB)),
                allocator: AllocatorKind::Auto,
                seed: 3,
            },
            scratch: directory.path().to_owned(),
            patience: Patience {
                start: Duration::from_secs(60),
                ..Patience::with_step_timeout(Duration::from_secs(60))
            },
            interrupt: Interrupt::default(),
            deadline: None,
            oom_kills: OomKills::in_file(directory.path().join("none")),
        };
        Self { config, _directory: directory }
    }

    fn group(&self, world: usize) -> ReplicaExecutor {
        ReplicaExecutor::new(self.config.clone(), vec![DeviceChoice::Cpu; world])
    }
}

fn spec(id: u32, batch_size: usize, accumulation_steps: usize) -> TrialSpec {
    let point = Point { accumulation_steps, ..Point::plain(batch_size) };
    TrialSpec {
        id: TrialId(id),
        purpose: Purpose::Soak,
        point,
        warmup_steps: 0,
        steps: 8,
        sample_every: 2,
        sample_size: None,
    }
}

/// A trial's record, and its losses as they were told.
fn run(executor: &mut dyn Executor, spec: &TrialSpec) -> (TrialRecord, Vec<f64>) {
    let mut losses = Vec::new();
    let record = executor.run(spec, &mut |observation| {
        if let Observation::Step { loss, .. } = observation {
            losses.push(loss);
        }
    });
    (record.unwrap(), losses)
}

/// Processes that this one started and that still run, or that nobody has reaped.
fn children() -> usize {
    let own = std::process::id().to_string();
    let is_child = |stat: &String| stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)) == Some(&own);
    let stats = fs::read_dir("/proc").unwrap().filter_map(|p| fs::read_to_string(p.ok()?.path().join("stat")).ok());
    stats.filter(is_child).count()
}

fn replicas_train_as_one_worker_with_the_whole_batch() {
    let stage = Stage::new(None);
    let mut alone = ProcessExecutor::new(stage.config.clone());
    let (whole, expected) = run(&mut alone, &spec(1, 8, 1));
    drop(alone);
    let mut group = stage.group(2);
    assert_eq!(group.start().unwrap().limit_bytes, 100 * MIB);
    for id in 1..3 {
        let (record, losses) = run(&mut group, &spec(id, 4, 1));
        assert_eq!((&record.outcome, record.rank), (&Outcome::Completed, None));
        assert_eq!(losses.len(), expected.len());
        for (loss, expected) in losses.iter().zip(&expected) {
            assert!((loss - expected).abs() < 1e-5, "{losses:?} against {expected:?}");
        }
        let measured = record.measurement.unwrap();
        assert!(measured.last_loss.unwrap() < measured.first_loss.unwrap());
        assert!(measured.samples_per_second > 0.0 && measured.checkpoint_bytes.is_some());
        assert_eq!(record.samples.len(), whole.samples.len());
        assert_eq!(children(), 2, "the same workers run the next trial");
    }
    let (record, losses) = run(&mut group, &spec(3, 2, 2));
    assert_eq!(record.outcome, Outcome::Completed);
    assert!(
        (losses[0] + losses[1] - 2.0 * expected[0]).abs() < 1e-5,
        "an update of two steps is one of the whole batch"
    );
    assert!((losses[6] + losses[7] - 2.0 * expected[3]).abs() < 1e-5);
    drop(group);
    assert_eq!(children(), 0);
}

fn a_rank_that_goes_wrong_ends_the_trial_for_all_and_is_named() {
    for (fault, rank, world) in [
        ("killed", 1, 2),
        ("killed", 0, 3),
        ("out_of_memory", 1, 3),
        ("panics", 2, 3),
        ("fails", 0, 2),
        ("diverges", 1, 2),
    ] {
        let started = Instant::now();
        let stage = Stage::new(Some((fault, rank)));
        let mut group = stage.group(world);
        let (record, losses) = run(&mut group, &spec(1, FATAL_BATCH, 1));
        let outcome = &record.outcome;
        let is_expected = match fault {
            "killed" => matches!(outcome, Outcome::Crashed { signal: Some(9), .. }),
            "out_of_memory" => matches!(outcome, Outcome::OutOfMemory { requested_bytes: Some(_), step: Some(3), .. }),
            "diverges" => matches!(outcome, Outcome::Diverged { step: 3 }),
            _ => matches!(outcome, Outcome::Failed { message } if message.contains("as it was told")),
        };
        assert!(is_expected, "{fault}: {outcome:?}");
        assert_eq!((record.rank, losses.len()), (Some(rank), 3), "{fault}");
        assert!(record.measurement.is_none() && record.ending().starts_with(&format!("rank {rank}: ")));
        // Far below the patience of a minute: nobody waited to find out.
        assert!(started.elapsed() < Duration::from_secs(40), "{fault}: {:?}", started.elapsed());
        let (record, _) = run(&mut group, &spec(2, 4, 1));
        assert_eq!(record.outcome, Outcome::Completed, "the trial after {fault}");
        drop(group);
        assert_eq!(children(), 0, "nothing is left after {fault}");
    }
}

fn a_rank_that_goes_wrong_beside_an_exchange_ends_the_trial_for_all_and_is_named() {
    for (fault, rank) in [("killed", 1), ("fails", 1), ("out_of_memory", 0)] {
        let started = Instant::now();
        let mut stage = Stage::of("faulty_blocks", Some((fault, rank)));
        stage.config.workload.limit = LimitSpec::Bytes(Bytes(200 * MIB));
        let mut group = stage.group(2);
        let mut trial = spec(1, FATAL_BATCH, 2);
        trial.point.gradient_checkpointing = GradientCheckpointing::Blocks;
        let (record, losses) = run(&mut group, &trial);
        let outcome = &record.outcome;
        let is_expected = match fault {
            "killed" => matches!(outcome, Outcome::Crashed { signal: Some(9), .. }),
            "out_of_memory" => {
                matches!(outcome, Outcome::OutOfMemory { step: Some(1), phase: Some(Phase::Backward), .. })
            }
            _ => matches!(outcome, Outcome::Failed { message } if message.contains("as it was told")),
        };
        assert!(is_expected, "{fault}: {outcome:?}");
        assert_eq!((record.rank, losses.len()), (Some(rank), 1), "{fault}");
        assert!(started.elapsed() < Duration::from_secs(40), "{fault}: {:?}", started.elapsed());
        drop(group);
        assert_eq!(children(), 0, "nothing is left after {fault}");
    }
}

fn a_rank_that_hangs_is_named_in_time() {
    for (rank, world) in [(1, 3), (0, 2)] {
        let mut stage = Stage::new(Some(("hangs", rank)));
        stage.config.patience.step = Duration::from_secs(2);
        stage.config.patience.build = Duration::from_secs(2);
        let mut group = stage.group(world);
        let (record, losses) = run(&mut group, &spec(1, FATAL_BATCH, 1));
        assert!(matches!(record.outcome, Outcome::TimedOut { seconds } if seconds < 5.0), "{:?}", record.outcome);
        assert_eq!((record.rank, losses.len()), (Some(rank), 3));
        let (record, _) = run(&mut group, &spec(2, 4, 1));
        assert_eq!(record.outcome, Outcome::Completed);
        drop(group);
        assert_eq!(children(), 0);
    }
}

fn a_rank_that_hangs_is_named_where_the_others_come_too_late_to_give_it_up() {
    for (rank, world) in [(1, 3), (0, 2)] {
        let mut stage = Stage::new(Some(("hangs", rank)));
        // The others work for half of what the driver waits for each, and would wait for nearly all of it again.
        stage.config.workload.model.options.insert("work_ms".to_owned(), 1000.into());
        stage.config.patience.step = Duration::from_secs(2);
        stage.config.patience.build = Duration::from_secs(2);
        let mut group = stage.group(world);
        let (record, losses) = run(&mut group, &spec(1, FATAL_BATCH, 1));
        assert_eq!(record.outcome, Outcome::TimedOut { seconds: 2.0 });
        assert_eq!((record.rank, losses.len()), (Some(rank), 3));
    }
}

fn a_rank_that_never_comes_ends_the_start() {
    let mut stage = Stage::new(None);
    let only_one = stage.config.scratch.join("only-one").into_os_string();
    stage.config.command.environment.push((ONLY_ONE.into(), only_one));
    let mut group = stage.group(2);
    let Err(ExecutorError::Startup { reason }) = group.start() else { panic!("it started") };
    assert!(reason.starts_with("rank ") && reason.contains("exit status: 3"), "{reason}");
    assert_eq!(children(), 0);
}

fn the_user_stops_all_ranks() {
    let stage = Stage::new(None);
    let mut group = stage.group(2);
    let long = TrialSpec { steps: 1_000_000, purpose: Purpose::Ladder, ..spec(1, 4, 1) };
    let mut steps = 0;
    let record = group.run(&long, &mut |observation| {
        if let Observation::Step { step, .. } = observation {
            steps = step;
            if step == 5 {
                stage.config.interrupt.request();
            }
        }
    });
    let record = record.unwrap();
    assert_eq!((record.outcome, record.rank), (Outcome::Cancelled, None));
    assert!((5..1_000_000).contains(&steps));
    drop(group);
    assert_eq!(children(), 0);
}

fn a_study_of_two_replicas_meets_its_target() {
    for checkpointing in [GradientCheckpointing::None, GradientCheckpointing::Blocks] {
        study(checkpointing);
    }
}

fn study(checkpointing: GradientCheckpointing) {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("model.yaml");
    let text = "version: 1\nname: two\ndevice: cpu\n\
        model: {family: gpt, preset: nano, layers: 1, hidden_size: 16, sequence_length: 16}\n\
        target: {batch_size: 16, replicas: 2}\n\
        search: {loader_workers: [0], device_prefetch: [0]}\n\
        memory: {limit: 256MiB}\n\
        safety: {sample_every: 1}\n\
        trial: {warmup_steps: 2, steps: 3, soak_steps: 8, timeout: 60s}\n\
        budget: {time: 3m, trials: 40}\n";
    fs::write(&config, text).unwrap();
    let output = folder.path().join("recommendation.yaml");
    let study = folder.path().join("study");
    let ran = Command::new(env!("CARGO_BIN_EXE_tune"))
        .args(["--quiet", "--set", &format!("train.gradient_checkpointing={checkpointing}"), "--config"])
        .arg(&config)
        .arg("--output")
        .arg(&output)
        .arg("--study")
        .arg(&study)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{said}");
    let written: serde_json::Value = serde_yaml::from_str(&fs::read_to_string(&output).unwrap()).unwrap();
    let recommended = &written["recommended"];
    let size = |name: &str| recommended[name].as_u64().unwrap();
    assert_eq!(size("batch_size") * size("accumulation_steps") * 2, 16, "{recommended}");
    assert_eq!(size("effective_batch_size"), 16);
    assert_eq!(recommended["gradient_checkpointing"], checkpointing.to_string());
    assert_eq!(written["forecast"]["method"], "exact", "{said}");
    // None where no trial that ran is of the probes' kind.
    let off = written["forecast"]["error_percent"].as_f64().unwrap_or_default();
    assert!(off < 0.01, "{checkpointing}: off by {off} % at the trials that ran");
    let leftovers = fs::read_dir(&study)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("replicas-"));
    assert_eq!(leftovers.count(), 0, "the meeting places are gone");
}
