//! What probes and soaks do beside their steps, and trials that go on until their times can be believed.

use std::fs;
use std::io::{BufReader, Write};
use std::time::Duration;

use super::stand_ins::Script;
use super::{Told, run, run_with, spec};
use crate::memory::Phase;
use crate::trial::Outcome;
use crate::trial::protocol::FromWorker;
use crate::trial::spec::{Purpose, TrialSpec, trace_path};
use crate::trial::statistics::Trust;
use crate::trial::worker::Inbox;

/// A probe of five updates of two steps.
fn probe() -> TrialSpec {
    TrialSpec { warmup_steps: 2, steps: 8, ..spec(Purpose::Probe, 8) }
}

#[test]
fn a_probe_is_evaluated_after_its_fourth_update_and_leaves_a_whole_recording() {
    let told = run(&probe(), &Script::default());
    assert_eq!(told.outcome, Outcome::Completed);
    assert_eq!((told.steps(), told.count("optimizer")), (10, 5));
    let calls = told.calls.join(", ");
    assert!(calls.starts_with("sink, begin without C, build"), "{calls}");
    assert!(calls.contains("step 7, load, forward, backward, optimizer, load, evaluation"), "{calls}");
    assert!(calls.contains("evaluation, step 8"), "{calls}");
    let written = fs::read(trace_path(told.scratch.path(), &probe().point)).unwrap();
    assert!(crate::memory::trace::file::read(&written).is_ok());
    assert_eq!(fs::read_dir(told.scratch.path()).unwrap().count(), 1, "no draft stays");
}

#[test]
fn a_probe_of_a_run_with_checkpoints_rehearses_one_and_writes_none() {
    let told = run(&probe(), &Script { has_checkpoints: true, ..Script::default() });
    let calls = told.calls.join(", ");
    assert!(calls.contains("evaluation, checkpoint, step 8"), "{calls}");
    assert_eq!(told.measurement.unwrap().training_samples, Some(100));
    assert_eq!(fs::read_dir(told.scratch.path()).unwrap().count(), 1, "the recording");
}

#[test]
fn a_probe_that_does_not_fit_leaves_no_recording() {
    let script = Script { out_of_memory: Some((Phase::Forward, 3)), ..Script::default() };
    let told = run(&probe(), &script);
    assert!(matches!(told.outcome, Outcome::OutOfMemory { .. }));
    assert_eq!(fs::read_dir(told.scratch.path()).unwrap().count(), 0);
    assert!(told.calls.join(", ").contains("no sink"), "{:?}", told.calls);
}

#[test]
fn a_soak_runs_the_planned_accumulation_an_evaluation_and_a_checkpoint() {
    let told = run(&spec(Purpose::Soak, 2), &Script::default());
    assert_eq!(told.outcome, Outcome::Completed);
    assert_eq!((told.steps(), told.count("optimizer")), (8, 2), "two updates of four steps");
    let calls = told.calls.join(", ");
    let middle = "step 3, load, forward, backward, optimizer, load, evaluation, load, evaluation, load, evaluation, \
                  load, evaluation, checkpoint, step 4";
    assert!(calls.contains(middle), "{calls}");
    let measurement = told.measurement.unwrap();
    assert_eq!((measurement.evaluation_loss, measurement.checkpoint_bytes), (Some(0.25), Some(64)));
    assert_eq!(fs::read_dir(told.scratch.path()).unwrap().count(), 0, "the checkpoint is removed");
}

#[test]
fn a_disk_too_full_for_a_checkpoint_is_a_warning() {
    let told = run(&spec(Purpose::Soak, 2), &Script { live_bytes: u64::MAX / 4, ..Script::default() });
    assert_eq!(told.outcome, Outcome::Completed);
    assert!(told.warnings()[0].contains("less than twice its size"), "{:?}", told.warnings());
    assert_eq!(told.measurement.unwrap().checkpoint_bytes, None);

    let told = run(&spec(Purpose::Soak, 2), &Script { checkpoint_fails: true, ..Script::default() });
    assert_eq!(told.outcome, Outcome::Completed);
    assert!(told.warnings()[0].contains("No space left"), "{:?}", told.warnings());
    assert_eq!(fs::read_dir(told.scratch.path()).unwrap().count(), 0, "half a checkpoint is removed too");
}

/// A trial of two micro-batches an update whose times never settle, with room for six updates and more.
fn restless() -> (TrialSpec, Script) {
    (spec(Purpose::Ladder, 6), Script { uneven: Duration::from_millis(4), ..Script::default() })
}

fn extensions(told: &Told) -> Vec<u32> {
    let of = |message: &FromWorker| match message {
        FromWorker::Extended { total, .. } => Some(*total),
        _ => None,
    };
    told.messages.iter().filter_map(of).collect()
}

#[test]
fn a_trial_whose_times_do_not_settle_goes_on_by_whole_updates_and_ends_at_its_bound() {
    let (spec, script) = restless();
    let told = run(&spec, &script);
    assert_eq!(told.outcome, Outcome::Completed);
    // One of warm-up and six, then an update at a time up to 1 + 18 steps, of which the last would begin an update.
    assert_eq!(extensions(&told), [8, 10, 12, 14, 16, 18]);
    assert_eq!((told.steps(), told.count("optimizer")), (18, 9));
    assert_eq!(told.samples(), [3, 6, 9, 12, 15, 18], "the cadence is kept where it goes on");
    let measurement = told.measurement.unwrap();
    assert_eq!((measurement.steps, measurement.trust), (17, Some(Trust::Wide)));
    assert_eq!(measurement.peak_allocated_bytes, 19, "figures are over all steps");
}

#[test]
fn a_fault_in_an_extension_is_the_trial_s_outcome() {
    let (spec, script) = restless();
    let told = run(&spec, &Script { out_of_memory: Some((Phase::Forward, 10)), ..script });
    assert!(matches!(told.outcome, Outcome::OutOfMemory { step: Some(9), .. }), "{:?}", told.outcome);
}

#[test]
fn a_stop_in_an_extension_ends_it_with_the_figures_that_are_there() {
    let (spec, script) = restless();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let inbox = Inbox::listen(BufReader::new(reader), |_| {});
    let told = run_with(&spec, &script, &inbox, |message| {
        if matches!(message, FromWorker::Step { step: 9, .. }) {
            writer.write_all(b"{\"message\":\"stop\"}\n").unwrap();
            while !inbox.stop_requested() {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!((told.outcome.clone(), told.steps()), (Outcome::Completed, 9));
    assert_eq!(told.samples(), [3, 6, 9]);
    assert_eq!(told.measurement.unwrap().steps, 8);
}

#[test]
fn probes_and_soaks_are_as_long_as_they_are_asked_to_be() {
    let (_, script) = restless();
    for spec in [probe(), spec(Purpose::Soak, 11)] {
        let told = run(&spec, &script);
        assert_eq!((told.steps() as u32, extensions(&told)), (spec.total_steps(), vec![]), "{}", spec.purpose);
    }
}
