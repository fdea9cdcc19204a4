//! The worker that ships: how it ends with its driver.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use batchtune::model::ModelSpec;
use batchtune::trial::{Executor, ExecutorError, WorkloadSpec};

use crate::scripted;
use crate::stage::{Stage, is_alive};
use crate::toy::workload;

/// The part of the worker that ships.
pub(crate) const REAL_WORKER: &str = "the_real_worker";

/// The part of a process that starts a worker and waits.
pub(crate) const PARENT: &str = "a_parent";

pub(crate) fn parent_of_a_worker() -> ExitCode {
    let mut worker = Command::new(std::env::current_exe().unwrap()).env(scripted::PART, REAL_WORKER).spawn().unwrap();
    let _ = worker.wait();
    ExitCode::SUCCESS
}

/// Starts this program in a part; gives it, its output, and the process number that the worker in it says.
pub(crate) fn start(part: &str) -> (Child, BufReader<std::process::ChildStdout>, i32) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child = command.env(scripted::PART, part).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut hello = String::new();
    output.read_line(&mut hello).unwrap();
    let hello: serde_json::Value = serde_json::from_str(&hello).unwrap();
    assert_eq!(hello["message"], "hello");
    (child, output, hello["pid"].as_i64().unwrap().try_into().unwrap())
}

pub(crate) fn a_real_worker_refuses_a_workload_that_it_does_not_know() {
    let mut stage = Stage::new(REAL_WORKER);
    let error = stage.executor().start().unwrap_err();
    assert!(matches!(&error, ExecutorError::Workload(reason) if reason.contains("`toy`")), "{error}");
}

pub(crate) fn a_real_worker_leaves_at_the_end_of_its_input_whatever_it_is_doing() {
    let (mut child, mut output, pid) = start(REAL_WORKER);
    let model = ModelSpec { family: "stuck".to_owned(), ..ModelSpec::default() };
    let open = serde_json::json!({"message": "open", "workload": WorkloadSpec { model, ..workload("toy") }, "scratch": "/tmp"});
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "{open}").unwrap();
    assert_eq!(fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap(), "1000\n");
    drop(input);
    assert_eq!(child.wait().unwrap().code(), Some(batchtune::trial::exit_status::ORPHANED));
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "it said no more");
}

pub(crate) fn a_real_worker_ends_with_its_parent_though_its_input_stays_open() {
    let (mut parent, mut output, worker) = start(PARENT);
    let _input_stays_open = parent.stdin.take().unwrap();
    assert!(is_alive(worker));
    parent.kill().unwrap();
    parent.wait().unwrap();
    // Its output ends when it does.
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while is_alive(worker) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(!is_alive(worker));
}
