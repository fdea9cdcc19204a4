//! What stands around a study: job scripts, completions, a watch and the doctor.

use predicates::prelude::*;
use tempfile::TempDir;

use crate::{repository, small_config, stderr, tune};

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
