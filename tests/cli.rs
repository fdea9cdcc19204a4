//! The command line as a user meets it: whole sessions over the CPU device, and every way to get them wrong.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on must panic")]

use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use predicates::prelude::*;
use tempfile::TempDir;

/// The repository, so that tests run from anywhere.
fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The `tune` binary in a folder of its own.
fn tune(folder: &Path) -> Command {
    let mut command = Command::cargo_bin("tune").unwrap();
    command.current_dir(folder).env_remove("TUNE_LOG").timeout(std::time::Duration::from_secs(240));
    command
}

/// A small configuration that ends within seconds, with `more` lines at its end.
fn small_config(folder: &Path, more: &str) -> PathBuf {
    let text = format!(
        "version: 1\nname: small\ndevice: cpu\nmodel: {{family: gpt, preset: nano, layers: 2, hidden_size: 32, sequence_length: 32}}\n\
         data: {{source: synthetic}}\ntrial: {{warmup_steps: 2, steps: 4, soak_steps: 6}}\n\
         search: {{loader_workers: [0, 1]}}\n{more}\n"
    );
    let path = folder.join("small.yaml");
    std::fs::write(&path, text).unwrap();
    path
}

fn yaml(path: &Path) -> serde_json::Value {
    serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_quickstart_ends_in_a_safe_recommendation_and_its_loss_goes_down() {
    let folder = TempDir::new().unwrap();
    let config = repository().join("configs/quickstart.yaml");
    let output = tune(folder.path()).arg("--config").arg(&config).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found = yaml(&folder.path().join("recommendation.yaml"));
    assert_eq!(found["schema"], "batchtune/recommendation/v1");
    assert_eq!(found["status"], "safe");
    let recommended = &found["recommended"];
    let product = recommended["batch_size"].as_u64().unwrap() * recommended["accumulation_steps"].as_u64().unwrap();
    assert_eq!(product, 16);
    assert_eq!(recommended["effective_batch_size"], 16);
    let measured = &found["measured"];
    assert!(measured["samples_per_second"].as_f64().unwrap() > 0.0);
    assert!(measured["last_loss"].as_f64().unwrap() < measured["first_loss"].as_f64().unwrap(), "{measured:#}");
    assert!(measured["peak_allocated_bytes"].as_u64() <= measured["peak_reserved_bytes"].as_u64());
    assert!(measured["peak_reserved_bytes"].as_u64() <= measured["limit_bytes"].as_u64());
    assert!(found["checks"].as_array().unwrap().iter().all(|check| check["passed"] == true));

    let journal = std::fs::read_to_string(folder.path().join(".tune/quickstart/journal.jsonl")).unwrap();
    let entries: Vec<serde_json::Value> = journal.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ended = entries.iter().filter(|entry| entry["entry"] == "trial_ended");
    for entry in ended {
        let samples = entry["record"]["samples"].as_array().unwrap();
        assert!(!samples.is_empty());
        assert!(samples.iter().all(|sample| sample["rates"]["peak"].is_number()), "{entry:#}");
    }

    // The answer goes into a job script, and a changed configuration makes it stale.
    let exported = tune(folder.path()).args(["export", "--format", "env", "--config"]).arg(&config).output().unwrap();
    assert!(exported.status.success(), "{}", stderr(&exported));
    let script = format!("{}\necho $TUNE_BATCH_SIZE $TUNE_STATUS", String::from_utf8_lossy(&exported.stdout));
    let shell = std::process::Command::new("sh").args(["-euc", &script]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&shell.stdout), format!("{} safe\n", recommended["batch_size"]));
    let other = small_config(folder.path(), "target: {batch_size: 4}");
    tune(folder.path())
        .args(["export", "--config"])
        .arg(other)
        .assert()
        .code(3)
        .stderr(predicate::str::contains("stale"));
}

#[test]
fn a_tight_limit_recommends_accumulation() {
    let folder = TempDir::new().unwrap();
    let config = small_config(folder.path(), "target: {batch_size: 64}\nmemory: {limit: 40MiB}");
    let output = tune(folder.path()).arg("--config").arg(config).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found = yaml(&folder.path().join("recommendation.yaml"));
    assert!(found["recommended"]["accumulation_steps"].as_u64().unwrap() > 1, "{found:#}");
    assert!(found["measured"]["peak_reserved_bytes"].as_u64().unwrap() <= 40 << 20);
    assert!(!found["rejected"].as_array().unwrap().is_empty());
}

#[test]
fn a_limit_below_the_model_itself_has_no_safe_configuration() {
    let folder = TempDir::new().unwrap();
    let config = small_config(folder.path(), "target: {batch_size: 4}\nmemory: {limit: 100KiB}");
    tune(folder.path())
        .arg("--config")
        .arg(config)
        .assert()
        .code(3)
        .stderr(predicate::str::contains("no safe configuration"));
    assert_eq!(yaml(&folder.path().join("recommendation.yaml"))["status"], "none");
}

#[test]
fn json_mode_prints_one_event_a_line_and_nothing_else() {
    let folder = TempDir::new().unwrap();
    let config = small_config(folder.path(), "target: {batch_size: 2}");
    let output = tune(folder.path()).arg("--json").arg("--config").arg(config).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let events: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.first().unwrap()["event"], "study_started");
    assert_eq!(events.last().unwrap()["event"], "study_ended");
    assert!(events.iter().any(|event| event["event"] == "sample"));
}

#[test]
fn quiet_mode_prints_the_answer_only() {
    let folder = TempDir::new().unwrap();
    let config = small_config(folder.path(), "target: {batch_size: 2}");
    let output = tune(folder.path()).arg("--quiet").arg("--config").arg(config).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(stderr(&output), "");
    let answer = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(answer.contains("Safe: batch size ") && answer.contains(" = 2, "), "{answer}");
}

#[test]
fn a_budget_that_ends_first_leaves_an_unverified_answer_that_a_larger_one_completes() {
    let folder = TempDir::new().unwrap();
    let config = small_config(folder.path(), "target: {batch_size: 8}");
    let with_trials = |trials: &str| {
        let mut command = tune(folder.path());
        command.arg("--config").arg(&config).args(["--set", &format!("budget.trials={trials}")]);
        command
    };
    with_trials("2").assert().code(5).stderr(predicate::str::contains("--resume"));
    assert_eq!(yaml(&folder.path().join("recommendation.yaml"))["status"], "unverified");
    tune(folder.path()).arg("export").assert().code(3).stderr(predicate::str::contains("`unverified`"));
    with_trials("40").arg("--resume").assert().code(0).stderr(predicate::str::contains("2 trials resumed"));
    assert_eq!(yaml(&folder.path().join("recommendation.yaml"))["status"], "safe");
}

/// A journal's line with another batch size in its recommendation.
fn edit_recommended(line: &str) -> String {
    let mut entry: serde_json::Value = serde_json::from_str(line).unwrap();
    if entry["entry"] == "recommended" {
        entry["recommendation"]["recommended"]["batch_size"] = 999.into();
    }
    entry.to_string()
}

#[test]
fn a_finished_answer_is_offered_again_unless_a_fresh_one_is_asked_for() {
    let folder = TempDir::new().unwrap();
    let config = small_config(folder.path(), "target: {batch_size: 4}");
    let run = |more: &[&str]| tune(folder.path()).arg("--config").arg(&config).args(more).output().unwrap();
    let first = run(&[]);
    assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
    let answer = std::fs::read_to_string(folder.path().join("recommendation.yaml")).unwrap();
    std::fs::remove_file(folder.path().join("recommendation.yaml")).unwrap();

    let second = run(&[]);
    assert_eq!(second.status.code(), Some(0), "{}", stderr(&second));
    assert!(stderr(&second).contains("--fresh") && !stderr(&second).contains("trial 1"), "{}", stderr(&second));
    assert_eq!(std::fs::read_to_string(folder.path().join("recommendation.yaml")).unwrap(), answer);
    assert_eq!(first.stdout, second.stdout);

    // An edited journal is not believed: the answer must be the one that a soak in it proves.
    let journal = folder.path().join(".tune/small/journal.jsonl");
    let kept = std::fs::read_to_string(&journal).unwrap();
    let edited: Vec<String> = kept.lines().map(edit_recommended).collect();
    std::fs::write(&journal, edited.join("\n") + "\n").unwrap();
    let third = run(&[]);
    assert!(stderr(&third).contains("trial 1"), "{}", stderr(&third));

    let fresh = run(&["--fresh"]);
    assert!(fresh.status.success() && stderr(&fresh).contains("trial 1"), "{}", stderr(&fresh));
    let other = run(&["--set", "seed=7"]);
    assert!(other.status.success() && stderr(&other).contains("trial 1"), "{}", stderr(&other));
}

#[test]
fn the_forecast_of_the_search_is_exact_and_runs_out_of_memory_nowhere() {
    let folder = TempDir::new().unwrap();
    let config = small_config(folder.path(), "target: {batch_size: 64}\nmemory: {limit: 40MiB}");
    let output = tune(folder.path()).arg("--config").arg(&config).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found = yaml(&folder.path().join("recommendation.yaml"));
    assert_eq!(found["forecast"]["method"], "exact", "{found:#}");
    assert!(found["forecast"]["error_percent"].as_f64().unwrap() <= 0.5, "{found:#}");
    assert_eq!(found["provenance"]["oom_trials"], 0);
    let rejected = found["rejected"].as_array().unwrap();
    assert!(rejected.iter().any(|row| row["reason"].as_str().unwrap().contains("by forecast")), "{found:#}");

    // The same recordings answer for any batch by themselves.
    let probe = |batch: &str| folder.path().join(format!(".tune/small/probe-{batch}.trace"));
    let forecast = |more: &[&str]| {
        let mut command = tune(folder.path());
        command.arg("forecast").args([probe("2"), probe("3")]).args(["--batches", "2,3", "--to", "8,64"]).args(more);
        command.output().unwrap()
    };
    let json = forecast(&["--json", "--limit", "40MiB"]);
    assert_eq!(json.status.code(), Some(0), "{}", stderr(&json));
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(report["method"], "exact");
    assert_eq!((&report["points"][0]["fits"], &report["points"][1]["fits"]), (&true.into(), &false.into()));
    assert_eq!(report["largest_batch_size"], found["forecast"]["largest_batch_size"]);
    let table = forecast(&[]);
    assert!(String::from_utf8_lossy(&table.stdout).starts_with("exact (not checked)"));
}

#[test]
fn forecasts_of_what_is_none_are_one_clear_error_each() {
    let folder = TempDir::new().unwrap();
    let fixture = |name: &str| repository().join("tests/fixtures/forecast").join(name);
    let (two, three) = (fixture("gpt2_medium_b2.pickle"), fixture("gpt2_medium_b3.pickle"));
    let cases: [(&Path, &[&str], &str); 7] = [
        (&three, &["--batches", "2", "--to", "8"], "2 recordings and 1 batch size"),
        (&three, &["--batches", "1,3", "--to", "8"], "a batch of `1`"),
        (&three, &["--batches", "2,2", "--to", "8"], "`2` is there twice"),
        (&two, &["--batches", "2,3", "--to", "8"], "batches of `2` and `3` are the same"),
        (&three, &["--batches", "2,3", "--to", "1"], "a batch of `1` cannot be forecast"),
        (&three, &["--batches", "2,3", "--to", "8", "--conf", "backend:cudaMallocAsync"], "no model of the allocator"),
        (Path::new("nowhere.trace"), &["--batches", "2,3", "--to", "8"], "cannot read `nowhere.trace`"),
    ];
    for (second, more, words) in cases {
        let output = tune(folder.path()).arg("forecast").arg(&two).arg(second).args(more).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    }
    let swapped = ["--batches", "3,2", "--to", "8"];
    let output = tune(folder.path()).arg("forecast").args([&two, &three]).args(swapped).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("the two may be swapped"), "{told}");
}

#[test]
fn whole_runs_that_cannot_be_forecast_are_one_clear_error_each() {
    let folder = TempDir::new().unwrap();
    let shapes = [(2, 64), (3, 64), (2, 96), (3, 96), (2, 160), (4, 128), (3, 200)];
    let trace = |(b, t): (u32, u32)| repository().join(format!("tests/fixtures/forecast/made/b{b}_t{t}.trace"));
    std::fs::write(folder.path().join("lengths.txt"), "90\n").unwrap();
    let cases: [(&[&str], &str); 18] = [
        (&["--run"], "--run-lengths"),
        (&["--tune"], "--run-lengths"),
        (&["--run", "--run-lengths", "nowhere.txt"], "cannot read `nowhere.txt`"),
        (&["--run", "--run-lengths", "40:500", "--token-budget", "999"], "does not hold two samples of `500`"),
        (&["--steps", "1000001", "--run-lengths", "40:500"], "is over 1000000"),
        (&["--run", "--run-lengths", "40:500", "--pad-to", "0"], "0 is not in 1..="),
        (&["--run", "--run-lengths", "40:500", "--evaluate-every", "5"], "the probes hold no evaluation"),
        (&["--steps", "9", "--run-lengths", "lengths.txt", "--html", "lengths.txt"], "lengths.txt"),
        (&["--run-lengths", "500:40"], "longer than the longest"),
        (&["--run-lengths", "0:16"], "expected two lengths from 1 to"),
        (&["--run-lengths", "16:"], "expected two lengths from 1 to"),
        (&["--run-lengths", "40:500", "--steps", "0"], "0 is not in 1.."),
        (&["--run-lengths", "40:500", "--evaluate-every", "0"], "0 is not in 1.."),
        (&["--run-lengths", "40:500", "--limit", "0"], "nothing fits under a limit of 0"),
        (&["--run-lengths", "40:500", "--updates", "3"], "--updates"),
        (&["--run-lengths", "40:500", "--backend", "cuda_malloc_async", "--conf", ""], "which has no settings"),
        (&["--run-lengths", "40:500", "--steps", "9", "--html", "-", "--json"], "both go to standard output"),
        (&["--run-lengths", "40:16777216", "--steps", "9"], "the sizes at `batch 8, length "),
    ];
    for (more, words) in cases {
        let mut command = tune(folder.path());
        command.arg("forecast").args(shapes.map(trace)).args(["--batches", "2,3,2,3,2,4,3", "--to", "8"]);
        command.args(["--lengths", "64,64,96,96,160,128,200"]);
        let output = command.args(more).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{more:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{more:?}: {}", stderr(&output));
    }
    assert_eq!(std::fs::read_to_string(folder.path().join("lengths.txt")).unwrap(), "90\n");
}

#[test]
fn runs_over_named_axes_say_which_one_is_amiss() {
    let folder = TempDir::new().unwrap();
    let shapes = [(2, 64), (3, 64), (2, 96), (3, 96), (2, 160), (4, 128), (3, 200)];
    let trace = |(b, t): (u32, u32)| repository().join(format!("tests/fixtures/forecast/made/b{b}_t{t}.trace"));
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("good.csv", "side\n64\n\n200\n");
    write("header.csv", "side,side\n64,64\n");
    write("line.csv", "side\n64\n64,96\n");
    write("empty.csv", "side\n");
    let forecast = |sides: &str, more: &[&str]| {
        let mut command = tune(folder.path());
        command.arg("forecast").args(shapes.map(trace)).args([
            "--batches",
            "2,3,2,3,2,4,3",
            "--to",
            "8",
            "--steps",
            "9",
        ]);
        command.args(["--axis", sides]).args(more).output().unwrap()
    };
    let sides = "side=64,64,96,96,160,128,200";
    let cases: [(&str, &[&str], &str); 15] = [
        ("side=64,64", &[], "7 recordings and 2 values of `side`"),
        ("side=64,64,96,96,160,128,0", &[], "such as side=64,96,128"),
        ("batch=64,64,96,96,160,128,200", &[], "the axis `batch` is there twice"),
        ("side=64,64,64,64,64,64,64", &[], "all probes have `side 64`"),
        (sides, &["--axis", sides], "the axis `side` is there twice"),
        (sides, &[], "a whole run needs the `side` of the run's samples"),
        (sides, &["--run-axis", "side=64:96:100"], "no multiple of `100` lies between `64` and `96`"),
        (
            sides,
            &["--run-axis", "side=64:96", "--run-axis", "side=3"],
            "the `side` of the run's samples is there twice",
        ),
        (
            sides,
            &["--run-axis", "width=64:96"],
            "the run has a `width`, and the axes of the recordings are batch, side",
        ),
        (sides, &["--run-axis", "side=64:96", "--per-batch", "height"], "`--per-batch height`: no such axis is drawn"),
        (sides, &["--run-shapes", "good.csv", "--per-batch", "side"], "`--per-batch side`: no such axis is drawn"),
        (sides, &["--run-shapes", "header.csv"], "header.csv:1: expected the names of the samples' axes"),
        (sides, &["--run-shapes", "line.csv"], "line.csv:3: expected side, from 1 to"),
        (sides, &["--run-shapes", "empty.csv"], "`empty.csv` has no shapes"),
        (sides, &["--run-shapes", "good.csv", "--html", "good.csv"], "good.csv"),
    ];
    for (sides, more, words) in cases {
        let output = forecast(sides, more);
        assert_eq!(output.status.code(), Some(2), "{sides} {more:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{sides} {more:?}: {}", stderr(&output));
    }
    let page = forecast(sides, &["--run-shapes", "good.csv", "--html", "-"]);
    assert_eq!(page.status.code(), Some(0), "{}", stderr(&page));
    let page = String::from_utf8_lossy(&page.stdout).into_owned();
    assert!(page.contains("<p>Axes of its samples: side 64 to 200, as in good.csv.</p>"), "{page}");
}

#[test]
fn a_page_goes_beside_its_recording_to_a_path_or_to_standard_output() {
    let folder = TempDir::new().unwrap();
    let snapshot = folder.path().join("snapshot.pickle");
    std::fs::copy(repository().join("tests/fixtures/pytorch/oom_fragmented.pickle"), &snapshot).unwrap();
    let inspect = |page: &str| tune(folder.path()).args(["inspect", "snapshot.pickle", page]).output().unwrap();
    for (page, file) in [("--html", "snapshot.pickle.html"), ("--html=page.html", "page.html")] {
        let output = inspect(page);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(stderr(&output).trim(), format!("page: {file}"));
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("snapshot.pickle: pytorch snapshot"));
        assert!(std::fs::read(folder.path().join(file)).unwrap().starts_with(b"<!doctype html>"));
    }
    let printed = inspect("--html=-");
    assert_eq!(printed.stdout, std::fs::read(folder.path().join("page.html")).unwrap());
    // What was computed is printed before the page is found to have no place.
    let nowhere = inspect("--html=/nonexistent/page.html");
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(!nowhere.stdout.is_empty() && stderr(&nowhere).contains("cannot write `/nonexistent/page.html`"));
}

#[test]
fn a_tuned_run_is_json_with_everything_that_was_tried() {
    let folder = TempDir::new().unwrap();
    let shapes = [(2, 64), (3, 64), (2, 96), (3, 96), (2, 160), (4, 128), (3, 200)];
    let trace = |(b, t): (u32, u32)| repository().join(format!("tests/fixtures/forecast/made/b{b}_t{t}.trace"));
    let mut command = tune(folder.path());
    command.arg("forecast").args(shapes.map(trace)).args(["--batches", "2,3,2,3,2,4,3", "--to", "8"]);
    command.args(["--lengths", "64,64,96,96,160,128,200", "--steps", "60", "--run-lengths", "40:500"]);
    let output = command.args(["--limit", "300MiB", "--tune", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["method"], &report["runs"][0]["breach"]["breach"]), (&"exact".into(), &"out_of_memory".into()));
    assert_eq!(report["runs"][0]["breach"]["step"], 14);
    let tuning = &report["tuned"][0]["tuning"];
    let chosen = &tuning["tried"][usize::try_from(tuning["chosen"].as_u64().unwrap()).unwrap()];
    assert_eq!(chosen["setting"]["conf"], "expandable_segments:True", "{tuning:#}");
    assert_eq!((&chosen["ending"], &chosen["figures"]["steps"]), (&"survived".into(), &60.into()));
    assert!(tuning["tried"].as_array().unwrap().len() > 10);
    let ways = report["tuned"][0]["remedies"]["ways"].as_array().unwrap();
    assert!(ways.len() >= 6 && ways.iter().all(|way| way["figures"]["padding_share"].is_number()));
}

#[test]
fn resuming_another_configuration_is_refused() {
    let folder = TempDir::new().unwrap();
    let config = small_config(folder.path(), "target: {batch_size: 2}");
    let with_seed = |seed: &str| {
        let mut command = tune(folder.path());
        command.arg("--config").arg(&config).args(["--study", "study", "--resume", "--set", &format!("seed={seed}")]);
        command
    };
    with_seed("1").args(["--set", "budget.trials=1"]).assert().code(5);
    with_seed("2").assert().code(2).stderr(predicate::str::contains("another configuration"));
}

#[test]
fn an_interrupt_and_a_closed_terminal_end_the_study_with_what_it_found() {
    for signal in [nix::sys::signal::Signal::SIGINT, nix::sys::signal::Signal::SIGHUP] {
        // Under `nohup` nothing ends with its terminal, and programs that are started inherit that.
        if !is_ignored(signal) {
            assert_saved_after(signal);
        }
    }
}

/// Whether this process ignores the signal (`SigIgn` of proc(5), a bit each).
fn is_ignored(signal: nix::sys::signal::Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal as i32 - 1) & 1 == 1
}

#[test]
fn a_file_that_reaches_its_limit_is_an_error_and_no_death() {
    let folder = TempDir::new().unwrap();
    let config = small_config(folder.path(), "target: {batch_size: 2}\n");
    let status = std::process::Command::new("sh")
        .args(["-c", "ulimit -f 1; exec \"$@\"", "sh"])
        .arg(assert_cmd::cargo::cargo_bin("tune"))
        .args(["--quiet", "--config"])
        .arg(&config)
        .current_dir(folder.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(2), "{status}");
}

fn assert_saved_after(signal: nix::sys::signal::Signal) {
    let folder = TempDir::new().unwrap();
    let config = small_config(folder.path(), "target: {batch_size: 64}\n");
    let child = std::process::Command::new(assert_cmd::cargo::cargo_bin("tune"))
        .current_dir(folder.path())
        .arg("--config")
        .arg(&config)
        .args(["--set", "trial.soak_steps=100000"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let recommendation = folder.path().join("recommendation.yaml");
    let begun = std::time::Instant::now();
    while !recommendation.exists() && begun.elapsed().as_secs() < 120 {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let pid = nix::unistd::Pid::from_raw(child.id().try_into().unwrap());
    nix::sys::signal::kill(pid, signal).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(yaml(&recommendation)["status"], "unverified");
}

#[test]
fn cuda_without_cuda_is_one_clear_error() {
    if cfg!(feature = "cuda") {
        return;
    }
    let folder = TempDir::new().unwrap();
    let config = small_config(folder.path(), "target: {batch_size: 2}");
    tune(folder.path())
        .args(["--device", "cuda", "--config"])
        .arg(config)
        .assert()
        .code(4)
        .stderr(predicate::str::contains("no CUDA support").and(predicate::str::contains("--device cpu")));
}

#[test]
fn an_unwritable_output_is_refused_before_any_trial() {
    let folder = TempDir::new().unwrap();
    let config = small_config(folder.path(), "target: {batch_size: 2}");
    let output =
        tune(folder.path()).args(["--output", "no/such/folder.yaml", "--config"]).arg(&config).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("cannot write `no/such/folder.yaml`"), "{}", stderr(&output));
    assert!(!stderr(&output).contains("trial 1"));
}

#[test]
fn an_answer_that_cannot_be_written_in_the_end_is_shown_all_the_same() {
    let folder = TempDir::new().unwrap();
    let config = small_config(folder.path(), "target: {batch_size: 2}");
    let output = folder.path().join("answers/answer.yaml");
    std::fs::create_dir(output.parent().unwrap()).unwrap();
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("tune"));
    command.current_dir(folder.path()).args(["--study", "study", "--output"]).arg(&output).arg("--config").arg(&config);
    let child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    // The journal is there once the output was found to be writable, or a moment before.
    let journal = folder.path().join("study/journal.jsonl");
    let begun = std::time::Instant::now();
    while !std::fs::read_to_string(&journal).is_ok_and(|text| text.contains("trial_started")) {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "no trial was started");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    std::fs::remove_dir_all(output.parent().unwrap()).unwrap();
    let result = child.wait_with_output().unwrap();
    assert_eq!(result.status.code(), Some(2), "{}", stderr(&result));
    assert!(stderr(&result).contains("cannot write"), "{}", stderr(&result));
    let table = String::from_utf8(result.stdout).unwrap();
    assert!(table.contains("Safe: batch size"), "{table}");
    // The study has its answer: with room for it, it is offered.
    let again = tune(folder.path()).args(["--study", "study", "--config"]).arg(&config).output().unwrap();
    assert_eq!(again.status.code(), Some(0), "{}", stderr(&again));
    assert!(stderr(&again).contains("its answer stands"), "{}", stderr(&again));
    assert!(folder.path().join("recommendation.yaml").exists());
}

#[test]
fn the_configuration_is_not_overwritten_by_its_answer() {
    let folder = TempDir::new().unwrap();
    let config = small_config(folder.path(), "target: {batch_size: 2}");
    let before = std::fs::read_to_string(&config).unwrap();
    let output = tune(folder.path()).arg("--config").arg(&config).args(["--output", "./small.yaml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(&config).unwrap(), before);
}

#[test]
fn a_log_that_cannot_be_written_changes_no_exit_code() {
    let folder = TempDir::new().unwrap();
    let config = small_config(folder.path(), "target: {batch_size: 2}\nmemory: {limit: 16KiB}");
    let run = |arguments: &[&str]| {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("tune"));
        command.current_dir(folder.path()).args(arguments).arg("--config").stdout(std::process::Stdio::null());
        command.stderr(full).arg(&config).status().unwrap().code()
    };
    assert_eq!(run(&["check", "--set", "nothing=1"]), Some(2));
    assert_eq!(run(&[]), Some(3), "no safe configuration");
}

#[test]
fn configurations_that_are_none_are_one_clear_error_each() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let huge = folder.path().join("huge.yaml");
    std::fs::File::create(&huge).unwrap().set_len(100 << 20).unwrap();
    let inputs = [
        write("empty.yaml", b""),
        write("junk.yaml", &(0..=255).cycle().take(4096).collect::<Vec<u8>>()),
        folder.path().to_owned(),
        folder.path().join("missing.yaml"),
        huge,
    ];
    for input in inputs {
        let output = tune(folder.path()).arg("--config").arg(&input).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}: {}", input.display(), stderr(&output));
        assert!(!stderr(&output).is_empty() && stderr(&output).len() < 2000, "{}", stderr(&output));
    }
}

#[test]
fn a_missing_text_file_names_itself() {
    let folder = TempDir::new().unwrap();
    let config = small_config(folder.path(), "target: {batch_size: 2}");
    tune(folder.path())
        .arg("--config")
        .arg(config)
        .args(["--set", "data.source=text", "--set", "data.path=nowhere.txt"])
        .assert()
        .code(2)
        .stderr(predicate::str::contains("nowhere.txt"));
}

#[test]
fn the_job_script_tunes_once_and_launches_with_the_answer() {
    let folder = TempDir::new().unwrap();
    let config = small_config(folder.path(), "target: {batch_size: 2}");
    let binary = assert_cmd::cargo::cargo_bin("tune");
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let launch = || {
        let mut command = std::process::Command::new("sh");
        command
            .arg(repository().join("examples/shell/train.sh"))
            .arg(&config)
            .args(["printenv", "TUNE_EFFECTIVE_BATCH_SIZE"]);
        command.current_dir(folder.path()).env("PATH", &path).output().unwrap()
    };
    let first = launch();
    assert!(first.status.success(), "{}", stderr(&first));
    assert!(String::from_utf8_lossy(&first.stdout).ends_with("\n2\n"));
    let second = launch();
    assert!(second.status.success());
    assert!(!stderr(&second).contains("trial 1"), "tuned again: {}", stderr(&second));
}

#[test]
fn the_job_script_stops_when_nothing_is_safe() {
    let folder = TempDir::new().unwrap();
    let config = small_config(folder.path(), "target: {batch_size: 2}\nmemory: {limit: 100KiB}");
    let binary = assert_cmd::cargo::cargo_bin("tune");
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let output = std::process::Command::new("sh")
        .arg(repository().join("examples/shell/train.sh"))
        .arg(&config)
        .args(["echo", "launched"])
        .current_dir(folder.path())
        .env("PATH", &path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(!String::from_utf8_lossy(&output.stdout).contains("launched"));
}

#[test]
fn completions_and_schema_are_printed() {
    let folder = TempDir::new().unwrap();
    tune(folder.path()).args(["completions", "bash"]).assert().success().stdout(predicate::str::contains("--config"));
    let schema = tune(folder.path()).arg("schema").output().unwrap();
    let schema: serde_json::Value = serde_json::from_slice(&schema.stdout).unwrap();
    assert!(schema["properties"]["target"].is_object());
}

/// Whether NVIDIA's driver answers here.
fn has_driver() -> bool {
    batchtune::device::nvml::Monitor::open().is_ok_and(|monitor| monitor.cards().is_ok_and(|cards| cards > 0))
}

#[test]
fn a_watch_of_a_process_that_never_was_or_without_a_card_says_so() {
    let folder = TempDir::new().unwrap();
    let assert = tune(folder.path()).args(["watch", "--pid", "4294967295"]).assert();
    if has_driver() {
        assert.code(2).stderr(predicate::str::contains("no process 4294967295 runs"));
    } else {
        assert.code(4).stderr(predicate::str::contains("no NVIDIA driver answers here"));
    }
}

#[test]
fn the_doctor_s_exit_code_is_its_status_in_both_forms() {
    let folder = TempDir::new().unwrap();
    let json = tune(folder.path()).args(["doctor", "--json"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let expected = match report["status"].as_str().unwrap() {
        "fine" => 0,
        "problem" => 3,
        "no_device" => 4,
        other => panic!("{other}"),
    };
    assert_eq!((json.status.code(), report["schema"].as_str()), (Some(expected), Some("batchtune/doctor/v1")));
    let findings = report["findings"].as_array().unwrap();
    assert!(
        findings.iter().all(|finding| finding["found"].is_string() && finding["meaning"].is_string()),
        "{report:#}"
    );
    let table = tune(folder.path()).arg("doctor").output().unwrap();
    assert_eq!((table.status.code(), stderr(&table)), (Some(expected), String::new()));
    let mistaken = ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:yes\u{1b}[2J");
    let mistaken = tune(folder.path()).arg("doctor").env(mistaken.0, mistaken.1).output().unwrap();
    let text = String::from_utf8_lossy(&mistaken.stdout).into_owned();
    assert!(text.contains("PROBLEM `PYTORCH_CUDA_ALLOC_CONF=") && !text.contains('\u{1b}'), "{text}");
}

#[test]
fn the_help_texts_are_as_recorded() {
    let cases = trycmd::TestCases::new();
    cases.case("tests/cli/*.trycmd");
}
