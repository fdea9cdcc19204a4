//! Trials on two virtual devices, by the real binary: two workers at a time, one answer.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on must panic")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Events and recommendation of a grid on these devices.
fn tuned(folder: &Path, devices: &str, strategy: &str, replicas: usize) -> (Vec<Value>, Value) {
    let config = "version: 1\nname: two\n\
         model: {family: gpt, preset: nano, layers: 1, hidden_size: 32, sequence_length: 16}\n\
         data: {source: synthetic}\n\
         trial: {warmup_steps: 1, steps: 4, soak_steps: 6}\n\
         target: {batch_size: 8}\n\
         memory: {limit: 200MiB}\n\
         search: {loader_workers: [0], device_prefetch: [0]}\n";
    std::fs::write(folder.join("two.yaml"), config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tune"));
    command.current_dir(folder).env_remove("TUNE_LOG").args(["--config", "two.yaml", "--json", "--fresh"]);
    command.args(["--strategy", strategy, "--set", &format!("devices={devices}")]);
    command.args(["--set", &format!("target.replicas={replicas}")]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let events = String::from_utf8(output.stdout).unwrap();
    let events = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let answer = std::fs::read_to_string(folder.join("recommendation.yaml")).unwrap();
    (events, serde_yaml::from_str(&answer).unwrap())
}

fn of<'a>(events: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    events.iter().filter(move |event| event["event"] == kind)
}

/// The points of the trials before the soak, whatever their order.
fn points(events: &[Value]) -> BTreeSet<String> {
    let specs = of(events, "trial_ended").map(|event| &event["record"]["spec"]);
    specs.filter(|spec| spec["purpose"] != "soak").map(|spec| spec["point"].to_string()).collect()
}

#[test]
fn a_grid_on_two_virtual_devices_runs_the_trials_of_one_and_names_the_device_of_each() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (one, _) = tuned(one.path(), "[cpu]", "grid", 1);
    let (two, answer) = tuned(two.path(), "[cpu, cpu]", "grid", 1);
    assert!(of(&one, "trial_started").all(|event| event.get("device").is_none()));
    assert_eq!(points(&one), points(&two));
    assert_eq!(of(&two, "device_ready").count(), 2);
    let names: BTreeSet<&str> = of(&two, "trial_ended").map(|event| event["device"].as_str().unwrap()).collect();
    assert!(names.iter().all(|name| ["cpu (1)", "cpu (2)"].contains(name)), "{names:?}");
    assert!(of(&two, "trial_ended").all(|event| event["record"]["worker"]["device"] == "cpu"));
    assert_eq!(answer["status"], "safe");
    assert_eq!(answer["notes"][0], "trials ran side by side on cpu (1), cpu (2)");
    // With a processor for each, the second does not stand idle.
    let cpus = of(&two, "device_ready").filter_map(|event| event["facts"]["cpus"].as_u64()).max().unwrap();
    assert_eq!(names.len(), if cpus > 1 { 2 } else { 1 });
}

#[test]
fn a_staged_search_on_two_virtual_devices_ends_safe() {
    let folder = tempfile::tempdir().unwrap();
    let (events, answer) = tuned(folder.path(), "[cpu, cpu]", "staged", 1);
    assert_eq!((&answer["status"], &answer["forecast"]["method"]), (&"safe".into(), &"exact".into()));
    let soaks = of(&events, "trial_ended").filter(|event| event["record"]["spec"]["purpose"] == "soak");
    assert!(soaks.count() >= 1);
}

#[test]
fn groups_of_two_replicas_run_side_by_side_on_four_virtual_devices() {
    let folder = tempfile::tempdir().unwrap();
    let (events, answer) = tuned(folder.path(), "[cpu, cpu, cpu, cpu]", "grid", 2);
    assert_eq!(of(&events, "device_ready").count(), 2);
    let groups = ["cpu (1) + cpu (2)", "cpu (3) + cpu (4)"];
    let names: BTreeSet<&str> = of(&events, "trial_ended").map(|event| event["device"].as_str().unwrap()).collect();
    assert!(names.iter().all(|name| groups.contains(name)), "{names:?}");
    // Two threads for each of two trials.
    let cpus = of(&events, "device_ready").filter_map(|event| event["facts"]["cpus"].as_u64()).max().unwrap();
    assert_eq!(names.len(), if cpus > 3 { 2 } else { 1 });
    assert_eq!(answer["status"], "safe");
    assert_eq!(answer["notes"][0], format!("trials ran side by side on {}", groups.join(", ")));
    let size = |name: &str| answer["recommended"][name].as_u64().unwrap();
    assert_eq!(size("batch_size") * size("accumulation_steps") * 2, 8);
}
