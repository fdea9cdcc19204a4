//! Tuning a program of the user's own, with a trainer that trains nothing (`fake_trainer.py`): it reports like a real one,
//! allocates by PyTorch's rules, and fails in every way that a program can.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use batchtune::trial::command::{CommandConfig, CommandExecutor, Template};
use batchtune::trial::spec::trace_path;
use batchtune::trial::{Executor, Interrupt, Outcome, Purpose, TrialRecord};
use batchtune::units::{GIB, MIB};
use serde_json::Value;

#[path = "workers/trainer.rs"]
mod trainer;

use trainer::{TRAINER, command, trial};

/// A study folder with an executor of the fake trainer.
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
        let mut config = command(folder.path(), options);
        change(&mut config);
        let mut executor = CommandExecutor::new(config);
        executor.start().unwrap();
        Self { folder, executor }
    }

    fn run(&mut self, purpose: Purpose, batch_size: usize) -> TrialRecord {
        self.executor.run(&trial(purpose, batch_size), &mut |_| {}).unwrap()
    }

    /// What is left in the study folder.
    fn left(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[test]
fn a_trial_is_measured_by_its_report() {
    let mut bench = Bench::new(&[]);
    let record = bench.run(Purpose::Ladder, 8);
    assert_eq!(record.outcome, Outcome::Completed, "{record:#?}");
    let measurement = record.measurement.unwrap();
    assert_eq!(measurement.steps, 6);
    // 0.8 ms and 0.02 ms a sample; one worker loads in 0.05 ms a sample, less than the step takes.
    let expected = 8.0 / (0.8 + 8.0 * 0.02) * 1e3;
    assert!((measurement.samples_per_second - expected).abs() < 1.0, "{}", measurement.samples_per_second);
    assert_eq!(record.samples.iter().map(|sample| sample.step).collect::<Vec<_>>(), [2, 4, 6, 8]);
    let last = record.samples.last().unwrap();
    assert_eq!(last.limit_bytes, GIB);
    assert!(last.reserved_bytes >= last.allocated_bytes && last.allocated_bytes > 32 * MIB, "{last:?}");
    assert!(measurement.largest_request_bytes > MIB && last.allocated_blocks > 0);
    assert!(measurement.first_loss.unwrap() > measurement.last_loss.unwrap());
    assert_eq!(bench.left(), [""; 0]);
}

#[test]
fn the_reporter_for_pytorch_speaks_the_protocol() {
    let output = Command::new("python3")
        .args(["-m", "unittest", "discover", "tests/python"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_soak_evaluates_and_writes_a_checkpoint_that_is_removed() {
    let mut bench = Bench::new(&[]);
    let record = bench.run(Purpose::Soak, 4);
    let measurement = record.measurement.unwrap();
    assert_eq!((measurement.evaluation_loss, measurement.checkpoint_bytes), (Some(2.5), Some(10_000)));
    assert_eq!(bench.left(), [""; 0]);
}

#[test]
fn a_probe_leaves_the_trace_alone() {
    let mut bench = Bench::new(&[]);
    let record = bench.run(Purpose::Probe, 2);
    assert_eq!(record.outcome, Outcome::Completed);
    let trace = trace_path(bench.folder.path(), &record.spec.point);
    assert_eq!(bench.left(), [trace.file_name().unwrap().to_str().unwrap()]);
}

/// The outcome's name, and what it says.
fn outcome_of(fault: &str, purpose: Purpose) -> (&'static str, String) {
    let mut bench = Bench::with(&["--fault", fault], |config| {
        // 128 MiB of output take their time, above all in a debug build.
        if fault == "flood" {
            config.patience.step = Duration::from_secs(60);
        }
    });
    let record = bench.run(purpose, 4);
    assert!(record.measurement.is_some() == record.completed(), "{fault}");
    let mut left = bench.left();
    left.retain(|name| Path::new(name).extension().is_none_or(|extension| extension != "trace"));
    assert_eq!(left, [""; 0], "{fault}");
    let says = match &record.outcome {
        Outcome::Crashed { signal, status, log } => format!("{signal:?} {status:?} {log}"),
        other => other.to_string(),
    };
    (record.outcome.name(), says)
}

#[test]
fn every_fault_of_a_program_is_an_outcome_of_its_own() {
    let faults = [
        ("hang", "timed_out", "no step finished"),
        ("hang_hard", "timed_out", "no step finished"),
        ("kill", "crashed", "Some(9)"),
        ("segv", "crashed", "Some(11)"),
        ("abort", "crashed", "Some(6)"),
        ("leave", "failed", "status 0 after 2 of 8 steps"),
        ("status", "failed", "status 3"),
        ("typo", "failed", "NameError"),
        ("missing_file", "failed", "FileNotFoundError"),
        ("diverge", "diverged", "step 2"),
        ("out_of_memory", "out_of_memory", "16.0 GiB requested, limit 1.0 GiB"),
        ("out_of_memory_text", "out_of_memory", "16.0 GiB requested, limit 1.0 GiB"),
        ("garbage", "protocol_error", "`not json`, is no message"),
        ("half_line", "failed", "status 1"),
        ("long_line", "protocol_error", "longer than 1048576 bytes"),
        ("two_ends", "failed", "ended its report after 2 of 8 steps"),
        ("flood", "completed", ""),
        ("linger", "completed", ""),
        ("grandchild", "completed", ""),
    ];
    for (fault, name, words) in faults {
        let (outcome, says) = outcome_of(fault, Purpose::Ladder);
        assert_eq!(outcome, name, "{fault}: {says}");
        assert!(says.contains(words), "{fault}: {says}");
    }
}

#[test]
fn a_soak_that_hangs_between_two_steps_has_no_time_for_an_evaluation_pass() {
    let (outcome, says) = outcome_of("hang", Purpose::Soak);
    assert_eq!((outcome, says.as_str()), ("timed_out", "no step finished within 3 s"));
}

/// Reports by hand: `$TUNE_REPORT` and the values of the trial are the shell's.
fn outcome_of_script(script: &str) -> (TrialRecord, Duration) {
    let begun = Instant::now();
    let mut bench = Bench::with(&[], |config| {
        config.command.run = ["sh", "-c", script].iter().map(|part| Template::parse(part).unwrap()).collect();
        config.command.timeout = Duration::from_secs(20);
        config.deadline = Some(begun + Duration::from_secs(4));
    });
    let record = bench.run(Purpose::Ladder, 4);
    assert_eq!(bench.left(), [""; 0], "{script}");
    (record, begun.elapsed())
}

const SAY: &str = "say() { echo \"$1\" >>\"$TUNE_REPORT\"; }; say '{\"event\":\"hello\",\"protocol\":1}'\n";

#[test]
fn what_a_report_cannot_mean_is_not_believed() {
    let step = |fields: &str| {
        format!("for i in 1 2 3 4 5 6 7 8; do sleep 0.01; say \"{{\\\"event\\\":\\\"step\\\",\\\"step\\\":$i,{fields}}}\"; done\n")
            .replace('@', "\\\"")
    };
    let end = "say '{\"event\":\"end\",\"outcome\":\"completed\"}'";
    let good = step("@samples@:4,@total_ms@:9");
    let (record, _) = outcome_of_script(&format!("{SAY}{good}{end}"));
    assert_eq!(record.outcome, Outcome::Completed, "{record:?}");

    for (steps, words) in [
        (String::new(), "ended its report after 0 of 8 steps"),
        (step("@samples@:1,@total_ms@:9"), "no step had 4 samples"),
        (step("@samples@:4,@total_ms@:0"), "time that cannot be"),
        (step("@samples@:4,@total_ms@:1e9"), "have passed"),
        (step("@samples@:4,@total_ms@:9,@data_wait_ms@:20"), "time that cannot be"),
        (
            format!("say '{{\"event\":\"sample\",\"step\":99,\"allocated_bytes\":1,\"reserved_bytes\":1}}'\n{good}"),
            "sample after step 99",
        ),
    ] {
        let (record, _) = outcome_of_script(&format!("{SAY}{steps}{end}"));
        assert!(!record.completed() && record.outcome.to_string().contains(words), "{words}: {record:?}");
    }
}

#[test]
fn a_limit_of_the_program_s_own_does_not_raise_ours() {
    let script = format!(
        "{}for i in 1 2 3 4 5 6 7 8; do sleep 0.01; say \"{{\\\"event\\\":\\\"step\\\",\\\"step\\\":$i,\\\"samples\\\":4,\\\"total_ms\\\":9}}\"; done\n\
         say '{{\"event\":\"sample\",\"step\":8,\"allocated_bytes\":9,\"reserved_bytes\":3221225472}}'\n\
         say '{{\"event\":\"end\",\"outcome\":\"completed\"}}'",
        SAY.replace("\"protocol\":1", "\"protocol\":1,\"limit_bytes\":1152921504606846976")
    );
    let (record, _) = outcome_of_script(&script);
    assert_eq!(record.samples.last().map(|sample| sample.limit_bytes), Some(GIB), "{record:?}");
}

#[test]
fn a_report_without_end_and_a_pipe_in_its_place_keep_nobody_waiting() {
    let endless = format!("{SAY}while :; do say '{{\"event\":\"later\"}}'; done");
    let (record, took) = outcome_of_script(&endless);
    assert!(matches!(record.outcome, Outcome::Cancelled | Outcome::ProtocolError { .. }), "{record:?}");
    assert!(took < Duration::from_secs(15), "{took:?}");
    // The next run's report: whatever lies there goes.
    let (record, took) = outcome_of_script(
        "mkfifo \"$TUNE_REPORT.next\"; rm \"$TUNE_REPORT\"; mv \"$TUNE_REPORT.next\" \"$TUNE_REPORT\"",
    );
    assert!(record.completed(), "it left with status 0 and never reported: {record:?}");
    assert!(took < Duration::from_secs(15), "{took:?}");
}

#[test]
fn a_probe_without_a_trace_that_can_be_read_has_failed() {
    for (fault, words) in [("no_trace", "recorded no allocations"), ("bad_trace", "no use")] {
        let (outcome, says) = outcome_of(fault, Purpose::Probe);
        assert_eq!(outcome, "failed", "{fault}");
        assert!(says.contains(words), "{fault}: {says}");
    }
}

#[test]
fn what_a_program_started_goes_with_it() {
    let mut bench = Bench::new(&["--fault", "grandchild", "--pid-file", "grandchild.pid"]);
    for repeat in 0..3 {
        let record = bench.run(Purpose::Ladder, 4);
        assert!(record.completed(), "{repeat}: {record:?}");
        let pid = std::fs::read_to_string(bench.folder.path().join("grandchild.pid")).unwrap();
        let by = Instant::now() + Duration::from_secs(5);
        while is_running(&pid) {
            assert!(Instant::now() < by, "process {pid} is still there");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whether a process runs; a zombie that init has yet to reap does not.
fn is_running(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(')').unwrap().1.trim_start().starts_with('Z'))
}

#[test]
fn a_program_that_does_not_report_is_judged_by_how_it_ends() {
    // Nobody holds it to the limit: its device is that small.
    let mut bench = Bench::new(&["--unmodified", "--device-bytes=1073741824"]);
    let record = bench.run(Purpose::Ladder, 4);
    assert_eq!(record.outcome, Outcome::Completed);
    // Seen from outside: one sample, and nothing of the allocator.
    assert!(!record.is_observed() && record.samples.len() == 1 && record.samples[0].rates.peak.is_none());
    assert!((MIB..GIB).contains(&record.samples[0].reserved_bytes), "{:?}", record.samples[0]);
    assert!(record.warnings.iter().any(|warning| warning.contains("fragmentation was not observed")), "{record:?}");
    assert!(record.measurement.unwrap().samples_per_second > 0.0, "it was told its steps");

    let record = bench.run(Purpose::Ladder, 4000);
    let Outcome::OutOfMemory { requested_bytes: Some(requested_bytes), limit_bytes, .. } = record.outcome else {
        panic!("{record:?}")
    };
    assert!(requested_bytes > 100 * MIB && limit_bytes == Some(GIB), "{requested_bytes} {limit_bytes:?}");
}

#[test]
fn a_program_that_says_nothing_and_holds_nothing_is_timed_out() {
    let options = ["--unmodified", "--forever"];
    let mut bench = Bench::with(&options, |config| config.command.timeout = Duration::from_secs(1));
    assert!(matches!(bench.run(Purpose::Ladder, 4).outcome, Outcome::TimedOut { .. }));
}

#[test]
fn a_program_that_goes_on_after_its_steps_has_completed() {
    let mut bench = Bench::with(&["--forever"], |config| config.command.timeout = Duration::from_secs(2));
    let record = bench.run(Purpose::Ladder, 4);
    assert!(record.completed(), "{record:?}");
    assert_eq!(record.measurement.unwrap().steps, 6);
}

#[test]
fn a_warm_start_measures_the_same() {
    let mut plain = Bench::new(&[]);
    let mut warm = Bench::with(&[], |config| config.command.preload = vec!["json".to_owned(), "pickle".to_owned()]);
    for purpose in [Purpose::Ladder, Purpose::Probe, Purpose::Soak] {
        let (plain, warm) = (plain.run(purpose, 4), warm.run(purpose, 4));
        assert_eq!(plain.warnings, warm.warnings, "{purpose}");
        assert_eq!((plain.outcome, plain.samples), (warm.outcome, warm.samples), "{purpose}");
    }
}

#[test]
fn the_user_s_wish_to_stop_ends_a_run() {
    let interrupt = Interrupt::default();
    let mut bench = Bench::with(&["--fault", "slow"], |config| {
        config.interrupt = interrupt.clone();
        config.patience.step = Duration::from_secs(60);
    });
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        interrupt.request();
    });
    let begun = Instant::now();
    assert_eq!(bench.run(Purpose::Ladder, 4).outcome, Outcome::Cancelled);
    assert!(begun.elapsed() < Duration::from_secs(20));
}

/// A study by the program itself.
struct Study {
    folder: tempfile::TempDir,
    code: i32,
    stderr: String,
}

impl Study {
    fn of(config: &str, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.yaml"), config).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_tune"))
            .args(["--config", "model.yaml", "--study", "study"])
            .args(arguments)
            .current_dir(folder.path())
            .env_remove("PYTORCH_CUDA_ALLOC_CONF")
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Self { folder, code: output.status.code().unwrap(), stderr }
    }

    fn recommendation(&self) -> Value {
        let text = std::fs::read_to_string(self.folder.path().join("recommendation.yaml")).unwrap();
        serde_yaml::from_str(&text).unwrap()
    }
}

fn config(options: &str) -> String {
    format!(
        "device: cpu\ncommand:\n  run: [python3, {TRAINER}, --batch-size, {{batch_size}}, --steps, {{steps}}, \
         \"--accumulation-steps={{accumulation_steps}}\", \"--loader-workers={{loader_workers}}\"{options}]\n\
         target: {{batch_size: 64}}\nmemory: {{limit: 1GiB}}\ntrial: {{steps: 4, soak_steps: 20}}\n"
    )
}

#[test]
fn a_study_forecasts_exactly_runs_out_of_memory_never_and_proves_its_answer() {
    let study = Study::of(&config(""), &[]);
    assert_eq!(study.code, 0, "{}", study.stderr);
    let found = study.recommendation();
    assert_eq!((found["status"].as_str(), found["provenance"]["oom_trials"].as_u64()), (Some("safe"), Some(0)));
    assert_eq!(found["forecast"]["method"], "exact");
    assert_eq!(found["forecast"]["error_percent"].as_f64(), Some(0.0), "{found:#}");
    // 32 and 64 do not leave the headroom.
    assert_eq!(found["recommended"]["batch_size"].as_u64(), Some(16), "{}", study.stderr);
    assert_eq!(found["recommended"]["effective_batch_size"].as_u64(), Some(64));
    // The replay prefers it, and a soak ran with it, before the one under the program's own settings.
    assert_eq!(found["recommended"]["allocator"]["conf"], "expandable_segments:True");
    assert_eq!(found["recommended"]["allocator"]["backend"], "expandable");
    let reason = found["recommended"]["allocator"]["reason"].as_str().unwrap();
    assert!(reason.starts_with("`expandable_segments:True` holds "), "{reason}");
    let text = std::fs::read_to_string(study.folder.path().join("study/journal.jsonl")).unwrap();
    let is_soak = |line: &&str| line.contains("\"trial_started\"") && line.contains("\"soak\"");
    let soaks = text.lines().filter(is_soak).map(|line| line.contains("expandable_segments:True"));
    assert_eq!(soaks.collect::<Vec<_>>(), [true, false], "{text}");
    assert!(reason.contains("; soaked: ") && reason.ends_with(" under the program's own settings"), "{reason}");
}

#[test]
fn settings_that_make_a_larger_batch_fit_come_before_a_smaller_batch() {
    let uneven = config(", --uneven");
    let own = Study::of(&uneven, &["--set", "search.alloc_conf=[]"]);
    let tried = Study::of(&uneven, &[]);
    let batch_size = |study: &Study| study.recommendation()["recommended"]["batch_size"].as_u64().unwrap();
    assert!(batch_size(&own) <= batch_size(&tried), "{}\n{}", own.stderr, tried.stderr);
    assert_eq!(own.recommendation()["recommended"]["allocator"]["conf"], Value::Null);
}

#[test]
fn a_script_that_fails_whatever_the_size_ends_with_its_last_lines_after_one_trial() {
    for (fault, words) in [("typo", "NameError"), ("missing_file", "FileNotFoundError")] {
        let study = Study::of(&config(&format!(", --fault, {fault}")), &[]);
        assert_eq!(study.code, 6, "{}", study.stderr);
        assert!(study.stderr.contains(words), "{}", study.stderr);
        assert_eq!(study.recommendation()["provenance"]["trials"].as_u64(), Some(1));
    }
}

#[test]
fn a_script_that_does_not_report_gets_an_answer_that_says_what_was_not_seen() {
    let study = Study::of(&config(", --unmodified, --device-bytes=1073741824"), &[]);
    assert_eq!(study.code, 0, "{}", study.stderr);
    let found = study.recommendation();
    let check = |rule: &str| {
        let checks = found["checks"].as_array().unwrap().iter();
        checks.clone().find(|check| check["rule"] == rule).unwrap().clone()
    };
    assert!(check("fragmentation")["reason"].as_str().unwrap().contains("not observed"), "{found:#}");
    assert!(
        found["warnings"].as_array().unwrap().iter().any(|text| text.as_str().unwrap().contains("does not report"))
    );
    // It does run out of memory, since nothing was forecast; that is an answer too.
    assert!(found["provenance"]["oom_trials"].as_u64().unwrap() > 0);
    assert!(found["measured"]["samples_per_second"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_script_that_neither_reports_nor_is_given_the_batch_size_gets_no_safe_answer() {
    let text = config(", --unmodified, --device-bytes=1073741824");
    let untold = text.replace("--batch-size, {batch_size}", "--batch-size=2");
    assert_ne!(text, untold);
    let study = Study::of(&untold, &[]);
    assert_eq!(study.code, 5, "{}", study.stderr);
    assert_eq!(study.recommendation()["status"], "unverified");
    assert!(study.stderr.contains("nothing shows that the program takes the batch size"), "{}", study.stderr);
}

#[test]
fn a_resumed_study_comes_to_the_same_answer() {
    let config = config("");
    let whole = Study::of(&config, &[]);
    let folder = whole.folder.path();
    let journal = folder.join("study/journal.jsonl");
    let text = std::fs::read_to_string(&journal).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let cut = lines.iter().position(|line| line.contains("\"accumulation\"")).unwrap();
    std::fs::write(&journal, format!("{}\n", lines[..cut].join("\n"))).unwrap();
    let recommended = whole.recommendation()["recommended"].clone();
    let output = Command::new(env!("CARGO_BIN_EXE_tune"))
        .args(["--config", "model.yaml", "--study", "study", "--resume"])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let resumed: PathBuf = folder.join("recommendation.yaml");
    let resumed: Value = serde_yaml::from_str(&std::fs::read_to_string(resumed).unwrap()).unwrap();
    assert_eq!(resumed["recommended"], recommended);
}

/// The same with batches of varying lengths, and a program that pads to the length it is told.
fn varying(options: &str) -> String {
    with_data(&format!(", --min-length=16, --max-length=128{options}"), "sequence_length: {min: 16, max: 128}")
}

fn with_data(options: &str, data: &str) -> String {
    let config = config(options);
    format!("{config}data: {{{data}}}\nsafety: {{horizon_steps: 400, fragmentation_threshold: 90%}}\n")
}

fn check_of(found: &Value, rule: &str) -> Option<Value> {
    found["checks"].as_array().unwrap().iter().find(|check| check["rule"] == rule).cloned()
}

#[test]
fn the_whole_run_of_a_program_with_varying_lengths_is_forecast_before_its_soak() {
    let config = varying(", \"--sequence-length={sequence_length}\"");
    assert_forecast_from_seven_probes(&config, "\"length\":");
}

#[test]
fn the_whole_run_of_a_program_whose_images_vary_in_side_is_forecast_before_its_soak() {
    let options = ", --min-side=64, --max-side=256, \"--image-size={image_size}\"";
    let config = with_data(options, "image_size: {min: 64, max: 256}");
    assert_forecast_from_seven_probes(&config, "\"image_size\":");
}

fn assert_forecast_from_seven_probes(config: &str, key: &str) {
    let study = Study::of(config, &["--set", "target.batch_size=16"]);
    assert_eq!(study.code, 0, "{}", study.stderr);
    let found = study.recommendation();
    let check = check_of(&found, "whole_run").unwrap();
    assert_eq!(check["passed"], true, "{check:#}");
    assert!(check["reason"].as_str().unwrap().contains("400 steps"), "{check:#}");
    let journal = std::fs::read_to_string(study.folder.path().join("study/journal.jsonl")).unwrap();
    let of_shape = |line: &&str| line.contains("\"trial_started\"") && line.contains(key);
    assert_eq!(journal.lines().filter(of_shape).count(), 7, "{journal}");
}

#[test]
fn a_program_that_is_not_told_lengths_is_asked_for_none() {
    let study = Study::of(&varying(""), &["--set", "target.batch_size=16"]);
    assert_eq!(study.code, 0, "{}", study.stderr);
    let journal = std::fs::read_to_string(study.folder.path().join("study/journal.jsonl")).unwrap();
    assert!(!journal.contains("\"length\":"), "{journal}");
}
