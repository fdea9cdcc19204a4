//! The loader of a heavy pipeline, tuned by the real binary: rates of the loader alone, then real steps, then the soak.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on must panic")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Processor time of a sample, in seconds: several times what the model's share of a step is.
const COST: f64 = 0.01;
/// Samples of a batch.
const BATCH: u64 = 8;

/// Tunes a small model behind a pipeline that costs more than its step.
fn tuned(folder: &Path, settings: &[&str]) -> Output {
    let config = "version: 1\nname: heavy\ndevice: cpu\n\
         model: {family: gpt, preset: nano, layers: 1, hidden_size: 32, sequence_length: 16}\n\
         data: {source: synthetic, cost: 10ms, sample_bytes: 1MiB}\n\
         trial: {warmup_steps: 2, steps: 6, soak_steps: 8}\n\
         target: {batch_size: 8}\n\
         search: {accumulation_steps: [1], loader_workers: [0, 1, 2], prefetch_depth: [2, 1]}\n";
    std::fs::write(folder.join("heavy.yaml"), config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tune"));
    command.current_dir(folder).env_remove("TUNE_LOG").args(["--config", "heavy.yaml"]);
    command.args(settings.iter().flat_map(|setting| ["--set", setting])).output().unwrap()
}

/// The recommendation of a study that found one.
fn found(folder: &Path, output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_yaml::from_str(&std::fs::read_to_string(folder.join("recommendation.yaml")).unwrap()).unwrap()
}

/// The records of a study's trials of a purpose.
fn trials(folder: &Path, purpose: &str) -> Vec<Value> {
    let journal = std::fs::read_to_string(folder.join(".tune/heavy/journal.jsonl")).unwrap();
    let entries = journal.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    entries.map(|mut entry| entry["record"].take()).filter(|record| record["spec"]["purpose"] == purpose).collect()
}

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("no {name} in {value}"))
}

#[test]
fn a_heavy_pipeline_gets_workers_that_real_steps_and_the_soak_verify() {
    let folder = tempfile::tempdir().unwrap();
    let found = found(folder.path(), &tuned(folder.path(), &[]));
    let (recommended, measured) = (&found["recommended"], &found["measured"]);
    let alone = trials(folder.path(), "throughput");
    let verified = trials(folder.path(), "loader");
    assert!(!alone.is_empty() && alone.len() <= 3 && alone.len() + verified.len() <= 5, "{alone:#?} {verified:#?}");
    for record in &alone {
        let (measurement, workers) = (&record["measurement"], number(&record["spec"]["point"], "loader_workers"));
        let rate = number(measurement, "batches_per_second");
        assert!(rate > 0.0 && rate <= workers / (BATCH as f64 * COST), "more than processor time allows: {record:#}");
        // Token ids and targets of 4 bytes, and what a sample holds beside them.
        assert_eq!(measurement["batch_bytes"], BATCH * (2 * 4 * 16 + (1 << 20)), "{measurement:#}");
    }
    assert_eq!(measured["batch_bytes"], alone[0]["measurement"]["batch_bytes"]);
    let workers = number(recommended, "loader_workers");
    assert!(number(measured, "samples_per_second") <= workers.max(1.0) / COST, "{measured:#}");
    assert!(workers == 0.0 || recommended["prefetch_depth"].as_u64() >= Some(1), "{recommended}");
}

#[test]
fn samples_per_second_are_end_to_end_with_the_wait_beside_them() {
    let folder = tempfile::tempdir().unwrap();
    let found = found(folder.path(), &tuned(folder.path(), &["search.loader_workers=[0]"]));
    let measured = &found["measured"];
    let (rate, wait) = (number(measured, "samples_per_second"), number(measured, "data_wait_fraction"));
    assert!(rate <= 1.0 / COST, "one thread makes no more: {measured:#}");
    assert!(wait > 0.1, "a batch takes several steps' time: {measured:#}");
    let soak = &trials(folder.path(), "soak")[0]["measurement"];
    let interval: Vec<f64> = serde_json::from_value(soak["samples_per_second_interval"].clone()).unwrap();
    assert!(interval[0] <= rate && rate <= interval[1] && interval[1] > interval[0], "{soak:#}");
    let check = found["checks"].as_array().unwrap().iter().find(|check| check["rule"] == "data_wait").unwrap();
    assert_eq!((&check["passed"], &check["warning"]), (&Value::Bool(true), &Value::Bool(true)), "{check}");
    assert!(trials(folder.path(), "throughput").is_empty(), "there is nothing to choose");
}
