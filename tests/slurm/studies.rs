//! Whole studies of the program that ships.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use batchtune::report::Recommendation;
use batchtune::trial::TrialRecord;
use batchtune::trial::journal::{self, FILE_NAME};
use serde_json::Value;

use crate::cluster;

/// A study of seconds, on the CPU of whatever machine it is given.
const CONFIG: &str = "\
version: 1
name: quickstart
device: cpu
model: {family: gpt, preset: nano, layers: 1, hidden_size: 32, heads: 2, sequence_length: 32}
data: {source: text, path: EXAMPLES}
target: {batch_size: 4}
search: {loader_workers: [0], prefetch_depth: [2], device_prefetch: [0]}
memory: {limit: 256MiB}
trial: {warmup_steps: 1, steps: 4, soak_steps: 6, timeout: 60s}
budget: {time: 4m, trials: 20}
";

/// The launcher, as a configuration writes it: the shorthand asks for no card where none is trained on.
const LAUNCHER: &str = "\
launcher: {command: [srun, --ntasks=1, \"--gres=gpu:1\", \"--job-name={trial}\"], workers: 2, start_timeout: 1m, \
cancel: [scancel, --quiet, \"{SLURM_JOB_ID}\"]}
";

fn write_config(folder: &Path, launcher: &str) {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/text");
    let text = CONFIG.replace("EXAMPLES", &examples.display().to_string());
    std::fs::write(folder.join("model.yaml"), text + launcher).unwrap();
}

fn tune(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tune"));
    command.current_dir(folder).args(["--config", "model.yaml"]).stdin(Stdio::null());
    command
}

pub(crate) fn records(folder: &Path) -> Vec<TrialRecord> {
    let contents = journal::read(&folder.join(".tune/quickstart").join(FILE_NAME)).unwrap();
    contents.finished().map(|(record, _)| record.clone()).collect()
}

pub(crate) fn assert_safe(folder: &Path, output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let recommendation = Recommendation::read(&folder.join("recommendation.yaml")).unwrap();
    assert_eq!(recommendation.status.name(), "safe");
    let records = records(folder);
    assert!(records.iter().any(|record| record.spec.is_soak() && record.completed()));
    for record in &records {
        let worker = record.worker.as_ref().unwrap();
        assert!(["n1", "n2"].contains(&worker.node.as_str()) && worker.device == "cpu", "{worker:?}");
        assert!(worker.slurm_job_id.is_some() && worker.slurm_step_id.is_some(), "{worker:?}");
    }
}

pub(crate) fn a_study_runs_through_srun_and_records_where() {
    for launcher in [LAUNCHER, "launcher: slurm\n"] {
        let folder = tempfile::tempdir().unwrap();
        write_config(folder.path(), launcher);
        let output = tune(folder.path()).output().unwrap();
        assert_safe(folder.path(), &output);
        cluster::assert_nothing_is_left();
    }
}

/// Runs a study in the folder inside an allocation of Slurm's.
pub(crate) fn in_an_allocation(folder: &Path, request: &[&str], arguments: &[&str]) -> Output {
    write_config(folder, "launcher: slurm\n");
    Command::new("salloc")
        .args(["--quiet", "--gres=gpu:1", "--chdir"])
        .arg(folder)
        .args(request)
        .arg(env!("CARGO_BIN_EXE_tune"))
        .args(["--config", "model.yaml"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

pub(crate) fn a_study_inside_an_allocation_runs_as_its_steps() {
    let folder = tempfile::tempdir().unwrap();
    let output = in_an_allocation(folder.path(), &["--ntasks=1"], &[]);
    assert_safe(folder.path(), &output);
    let mut jobs: Vec<Option<String>> =
        records(folder.path()).into_iter().map(|record| record.worker.unwrap().slurm_job_id).collect();
    jobs.dedup();
    assert_eq!(jobs.len(), 1, "all trials ran in the one job");
    cluster::assert_nothing_is_left();
}

/// Runs a study in the folder with settings of its own, and looks at each of its events as it comes.
pub(crate) fn follow(folder: &Path, arguments: &[&str], mut look: impl FnMut(&Value)) -> Output {
    write_config(folder, LAUNCHER);
    let mut child =
        tune(folder).arg("--json").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        look(&serde_json::from_str(&line.unwrap()).unwrap());
    }
    child.wait_with_output().unwrap()
}

/// Waits until a study's first trial has ended.
fn await_a_trial(folder: &Path, child: &mut Child) {
    let until = Instant::now() + Duration::from_secs(120);
    let journal = folder.join(".tune/quickstart").join(FILE_NAME);
    while !std::fs::read_to_string(&journal).is_ok_and(|text| text.contains("\"trial_ended\"")) {
        assert!(Instant::now() < until && child.try_wait().unwrap().is_none(), "the study goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn a_tuner_that_is_killed_leaves_no_job() {
    let folder = tempfile::tempdir().unwrap();
    write_config(folder.path(), "launcher: slurm\n");
    let mut command = tune(folder.path());
    command.args(["--set", "trial.soak_steps=100000"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    await_a_trial(folder.path(), &mut child);
    assert_eq!(cluster::jobs().len(), 1, "{}", cluster::queue());
    child.kill().unwrap();
    child.wait().unwrap();
    cluster::assert_nothing_is_left();
}
