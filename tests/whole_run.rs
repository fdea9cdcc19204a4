//! A study of samples of varying length on the virtual device: the whole run is forecast before the soak, from probes at a
//! handful of tiny shapes, and what it says is what the soak then holds.

use std::process::Command;

use batchtune::trial::journal;

const CONFIG: &str = "
version: 1
name: lengths
device: cpu
model: {family: gpt, preset: nano, sequence_length: 48, layers: 1}
data: {source: synthetic, sequence_length: {min: 12, max: 40}, padding: longest}
target: {batch_size: 8}
search: {accumulation_steps: [1], batch_size: {start: 100%}, loader_workers: [0], prefetch_depth: [0], device_prefetch: [1]}
memory: {allocator: native, limit: 512MiB}
safety: {horizon_steps: 500}
trial: {warmup_steps: 1, steps: 3, soak_steps: 12}
";

#[test]
fn the_whole_run_is_forecast_before_the_soak_and_holds_what_the_soak_does() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("lengths.yaml");
    std::fs::write(&config, CONFIG).unwrap();
    let (study, output) = (folder.path().join("study"), folder.path().join("recommendation.yaml"));
    let mut tune = Command::new(env!("CARGO_BIN_EXE_tune"));
    tune.arg("--config").arg(&config).arg("--study").arg(&study).arg("--output").arg(&output);
    let ended = tune.arg("--quiet").output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&ended.stderr));
    let contents = journal::read(&study.join(journal::FILE_NAME)).unwrap();
    let trials: Vec<_> = contents.finished().map(|(record, _)| record).collect();
    let lengths = trials.iter().filter(|trial| trial.spec.length.is_some()).count();
    assert_eq!(lengths, 7, "probes at lengths of their own");
    let soak = trials.iter().find(|trial| trial.spec.is_soak()).unwrap();
    let outlook = soak.outlook.as_ref().unwrap();
    assert_eq!((outlook.steps, outlook.breach.is_some(), outlook.doubt.is_some()), (500, false, false));
    // The longest batch, which the soak has on purpose, decides both.
    let measured = soak.measurement.as_ref().unwrap();
    assert_eq!(outlook.peak_reserved_bytes, measured.peak_reserved_bytes);
    let written = std::fs::read_to_string(&output).unwrap();
    assert!(written.contains("500 steps forecast"), "{written}");
}
