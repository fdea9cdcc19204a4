//! A worker's course where nothing goes wrong in a trial: its start, the next trial, a stop, the budget's end.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use batchtune::memory::LimitSpec;
use batchtune::trial::protocol::PROTOCOL;
use batchtune::trial::{Executor, ExecutorError, Observation, Outcome, Purpose, TrialRecord, TrialSpec};
use batchtune::units::Fraction;

use crate::PATIENCE;
use crate::stage::{Holdings, Stage, impatient, living_members};
use crate::toy::spec;

pub(crate) fn a_leak_would_be_seen() {
    let before = Holdings::now();
    assert!(Holdings::now().is_within(before));

    let file = fs::File::open("/proc/self/stat").unwrap();
    assert!(!Holdings::now().is_within(before), "a descriptor");
    drop(file);

    let (release, parked) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || parked.recv());
    assert!(!Holdings::now().is_within(before), "a thread");
    drop(release);
    let _ = thread.join().unwrap();

    let mut child = Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
    let group = i32::try_from(child.id()).unwrap();
    assert!(!Holdings::now().is_within(before), "a process");
    assert_eq!(living_members(group).len(), 1, "a member of a group");
    child.kill().unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while !living_members(group).is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(living_members(group), Vec::<String>::new());
    assert!(!Holdings::now().is_within(before), "a zombie");
    child.wait().unwrap();
    Holdings::assert_back_at(before);
}

pub(crate) fn a_good_worker_is_used_again() {
    let mut stage = Stage::new("good");
    let facts = stage.executor().start().unwrap();
    let mut seen = Vec::new();
    let three = TrialSpec { steps: 3, ..spec(1, Purpose::Ladder) };
    let record = stage.executor().run(&three, &mut |observation| seen.push(observation)).unwrap();
    assert_eq!(record.outcome, Outcome::Completed);
    assert_eq!((record.samples.len(), record.samples[2].step), (3, 3));
    assert_eq!(record.warnings, ["mind\\u{7} this"], "what a terminal would obey is escaped");
    assert_eq!(seen.iter().filter(|o| matches!(o, Observation::Step { .. })).count(), 3);
    assert_eq!(facts.limit_bytes, 1 << 29);
    // What is read back from a journal is what was measured, to the last bit.
    let line = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<TrialRecord>(&line).unwrap(), record);
    assert!(stage.run(2).completed() && stage.run(3).completed());
    assert_eq!(stage.pids().len(), 1, "one process ran them all");
    stage.close();
}

pub(crate) fn a_worker_that_is_not_clean_is_replaced() {
    let mut stage = Stage::new("answers_uncleanly");
    assert!(stage.run(1).completed() && stage.run(2).completed());
    assert_eq!(stage.pids().len(), 2);
    stage.close();
}

pub(crate) fn a_worker_that_cannot_start_is_an_error_that_says_why() {
    let start = |part: &str| {
        let mut stage = Stage::with(part, |config| {
            impatient(config);
            if part == "never_says_hello" {
                config.patience.start = Duration::from_millis(200);
            }
        });
        let error = stage.executor().start().unwrap_err();
        if part != "never_says_hello" {
            stage.close();
        }
        error.to_string()
    };
    let version = start("speaks_another_version");
    assert!(version.contains("protocol 99") && version.contains(&format!("expected {PROTOCOL}")), "{version}");
    assert!(!version.contains('\u{1b}'), "{version:?}");
    assert!(start("never_says_hello").contains("said nothing for 0 s"));
    let died = start("dies_at_the_start");
    assert!(died.contains("exit status: 3") && died.contains("missing library"), "{died}");
    assert!(start("says_nonsense_at_the_start").contains("`Welcome!`"));
    assert_eq!(start("refuses_the_device"), "no such card");
    assert_eq!(start("refuses_the_workload"), "no such model");

    let mut stage = Stage::with("good", |config| config.command.program = "/nonexistent/tune".into());
    assert!(matches!(stage.executor().start(), Err(ExecutorError::Spawn { program, .. }) if program.contains("tune")));
}

pub(crate) fn an_automatic_limit_is_pinned_for_the_workers_after_the_first() {
    let mut stage = Stage::new("tells_its_limit");
    assert_eq!(stage.run(1).warnings[1], "\"auto\"");
    assert_eq!(stage.run(2).warnings[1], format!("{{\"bytes\":{}}}", 1 << 29));
    assert_eq!(stage.pids().len(), 2);
    stage.close();
    let mut stage = Stage::with("tells_its_limit", |config| config.workload.limit = LimitSpec::Fraction(Fraction(0.5)));
    assert_eq!(
        (stage.run(1).warnings[1].as_str(), stage.run(2).warnings[1].as_str()),
        (r#"{"fraction":0.5}"#, r#"{"fraction":0.5}"#)
    );
    stage.close();
}

pub(crate) fn the_first_interrupt_waits_for_the_step_and_the_second_for_nothing() {
    let mut stage = Stage::with("ignores_a_stop", |config| config.patience.leave = Duration::ZERO);
    let interrupt = stage.interrupt.clone();
    let long = TrialSpec { steps: u32::MAX, ..spec(1, Purpose::Ladder) };
    let mut steps_after_first = 0;
    let record = stage.executor().run(&long, &mut |seen| {
        if let Observation::Step { step, .. } = seen {
            match step {
                5 => interrupt.request(),
                6.. => steps_after_first += 1,
                _ => {}
            }
            if step == 20 {
                interrupt.request();
            }
        }
    });
    assert_eq!(record.unwrap().outcome, Outcome::Cancelled);
    assert!(steps_after_first >= 15, "the first request let the worker go on");
    // Nothing more is started.
    let pids = stage.pids().len();
    assert_eq!(stage.run(2).outcome, Outcome::Cancelled);
    assert_eq!(stage.pids().len(), pids);
    stage.close();
}

pub(crate) fn an_interrupt_before_the_first_step_waits_for_no_build() {
    let mut stage = Stage::with("hangs_before_its_first_step", |config| {
        config.patience.stop = Duration::from_millis(100);
        // The test would hang.
        config.patience.build = PATIENCE * 2;
    });
    let interrupt = stage.interrupt.clone();
    let record = stage.executor().run(&spec(1, Purpose::Ladder), &mut |seen| {
        // It says that it builds.
        if matches!(seen, Observation::Log(_)) {
            interrupt.request();
        }
    });
    assert_eq!(record.unwrap().outcome, Outcome::Cancelled);
    stage.close();
}

pub(crate) fn the_end_of_the_budget_ends_a_trial() {
    let mut stage = Stage::with("ignores_a_stop", |config| {
        config.deadline = Some(Instant::now() + Duration::from_secs(2));
        config.patience.stop = Duration::from_millis(100);
    });
    let long = TrialSpec { steps: u32::MAX, ..spec(1, Purpose::Ladder) };
    assert_eq!(stage.executor().run(&long, &mut |_| {}).unwrap().outcome, Outcome::Cancelled);
    assert_eq!(stage.run(2).outcome, Outcome::Cancelled);
    drop(stage.executor.take());
}
