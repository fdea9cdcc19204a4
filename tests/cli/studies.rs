//! Whole studies over the CPU device, and what they leave.

use predicates::prelude::*;
use tempfile::TempDir;

use crate::{repository, small_config, stderr, tune, yaml};

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
fn who_goes_back_to_the_configuration_before_gets_its_answer_and_who_wanted_another_does_not() {
    let folder = TempDir::new().unwrap();
    let config = small_config(folder.path(), "target: {batch_size: 2}");
    let run = |options: &[&str]| {
        let output =
            tune(folder.path()).args(["--study", "study", "--config"]).arg(&config).args(options).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stderr(&output)
    };
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    run(&[]);
    let (first, page) = (read("recommendation.yaml"), read("study/report.html"));
    assert!(run(&["--set", "seed=1"]).contains("is of another configuration"));
    let journals = || [read("study/journal.jsonl"), read("study/journal.previous.jsonl")];
    let kept = journals();
    let again = run(&[]);
    let words = "this configuration was tuned on this device before (in study/journal.previous.jsonl, started ";
    assert!(again.contains(words), "{again}");
    assert_eq!((read("recommendation.yaml"), read("study/report.html")), (first, page));
    let other = run(&["--set", "seed=1"]);
    assert!(other.contains("this configuration was tuned on this device before (in study, started "), "{other}");
    assert_eq!(journals(), kept);
    // A study of the same configuration that was begun and not ended: its answer is what somebody wanted another for.
    let [_, safe] = kept;
    let begun: String = safe.split_inclusive('\n').take(5).collect();
    std::fs::write(folder.path().join("study/journal.jsonl"), begun).unwrap();
    assert!(run(&[]).contains("has no safe answer yet"));
}
