//! Studies that are interrupted, that have nowhere to write, or that are asked for what there is not.

use predicates::prelude::*;
use tempfile::TempDir;

use crate::{small_config, stderr, tune, yaml};

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
