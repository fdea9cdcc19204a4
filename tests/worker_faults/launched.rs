//! Workers behind a launcher: what reaches them, what their launcher's end means, and that none is left.
//!
//! The launchers are shells. One becomes the worker, as `ssh` seems to; one stays in front of it and ends with 128 + n, as
//! `srun` does; one puts the worker into a session of its own, out of reach of every signal, as a worker on another
//! machine is. `tests/slurm` has the real one.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use batchtune::device::DeviceChoice;
use batchtune::model::ModelSpec;
use batchtune::trial::exit_status::LEASE_EXPIRED;
use batchtune::trial::launcher::{
    Holder, Launcher, LauncherCommand, LauncherSpec, Setting, Starter, Surroundings, Template,
};
use batchtune::trial::process::ProcessConfig;
use batchtune::trial::replicas::ReplicaExecutor;
use batchtune::trial::{Executor, ExecutorError, Observation, Outcome, Purpose, WorkloadSpec};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getsid};

use crate::real::{REAL_WORKER, start};
use crate::stage::{Stage, crashed_by, impatient, protocol_error};
use crate::toy::{spec, workload};

/// Names this program as what becomes the launcher.
pub(crate) const LAUNCH: &str = "launch";

/// Becomes the worker.
const BECOMES: &str = "exec \"$@\"";
/// Stays, and ends as a shell does.
const STAYS: &str = "\"$@\"; exit $?";
/// Puts the worker out of reach of its own signals.
const FAR_AWAY: &str = "setsid -w \"$@\"; exit $?";
/// Ends the worker by its number.
const KILL: [&str; 4] = ["sh", "-c", "kill -9 $0", "{pid}"];

fn templates(arguments: &[&str], holder: Holder) -> Vec<Template> {
    arguments.iter().map(|text| Template::parse(text, holder).unwrap()).collect()
}

/// A launcher that is a shell's script, and what cancels its workers.
fn launcher(script: &str, cancel: &[&str]) -> Launcher {
    let spec = LauncherSpec {
        command: LauncherCommand::Own(templates(&["sh", "-c", script, "{trial}"], Holder::Command)),
        workers: 1,
        start_timeout: Duration::from_secs(60),
        cancel: (!cancel.is_empty()).then(|| templates(cancel, Holder::Cancel)),
    };
    of_spec(&spec)
}

fn of_spec(spec: &LauncherSpec) -> Launcher {
    let starter = Starter { program: std::env::current_exe().unwrap(), arguments: vec![LAUNCH.into()] };
    let surroundings = Surroundings::default();
    Launcher::new(spec, Setting { study: "faults", device: DeviceChoice::Cpu, surroundings, starter })
}

fn behind(part: &str, launcher: Launcher) -> Stage {
    behind_with(part, launcher, |_| {})
}

fn behind_with(part: &str, launcher: Launcher, adjust: fn(&mut ProcessConfig)) -> Stage {
    Stage::with(part, |config| {
        config.launcher = Some(launcher);
        adjust(config);
    })
}

/// What a file of the study holds; nothing where it is not there.
fn lines_of(stage: &Stage, name: &str) -> Vec<String> {
    let text = fs::read_to_string(stage.directory.path().join(name)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// A cancel command that notes an argument in a file of the study's.
fn noting(directory: &Path, argument: &str) -> Vec<String> {
    let file = directory.join("cancelled").display().to_string();
    ["sh", "-c", "echo \"$1\" >>\"$0\"", &file, argument].map(str::to_owned).to_vec()
}

/// A stage whose cancel command notes `argument`.
fn stage_that_notes(part: &str, script: &str, argument: &str) -> Stage {
    Stage::with(part, |config| {
        impatient(config);
        let cancel = noting(&config.scratch, argument);
        let cancel: Vec<&str> = cancel.iter().map(String::as_str).collect();
        config.launcher = Some(launcher(script, &cancel));
    })
}

pub(crate) fn launched_workers_run_trials_in_a_session_of_their_own() {
    for script in [BECOMES, STAYS, FAR_AWAY] {
        let mut stage = behind("good", launcher(script, &[]));
        stage.executor().start().unwrap();
        let first = stage.run(1);
        assert_eq!(first.outcome, Outcome::Completed, "{script}");
        let worker = first.worker.as_ref().unwrap();
        assert!(!worker.node.is_empty() && worker.name == "a stand-in" && worker.device == "cpu", "{worker:?}");
        assert!(stage.run(2).completed() && stage.run(3).completed());
        let [pid] = stage.pids()[..] else { panic!("one process ran them all: {:?}", stage.pids()) };
        assert_ne!(getsid(Some(Pid::from_raw(pid))).unwrap(), getsid(None).unwrap(), "{script}");
        stage.close();
    }
}

pub(crate) fn a_launcher_s_status_is_its_worker_s_and_never_an_answer() {
    for script in [BECOMES, STAYS] {
        let outcomes = behind("is_killed", launcher(script, &[])).fault_then_good();
        assert!(outcomes.iter().all(|outcome| crashed_by(outcome, 9)), "{outcomes:?}");
    }
    let outcomes = behind("segfaults", launcher(STAYS, &[])).fault_then_good();
    assert!(outcomes.iter().all(|outcome| crashed_by(outcome, 11)), "{outcomes:?}");
    for outcome in behind("leaves_without_an_answer", launcher(STAYS, &[])).fault_then_good() {
        assert!(matches!(outcome, Outcome::Crashed { signal: None, status: Some(0), .. }), "{outcome:?}");
    }
    for outcome in
        behind("leaves_with_status_9", launcher("\"$@\"; s=$?; echo node lost >&2; exit $s", &[])).fault_then_good()
    {
        let Outcome::Crashed { signal: None, status: Some(9), log } = outcome else { panic!("{outcome:?}") };
        assert_eq!(log, "the last words\\u{7}\nnode lost", "the worker's words, and the launcher's");
    }
    let outcomes = behind("prints_half_a_line_and_leaves", launcher(STAYS, &[])).fault_then_good();
    assert!(outcomes.iter().all(|outcome| protocol_error(outcome, "within a line")), "{outcomes:?}");
    // A kill that this machine's counter counts is no sign of a worker on another.
    for outcome in behind_with("is_killed_for_host_memory", launcher(STAYS, &[]), |config| {
        config.oom_kills = batchtune::trial::process::OomKills::default();
    })
    .fault_then_good()
    {
        assert!(crashed_by(&outcome, 9), "{outcome:?}");
    }
}

pub(crate) fn a_worker_out_of_reach_of_signals_is_cancelled() {
    for part in ["hangs", "ignores_sigterm_and_hangs"] {
        let outcomes = behind_with(part, launcher(FAR_AWAY, &KILL), impatient).fault_then_good();
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::TimedOut { seconds: 0.3 }), "{outcomes:?}");
    }
}

pub(crate) fn a_worker_whose_launcher_is_killed_is_cancelled() {
    let script = "echo $$ >>\"$BATCHTUNE_TEST_PIDS.launchers\"; setsid -w \"$@\"; exit $?";
    let mut stage = behind("hangs", launcher(script, &KILL));
    for round in 0..5 {
        let pids = stage.directory.path().join("pids.launchers");
        let kill_launcher = &mut |seen| {
            if matches!(seen, Observation::Step { .. }) {
                let text = fs::read_to_string(&pids).unwrap();
                let launcher: i32 = text.lines().next_back().unwrap().parse().unwrap();
                kill(Pid::from_raw(launcher), Signal::SIGKILL).unwrap();
            }
        };
        let record = stage.executor().run(&spec(2 * round + 1, Purpose::Ladder), kill_launcher).unwrap();
        assert!(crashed_by(&record.outcome, 9), "{:?}", record.outcome);
        assert!(stage.run(2 * round + 2).completed());
    }
    stage.close();
}

pub(crate) fn every_launched_worker_is_cancelled_whatever_its_end() {
    for (part, script) in [("answers_uncleanly", BECOMES), ("is_killed", STAYS), ("hangs", STAYS)] {
        let mut stage = stage_that_notes(part, script, "{pid}");
        let _ = (stage.run(1), stage.run(2), stage.run(3));
        drop(stage.executor.take());
        let pids: Vec<String> = stage.pids().iter().map(ToString::to_string).collect();
        assert_eq!(lines_of(&stage, "cancelled"), pids, "{part}");
    }
}

pub(crate) fn a_launcher_that_starts_nothing_is_told_from_a_worker_that_fails() {
    let refuses = "echo 'error: no such gres' >&2; exit 201";
    let error = behind("good", launcher(refuses, &[])).executor().start().unwrap_err();
    assert!(matches!(&error, ExecutorError::Launcher { status, .. } if status == "exit status: 201"), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("no such gres") && text.contains("hint") && text.contains("`sh`"), "{text}");

    let spec = LauncherSpec {
        command: LauncherCommand::Own(templates(&["/nonexistent/srun"], Holder::Command)),
        workers: 1,
        start_timeout: Duration::from_secs(60),
        cancel: Some(Vec::new()),
    };
    let error = behind("good", of_spec(&spec)).executor().start().unwrap_err().to_string();
    assert!(error.contains("status: 127") && error.contains("No such file"), "{error}");

    // A worker that spoke and then left has failed itself.
    let error = behind("refuses_the_device", launcher(STAYS, &[])).executor().start().unwrap_err();
    assert!(matches!(error, ExecutorError::DeviceUnavailable(_)), "{error:?}");
    // Machines greet whoever logs in.
    let greets = "echo Welcome!; echo 'No mail.'; exec \"$@\"";
    behind("good", launcher(greets, &[])).executor().start().unwrap();
    let never_stops = "while echo Welcome!; do :; done";
    let error = behind("good", launcher(never_stops, &[])).executor().start().unwrap_err();
    assert!(matches!(error, ExecutorError::LauncherOutput { .. }), "{error:?}");
    assert!(error.to_string().contains("`Welcome!`"), "{error}");
    let error = behind(REAL_WORKER, launcher("exec 0<&-; exec \"$@\"", &[])).executor().start().unwrap_err();
    assert!(matches!(error, ExecutorError::LauncherInput { .. }), "{error:?}");
}

pub(crate) fn a_worker_that_never_starts_is_an_outcome_of_its_own() {
    let pending = |flag: &str| format!("if [ {flag} ]; then echo queued >&2; exec sleep 600; fi; exec \"$@\"");
    let spec = |script: &str, cancel: Vec<String>| LauncherSpec {
        command: LauncherCommand::Own(templates(&["sh", "-c", script, "{trial}"], Holder::Command)),
        workers: 1,
        start_timeout: Duration::from_millis(300),
        cancel: Some(cancel.iter().map(|text| Template::parse(text, Holder::Cancel).unwrap()).collect()),
    };
    let mut stage = Stage::with("good", |config| {
        impatient(config);
        config.launcher = Some(of_spec(&spec(&pending("1"), noting(&config.scratch, "{trial}"))));
    });
    let error = stage.executor().start().unwrap_err();
    let ExecutorError::NotStarted { seconds, log, .. } = &error else { panic!("{error:?}") };
    assert_eq!((*seconds, log.as_str()), (0.3, "queued"));
    assert!(error.to_string().contains("start_timeout"), "{error}");
    let cancelled = lines_of(&stage, "cancelled");
    assert!(cancelled.len() == 1 && cancelled[0].starts_with("tune-faults-"), "{cancelled:?}");

    // In the middle of a study.
    let mut stage = Stage::with("answers_uncleanly", |config| {
        let flag = config.scratch.join("full").display().to_string();
        let mut of = spec(&pending(&format!("-e {flag}")), noting(&config.scratch, "{trial}"));
        // The first worker may take its time on a busy machine.
        of.start_timeout = Duration::from_secs(5);
        config.launcher = Some(of_spec(&of));
    });
    assert!(stage.run(1).completed());
    fs::write(stage.directory.path().join("full"), "").unwrap();
    let outcome = stage.run(2).outcome;
    assert!(matches!(&outcome, Outcome::NotStarted { seconds: 5.0, log } if log == "queued"), "{outcome:?}");
    assert_eq!(outcome.name(), "not_started");
    stage.close();
}

pub(crate) fn a_trial_whose_worker_lost_us_is_run_again() {
    let mut stage = behind("loses_its_lease_once", launcher(STAYS, &[]));
    let record = stage.run(1);
    assert_eq!((record.outcome, record.samples.len()), (Outcome::Completed, 1), "nothing is left of the first run");
    assert_eq!(stage.pids().len(), 2);
    stage.close();
    // A worker that always does so is broken.
    let mut stage = Stage::new("loses_its_lease");
    let outcome = stage.run(1).outcome;
    assert!(matches!(outcome, Outcome::Crashed { signal: None, status: Some(LEASE_EXPIRED), .. }), "{outcome:?}");
    stage.close();
}

/// A stage, and a group of two of its workers.
fn group_of_two(part: &str) -> (Stage, ReplicaExecutor) {
    let mut of_stage = None;
    let stage = Stage::with(part, |config| {
        config.launcher = Some(launcher(STAYS, &[]));
        of_stage = Some(config.clone());
    });
    (stage, ReplicaExecutor::new(of_stage.unwrap(), vec![DeviceChoice::Cpu; 2]))
}

pub(crate) fn replicas_on_two_machines_hear_each_other_and_who_is_gone() {
    let (stage, mut group) = group_of_two("talks_to_the_other_replica");
    let mut run = |id| group.run(&spec(id, Purpose::Ladder), &mut |_| {}).unwrap();
    assert!(run(2).completed() && run(4).completed());
    let record = run(5);
    let [first, second] = &record.ranks[..] else { panic!("{record:?}") };
    assert!(
        first.node != second.node && record.worker.as_ref() == Some(first),
        "each is on its own machine: {record:?}"
    );
    assert!(crashed_by(&record.outcome, 9) && record.rank == Some(0), "{record:?}");
    assert!(run(6).completed(), "a new group goes on");
    drop(group);
    let heard = lines_of(&stage, "heard");
    let count = |line: &str| heard.iter().filter(|heard| *heard == line).count();
    assert_eq!((count("0: [7, 0]"), count("1: [7, 1]")), (4, 4), "{heard:?}");
    assert!(count("0: []") >= 1, "rank 1 was told at once: {heard:?}");
    assert_eq!(stage.pids().len(), 4);
    stage.close();
}

pub(crate) fn a_trial_whose_group_lost_us_is_run_again() {
    let (stage, mut group) = group_of_two("loses_its_lease_once");
    let record = group.run(&spec(1, Purpose::Ladder), &mut |_| {}).unwrap();
    assert_eq!((record.outcome, record.rank), (Outcome::Completed, None));
    drop(group);
    assert_eq!(stage.pids().len(), 4, "a second group ran it");
    stage.close();
}

pub(crate) fn a_real_worker_leaves_when_it_hears_nothing_for_its_lease() {
    let (mut child, mut output, _) = start(REAL_WORKER);
    let model = ModelSpec { family: "stuck".to_owned(), ..ModelSpec::default() };
    let open = serde_json::json!({
        "message": "open", "workload": WorkloadSpec { model, ..workload("toy") }, "scratch": std::env::temp_dir(),
        "lease": Duration::from_millis(200),
    });
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "{open}").unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(LEASE_EXPIRED), "its input is still open");
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    drop(input);
}

pub(crate) fn an_idle_worker_is_pinged_for_as_long_as_the_driver_lives() {
    let mut stage = Stage::with("counts_pings", |config| config.patience.lease = Duration::from_millis(60));
    stage.executor().start().unwrap();
    let count = || lines_of(&stage, "pings").len();
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while count() < 5 && std::time::Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(count() >= 5, "nobody asked for a trial, and it is pinged");
    assert!(stage.run(2).completed());
    stage.close();
}
