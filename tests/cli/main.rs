//! The command line as a user meets it: whole sessions over the CPU device, and every way to get them wrong.
//! `tests/cli/*.trycmd` hold what is printed word for word.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must panic")]

mod around;
mod recordings;
mod studies;
mod trouble;

use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;

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
fn the_help_texts_are_as_recorded() {
    let cases = trycmd::TestCases::new();
    cases.case("tests/cli/*.trycmd");
}
