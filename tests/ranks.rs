//! Tuning a program of several ranks, with the fake trainer as its own `torchrun`: every rank reports, the worst decides,
//! and whatever one of them does, the trial ends with that rank named and no process stays.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use batchtune::trial::command::{CommandConfig, CommandExecutor, Template};
use batchtune::trial::spec::trace_path;
use batchtune::trial::{Executor, Observation, Outcome, Purpose, TrialRecord};
use batchtune::units::{GIB, MIB};
use serde_json::Value;

#[path = "workers/trainer.rs"]
mod trainer;

use trainer::{TRAINER, command, trial};

/// One trial at a time: each has four processes, and what one of them died of is seen for a moment only.
static ALONE: Mutex<()> = Mutex::new(());

/// A study folder with an executor of three ranks.
struct Bench {
    folder: tempfile::TempDir,
    executor: CommandExecutor,
}

impl Bench {
    fn new(options: &[&str]) -> Self {
        Self::with(options, |_| {})
    }

    fn with(options: &[&str], change: impl FnOnce(&mut CommandConfig)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = [&["--ranks={replicas}"][..], options].concat();
        let mut config = CommandConfig { replicas: 3, ..command(folder.path(), &options) };
        config.patience.start = Duration::from_secs(2);
        change(&mut config);
        let mut executor = CommandExecutor::new(config);
        executor.start().unwrap();
        Self { folder, executor }
    }

    /// Runs a trial, after which nothing of it is left, neither file nor process.
    fn run(&mut self, purpose: Purpose, batch_size: usize) -> TrialRecord {
        self.watch(purpose, batch_size, |_| {})
    }

    fn watch(&mut self, purpose: Purpose, batch_size: usize, mut observe: impl FnMut(Observation)) -> TrialRecord {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let record = self.executor.run(&trial(purpose, batch_size), &mut observe).unwrap();
        let files = std::fs::read_dir(self.folder.path()).unwrap().map(|file| file.unwrap().path());
        let left: Vec<_> = files.filter(|path| path.extension().is_none_or(|kind| kind != "trace")).collect();
        assert!(left.is_empty(), "{left:?}");
        // A process that SIGKILL has decided on may take its time to go.
        let by = Instant::now() + Duration::from_secs(5);
        while let Some(process) = process_of(self.folder.path()) {
            assert!(Instant::now() < by, "process {process} is still there: {record:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        record
    }
}

/// A process whose environment names the study folder.
fn process_of(folder: &Path) -> Option<String> {
    let folder = folder.to_str().unwrap().as_bytes().to_owned();
    std::fs::read_dir("/proc").unwrap().find_map(|entry| {
        let path = entry.ok()?.path();
        let environment = std::fs::read(path.join("environ")).ok()?;
        let is_one = environment.windows(folder.len()).any(|part| part == folder.as_slice());
        is_one.then(|| path.display().to_string())
    })
}

#[test]
fn the_worst_rank_is_what_is_measured_and_the_samples_are_the_world_s() {
    let alone = Bench::with(&[], |config| config.replicas = 1).run(Purpose::Ladder, 8);
    let mut steps = Vec::new();
    let mut bench = Bench::new(&["--rank-ms=4", "--rank-bytes=100000000"]);
    let record = bench.watch(Purpose::Ladder, 8, |observation| {
        if let Observation::Step { step, .. } = observation {
            steps.push(step);
        }
    });
    assert_eq!((&record.outcome, record.rank), (&Outcome::Completed, None), "{record:?}");
    assert_eq!(record.warnings, [""; 0]);
    assert_eq!(steps, (1..=8).collect::<Vec<u32>>(), "a step is done once");
    let (alone, worst) = (alone.measurement.unwrap(), record.measurement.unwrap());
    // 0.8 ms, 0.02 ms a sample, and 8 ms on rank 2.
    let expected = 3.0 * 8.0 / (0.8 + 8.0 * 0.02 + 8.0) * 1e3;
    assert!((worst.samples_per_second - expected).abs() < 1.0, "{} {expected}", worst.samples_per_second);
    let more = worst.peak_allocated_bytes - alone.peak_allocated_bytes;
    assert!(more.abs_diff(200_000_000) < MIB, "rank 2 holds {more} more");
    assert_eq!(record.samples.iter().map(|sample| sample.step).collect::<Vec<_>>(), [2, 4, 6, 8]);
    let last = record.samples.last().unwrap();
    assert_eq!(last.peak_allocated_bytes, worst.peak_allocated_bytes);
    assert!(last.largest_satisfiable_bytes <= GIB - last.allocated_bytes, "{last:?}");
}

#[test]
fn one_rank_that_fails_is_the_trial_s_outcome_with_its_number() {
    for (fault, name, words) in [
        ("out_of_memory", "out_of_memory", "rank 1: out of memory at step 2 (16.0 GiB requested, limit 1.0 GiB)"),
        // How a process ended that said nothing is seen for as long as its parent has not asked.
        ("kill", "crashed", "rank 1: "),
        ("segv", "crashed", "rank 1: "),
        ("hang", "timed_out", "rank 1: no step finished within 3 s"),
        ("hang_hard", "timed_out", "rank 1: no step finished within 3 s"),
        ("leave", "failed", "rank 1: "),
        ("status", "failed", "rank 1: "),
        ("typo", "failed", "rank 1: failed: NameError"),
        ("diverge", "diverged", "rank 1: the loss is not finite at step 2"),
        ("garbage", "protocol_error", "rank 1: protocol error: line "),
    ] {
        let mut bench = Bench::new(&["--fault", fault, "--fault-rank=1"]);
        let begun = Instant::now();
        let record = bench.run(Purpose::Ladder, 4);
        let unseen = matches!(record.outcome, Outcome::Crashed { signal: None, status: None, .. });
        assert!(record.outcome.name() == name || (unseen && words == "rank 1: "), "{fault}: {record:?}");
        assert!(record.ending().starts_with(words), "{fault}: {}", record.ending());
        assert!(record.measurement.is_none());
        assert!(begun.elapsed() < Duration::from_secs(20), "{fault} took {:?}", begun.elapsed());
    }
}

#[test]
fn a_rank_that_goes_on_without_the_others_is_not_waited_for_and_one_that_hangs_before_all_is_not_named() {
    // All of them hang, so none is behind.
    let record = Bench::new(&["--fault=hang"]).run(Purpose::Ladder, 4);
    assert_eq!((record.outcome.name(), record.rank), ("timed_out", None), "{record:?}");
    let record = Bench::new(&["--fault=out_of_memory"]).run(Purpose::Ladder, 4);
    assert_eq!(record.outcome.name(), "out_of_memory", "{record:?}");
    assert!(record.rank.is_some());
}

#[test]
fn a_rank_that_never_reports_is_said() {
    let record = Bench::new(&["--fault=silent", "--fault-rank=2"]).run(Purpose::Ladder, 4);
    assert_eq!(record.outcome, Outcome::Completed, "{record:?}");
    assert!(record.warnings[0].starts_with("rank 2 of 3 never reported"), "{:?}", record.warnings);
    let measurement = record.measurement.unwrap();
    assert_eq!((measurement.steps, measurement.unseen_ranks), (6, vec![2]));
}

#[test]
fn ranks_of_another_number_than_asked_for_are_no_answer() {
    let mut bench = Bench::with(&[], |config| config.command.run[4] = Template::parse("--ranks=2").unwrap());
    let record = bench.run(Purpose::Ladder, 4);
    let Outcome::Failed { message } = &record.outcome else { panic!("{record:?}") };
    assert!(message.contains("runs 2 ranks, and `target.replicas` is 3"), "{message}");
    // Whoever does not know the key has what there was before it: the first rank counts for all, and that is said.
    let mut bench = Bench::with(&[], |config| {
        config.command.run[4] = Template::parse("--ranks=2").unwrap();
        config.replicas = 1;
    });
    let record = bench.run(Purpose::Ladder, 4);
    assert!(record.warnings.iter().any(|text| text.contains("runs 2 ranks")), "{record:?}");
}

#[test]
fn ranks_that_do_not_report_are_judged_by_how_they_end() {
    let options = ["--unmodified", "--device-bytes=1073741824"];
    let record = Bench::new(&options).run(Purpose::Ladder, 4);
    assert_eq!((&record.outcome, record.rank), (&Outcome::Completed, None), "{record:?}");
    assert!(record.warnings.iter().any(|warning| warning.contains("does not report")), "{record:?}");
    let record = Bench::new(&options).run(Purpose::Ladder, 4000);
    assert_eq!(record.outcome.name(), "out_of_memory", "{record:?}");
}

#[test]
fn a_probe_is_traced_on_the_rank_that_holds_most() {
    let size = |options: &[&str]| {
        let mut bench = Bench::new(options);
        let record = bench.run(Purpose::Probe, 2);
        assert_eq!(record.outcome, Outcome::Completed, "{record:?}");
        let trace = std::fs::read(trace_path(bench.folder.path(), &record.spec.point)).unwrap();
        batchtune::memory::trace::file::read(&trace).unwrap().1.events.len()
    };
    // Rank 2 has one allocation more than rank 0.
    assert_eq!(size(&["--rank-bytes=1000000"]), size(&[]) + 1);
}

/// The names and values that a job script gets.
fn exported(folder: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tune"))
        .args(["export", "--format", "env", "recommendation.yaml"])
        .current_dir(folder)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_study_of_two_ranks_forecasts_exactly_and_its_answer_holds_for_both() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "device: cpu\ncommand:\n  run: [python3, {TRAINER}, \"--ranks={{replicas}}\", \"--rank-bytes=64000000\", \
         \"--batch-size={{batch_size}}\", \"--steps={{steps}}\"]\ntarget: {{batch_size: 64, replicas: 2}}\n\
         memory: {{limit: 1GiB}}\nsearch: {{loader_workers: [0]}}\ntrial: {{steps: 4, soak_steps: 20}}\n"
    );
    std::fs::write(folder.path().join("model.yaml"), config).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tune"))
        .args(["--config", "model.yaml", "--study", "study"])
        .current_dir(folder.path())
        .env_remove("PYTORCH_CUDA_ALLOC_CONF")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let text = std::fs::read_to_string(folder.path().join("recommendation.yaml")).unwrap();
    let found: Value = serde_yaml::from_str(&text).unwrap();
    assert_eq!((found["status"].as_str(), found["provenance"]["oom_trials"].as_u64()), (Some("safe"), Some(0)));
    assert_eq!(found["forecast"]["error_percent"].as_f64(), Some(0.0), "{found:#}");
    let recommended = &found["recommended"];
    let micro = recommended["batch_size"].as_u64().unwrap() * recommended["accumulation_steps"].as_u64().unwrap();
    assert_eq!((micro, recommended["effective_batch_size"].as_u64()), (32, Some(64)));
    assert!(exported(folder.path()).contains("export TUNE_REPLICAS=2\n"));
}
