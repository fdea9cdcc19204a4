//! A driver that is killed: what it had found is not lost, whatever the moment.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on must panic")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Nothing here takes longer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn tune(folder: &Path) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("tune"));
    command.current_dir(folder).args(["--config", "small.yaml", "--study", "study", "--quiet"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn journal(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("study/journal.jsonl")).unwrap_or_default()
}

fn count(journal: &str, entry: &str) -> usize {
    journal.matches(&format!("\"entry\":\"{entry}\"")).count()
}

/// Kills the driver as soon as the journal holds so many entries of a kind; gives the whole lines of the journal then.
fn killed_at(folder: &Path, entry: &str, entries: usize) -> String {
    let mut child = tune(folder).spawn().unwrap();
    let begun = Instant::now();
    while count(&journal(folder), entry) < entries && child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < PATIENCE, "{}", journal(folder));
        std::thread::sleep(Duration::from_millis(2));
    }
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    let text = journal(folder);
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    text[..whole].to_owned()
}

fn is_alive(pid: &str) -> bool {
    // A zombie has ended.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// The processes whose working directory is this folder.
fn processes_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let numbers = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let is_here =
        |pid: &String| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == folder) && is_alive(pid);
    numbers.filter(is_here).collect()
}

#[test]
fn a_killed_driver_loses_the_running_trial_at_most_and_leaves_no_worker() {
    let moments = [("device", 1), ("trial_started", 1), ("trial_started", 3), ("trial_ended", 3), ("trial_started", 5)];
    for (entry, entries) in moments {
        let folder = tempfile::tempdir().unwrap();
        let text = "version: 1\nname: small\ndevice: cpu\ntarget: {batch_size: 8}\nmodel: {family: gpt, preset: nano, layers: 2, \
                    hidden_size: 32, sequence_length: 32}\ndata: {source: synthetic}\ntrial: {warmup_steps: 2, steps: 4, \
                    soak_steps: 6}\nsearch: {loader_workers: [0, 1]}\n";
        std::fs::write(folder.path().join("small.yaml"), text).unwrap();
        let before = killed_at(folder.path(), entry, entries);
        let begun = Instant::now();
        while !processes_in(folder.path()).is_empty() {
            assert!(begun.elapsed() < PATIENCE, "a worker outlived its driver: {:?}", processes_in(folder.path()));
            std::thread::sleep(Duration::from_millis(20));
        }

        let status = tune(folder.path()).arg("--resume").status().unwrap();
        assert_eq!(status.code(), Some(0), "{entry} {entries}");
        let after = journal(folder.path());
        assert!(after.starts_with(&before), "{entry} {entries}: the journal's beginning changed");
        let ids: Vec<u64> = after
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .filter(|line| line["entry"] == "trial_ended")
            .map(|line| line["record"]["spec"]["id"].as_u64().unwrap())
            .collect();
        let expected: Vec<u64> = (1..=ids.len() as u64).collect();
        assert_eq!(ids, expected, "{entry} {entries}: no trial is lost and none is run twice");
        let answer = std::fs::read_to_string(folder.path().join("recommendation.yaml")).unwrap();
        let answer: serde_json::Value = serde_yaml::from_str(&answer).unwrap();
        assert_eq!((&answer["status"], &answer["recommended"]["effective_batch_size"]), (&"safe".into(), &8.into()));
    }
}

#[test]
fn a_journal_that_somebody_edited_gives_no_answer_that_misses_the_target() {
    let folder = tempfile::tempdir().unwrap();
    let text = "version: 1\nname: small\ndevice: cpu\ntarget: {batch_size: 2}\nmodel: {family: gpt, preset: nano, layers: 1, \
                hidden_size: 32, sequence_length: 16}\ntrial: {warmup_steps: 1, steps: 4, soak_steps: 4}\n\
                search: {loader_workers: [0]}\nmemory: {limit: 1GiB}\n";
    std::fs::write(folder.path().join("small.yaml"), text).unwrap();
    assert_eq!(tune(folder.path()).status().unwrap().code(), Some(0));
    let whole = journal(folder.path());
    for batch_size in ["0", "9223372036854775808"] {
        let edited: String = whole
            .lines()
            .map(|line| {
                let is_soak = line.contains("\"entry\":\"trial_ended\"") && line.contains("\"purpose\":\"soak\"");
                let [one, two] = ["1", "2"].map(|size| format!("\"batch_size\":{size},"));
                let other = format!("\"batch_size\":{batch_size},");
                if is_soak { line.replace(&one, &other).replace(&two, &other) + "\n" } else { format!("{line}\n") }
            })
            .collect();
        assert!(edited.contains(&format!("\"batch_size\":{batch_size},")));
        std::fs::write(folder.path().join("study/journal.jsonl"), edited).unwrap();
        assert_eq!(tune(folder.path()).arg("--resume").status().unwrap().code(), Some(0));
        let answer = std::fs::read_to_string(folder.path().join("recommendation.yaml")).unwrap();
        let answer: serde_json::Value = serde_yaml::from_str(&answer).unwrap();
        assert_eq!((&answer["status"], &answer["recommended"]["effective_batch_size"]), (&"safe".into(), &2.into()));
    }
}
