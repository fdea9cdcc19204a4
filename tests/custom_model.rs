//! A user's own binary is a tuner: `examples/custom_model.rs`, run as one.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on must panic")]

use std::path::Path;
use std::process::{Command, Output};

/// The example's binary, which `cargo test` builds beside this test.
fn custom_tuner(folder: &Path, arguments: &[&str]) -> Output {
    let test = std::env::current_exe().unwrap();
    let binary = test.parent().unwrap().parent().unwrap().join("examples/custom_model");
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/custom_model.yaml");
    Command::new(binary).current_dir(folder).arg("--config").arg(config).args(arguments).output().unwrap()
}

#[test]
fn a_registered_family_is_tuned_to_a_safe_recommendation() {
    let folder = tempfile::tempdir().unwrap();
    let output = custom_tuner(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(folder.path().join("recommendation.yaml")).unwrap();
    let found: serde_json::Value = serde_yaml::from_str(&text).unwrap();
    assert_eq!(found["status"], "safe");
    assert_eq!(found["warnings"].as_array().unwrap().len(), 0);
}

#[test]
fn a_model_cut_by_candles_layer_norm_is_warned_of_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let output = custom_tuner(folder.path(), &["--set", "model.options.norm=fused", "--set", "target.batch_size=64"]);
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}");
    let text = std::fs::read_to_string(folder.path().join("recommendation.yaml")).unwrap();
    let found: serde_json::Value = serde_yaml::from_str(&text).unwrap();
    let warning = found["warnings"][0].as_str().unwrap();
    for name in ["input.weight", "norm.weight", "norm.bias"] {
        assert!(warning.contains(name), "{warning}");
        assert!(log.contains(name), "{log}");
    }
    assert!(!warning.contains("output.weight"), "{warning}");
}

#[test]
fn a_pipeline_that_costs_more_than_the_step_gets_workers_by_the_rate_of_the_loader_alone() {
    let folder = tempfile::tempdir().unwrap();
    // Drawing the features of a sample takes far longer than the few products with them.
    let settings = [
        "model.options.features=20000",
        "model.options.hidden=2",
        "target.batch_size=16",
        "search.loader_workers=[0, 1, 2, 1024]",
    ];
    let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let output = custom_tuner(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(folder.path().join("recommendation.yaml")).unwrap();
    let found: serde_json::Value = serde_yaml::from_str(&text).unwrap();
    let recommended = &found["recommended"];
    let batch_size = recommended["batch_size"].as_u64().unwrap();
    assert_eq!(found["measured"]["batch_bytes"], batch_size * (4 * 20_000 + 4), "features and a class");
    // How many workers are worth it on a busy machine is not for a test to say.
    assert!(recommended["loader_workers"].as_u64() <= Some(2), "{recommended}");
    let cpus = found["environment"]["cpus"].as_u64().unwrap();
    let rejected = found["rejected"].as_array().unwrap();
    let left_out = rejected.iter().find(|rejected| rejected["loader_workers"] == 1024).unwrap();
    let reason = left_out["reason"].as_str().unwrap();
    assert!(reason.starts_with("1024 loader workers on ") && reason.contains(&cpus.to_string()), "{reason}");
    let trials = loader_trials(folder.path());
    assert!(trials.iter().any(|trial| trial["spec"]["purpose"] == "throughput"), "{trials:#?}");
    assert!(trials.len() <= 5, "{trials:#?}");
    for alone in trials.iter().filter(|trial| trial["spec"]["purpose"] == "throughput") {
        let measurement = &alone["measurement"];
        assert!(measurement["batches_per_second"].as_f64().unwrap() > 0.0, "{alone:#}");
        assert_eq!(measurement["batch_bytes"], found["measured"]["batch_bytes"]);
        assert!(alone["samples"].as_array().unwrap().is_empty(), "no model, no memory: {alone:#}");
    }
}

/// The records of the loader's trials in the journal of the study in a folder.
fn loader_trials(folder: &Path) -> Vec<serde_json::Value> {
    let journal = std::fs::read_to_string(folder.join(".tune/perceptron/journal.jsonl")).unwrap();
    let entries = journal.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let records = entries.map(|mut entry| entry["record"].take());
    records
        .filter(|record| ["throughput", "loader"].iter().any(|purpose| record["spec"]["purpose"] == *purpose))
        .collect()
}
