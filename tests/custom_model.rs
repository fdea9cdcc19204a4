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
