//! The failure table, row by row.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use batchtune::trial::launcher::{LauncherCommand, LauncherSpec};
use batchtune::trial::{Executor, ExecutorError, Observation, Outcome, WorkloadSpec};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::stage::{REAL_WORKER, Stage, own, spec_of};
use crate::toy::workload;
use crate::{cluster, scripted};

/// The `srun` that this process started: its child by that name.
fn srun() -> Pid {
    let own = std::process::id().to_string();
    let is_ours = |stat: &String| {
        let (name, rest) = stat.rsplit_once(')').unwrap();
        name.ends_with("(srun") && rest.split_whitespace().nth(1) == Some(&own)
    };
    let stats = fs::read_dir("/proc").unwrap();
    let mut stats = stats.filter_map(|process| fs::read_to_string(process.ok()?.path().join("stat")).ok());
    let stat = stats.find(is_ours).expect("an srun runs");
    Pid::from_raw(stat.split_whitespace().next().unwrap().parse().unwrap())
}

/// Does something at the first step of a trial.
fn at_first_step(mut what: impl FnMut()) -> impl FnMut(Observation) {
    move |seen| {
        if matches!(seen, Observation::Step { step: 1, .. }) {
            what();
        }
    }
}

/// Waits for something to be true.
pub(crate) fn await_that(what: &str, is_true: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_true() {
        assert!(Instant::now() < until, "{what}: {}", cluster::queue());
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn a_worker_that_is_killed_has_crashed() {
    let mut stage = Stage::new("is_killed");
    for round in 0..3 {
        let killed = stage.run(2 * round + 1);
        assert!(matches!(killed.outcome, Outcome::Crashed { signal: Some(9), status: None, .. }), "{killed:?}");
        let good = stage.run(2 * round + 2);
        assert_eq!(good.outcome, Outcome::Completed);
        let worker = good.worker.unwrap();
        assert!(["n1", "n2"].contains(&worker.node.as_str()) && worker.slurm_job_id.is_some(), "{worker:?}");
        assert_eq!(worker.slurm_step_id.as_deref(), Some("0"));
    }
    stage.close();
}

pub(crate) fn a_worker_whose_srun_is_killed_is_cancelled() {
    let mut stage = Stage::new("hangs");
    let record = stage.run_and(1, &mut at_first_step(|| kill(srun(), Signal::SIGKILL).unwrap()));
    assert!(matches!(record.outcome, Outcome::Crashed { signal: Some(9), .. }), "{:?}", record.outcome);
    // Nothing but the cancel command could reach it: it does not read its input, and srun is gone.
    stage.assert_workers_are_gone();
    assert!(stage.run(2).completed());
    stage.close();
}

pub(crate) fn a_job_that_is_cancelled_has_crashed_and_says_why() {
    let mut stage = Stage::new("hangs");
    let cancel = || {
        let [job] = &cluster::jobs()[..] else { panic!("{}", cluster::queue()) };
        assert!(Command::new("scancel").arg(job).status().unwrap().success());
    };
    let record = stage.run_and(1, &mut at_first_step(cancel));
    let Outcome::Crashed { signal: Some(9 | 15), status: None, log } = &record.outcome else {
        panic!("{:?}", record.outcome)
    };
    assert!(log.contains("srun: error: n") || log.contains("CANCELLED"), "{log}");
    assert!(stage.run(2).completed());
    stage.close();
}

pub(crate) fn half_a_line_is_a_protocol_error_though_srun_ends_with_0() {
    let mut stage = Stage::new("prints_half_a_line_and_leaves");
    let outcome = stage.run(1).outcome;
    assert!(matches!(&outcome, Outcome::ProtocolError { message } if message.contains("within a line")), "{outcome:?}");
    assert!(stage.run(2).completed());
    stage.close();
}

pub(crate) fn leaving_without_an_answer_is_a_crash_though_srun_ends_with_0() {
    let mut stage = Stage::new("leaves_without_an_answer");
    let outcome = stage.run(1).outcome;
    assert!(matches!(outcome, Outcome::Crashed { signal: None, status: Some(0), .. }), "{outcome:?}");
    assert!(stage.run(2).completed());
    stage.close();
}

pub(crate) fn a_worker_that_hangs_is_timed_out() {
    let mut stage = Stage::with("ignores_sigterm_and_hangs", &spec_of(LauncherCommand::Slurm), |config| {
        config.patience.step = Duration::from_secs(1);
        config.patience.leave = Duration::from_millis(100);
    });
    assert_eq!(stage.run(1).outcome, Outcome::TimedOut { seconds: 1.0 });
    assert!(stage.run(2).completed());
    stage.close();
}

pub(crate) fn an_impossible_request_says_so_at_once() {
    for (flag, words) in [("--gres=gpu:7", "node configuration"), ("--partition=moon", "partition")] {
        let spec = spec_of(own(&["srun", "--ntasks=1", flag, "--job-name={trial}"]));
        let mut stage = Stage::with("good", &spec, |_| {});
        let error = stage.executor().start().unwrap_err();
        assert!(matches!(&error, ExecutorError::Launcher { status, .. } if status.contains("201")), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
        stage.close();
    }
}

pub(crate) fn a_program_that_is_not_there_says_so_at_once() {
    let mut stage = Stage::with("good", &spec_of(LauncherCommand::Slurm), |config| {
        config.command.program = "/nonexistent/tune".into();
    });
    let error = stage.executor().start().unwrap_err();
    assert!(matches!(&error, ExecutorError::Launcher { .. }), "{error:?}");
    assert!(error.to_string().contains("/nonexistent/tune"), "{error}");
    stage.close();
}

pub(crate) fn a_job_that_stays_in_the_queue_never_started_and_is_taken_back() {
    // More than any node has: it waits for ever.
    let command = own(&["srun", "--ntasks=1", "--cpus-per-task=64", "--job-name={trial}"]);
    let spec = LauncherSpec { start_timeout: Duration::from_secs(2), ..spec_of(command) };
    let mut stage = Stage::with("good", &spec, |_| {});
    let error = stage.executor().start().unwrap_err();
    assert!(matches!(error, ExecutorError::NotStarted { seconds: 2.0, .. }), "{error:?}");
    assert!(stage.pids().is_empty());
    stage.close();

    // The same in the middle of a study, since somebody else has the cards now.
    let spec = LauncherSpec { start_timeout: Duration::from_secs(4), ..spec_of(LauncherCommand::Slurm) };
    let mut stage = Stage::with("answers_uncleanly", &spec, |_| {});
    assert!(stage.run(1).completed());
    await_that("the first worker's job ends", || cluster::jobs().is_empty());
    let hold = ["--gres=gpu:1", "--nodes=2", "sleep", "600"];
    let mut holder = Command::new("srun").args(hold).stdin(Stdio::null()).spawn().unwrap();
    await_that("both cards are taken", || cluster::queue().contains("RUNNING"));
    let outcome = stage.run(2).outcome;
    assert!(matches!(outcome, Outcome::NotStarted { seconds: 4.0, .. }), "{outcome:?}");
    assert_eq!(cluster::jobs().len(), 1, "only the other's job is there: {}", cluster::queue());
    kill(Pid::from_raw(i32::try_from(holder.id()).unwrap()), Signal::SIGTERM).unwrap();
    holder.wait().unwrap();
    assert!(stage.run(3).completed(), "and then it goes on");
    stage.close();
}

pub(crate) fn an_interrupt_takes_a_pending_job_back() {
    let command = own(&["srun", "--ntasks=1", "--cpus-per-task=64", "--job-name={trial}"]);
    let mut stage = Stage::with("good", &spec_of(command), |_| {});
    let interrupt = stage.interrupt.clone();
    let waiter = std::thread::spawn(move || {
        await_that("a job is pending", || cluster::queue().contains("PENDING"));
        interrupt.request();
    });
    assert!(matches!(stage.executor().start(), Err(ExecutorError::Cancelled)));
    waiter.join().unwrap();
    assert_eq!(cluster::queue(), "");
    stage.close();
}

/// Nothing here cancels: the driver is gone, and so is all that is in between.
pub(crate) fn a_worker_without_a_driver_and_an_srun_leaves_by_its_lease() {
    let stage = Stage::new("good");
    let mut srun = Command::new("srun")
        .args(["--ntasks=1", "--gres=gpu:1"])
        .arg(std::env::current_exe().unwrap())
        .env(scripted::PART, REAL_WORKER)
        .env(scripted::PIDS, stage.file("pids"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut hello = String::new();
    BufReader::new(srun.stdout.take().unwrap()).read_line(&mut hello).unwrap();
    let hello: serde_json::Value = serde_json::from_str(&hello).unwrap();
    assert_eq!(hello["place"]["slurm_step_id"], "0", "{hello}");
    let open = serde_json::json!({
        "message": "open", "workload": WorkloadSpec { ..workload("stuck") }, "scratch": "/tmp",
        "lease": Duration::from_secs(2),
    });
    let mut input = srun.stdin.take().unwrap();
    writeln!(input, "{open}").unwrap();
    // Long enough for the line to be there, and less than the lease.
    std::thread::sleep(Duration::from_millis(500));
    srun.kill().unwrap();
    srun.wait().unwrap();
    assert!(!stage.pids().is_empty());
    stage.close();
}
