//! What a trial does step by step, and how it ends.

use std::io::{BufReader, Write};

use super::stand_ins::Script;
use super::{run, run_with, spec};
use crate::memory::{Phase, Trim};
use crate::trial::Outcome;
use crate::trial::protocol::FromWorker;
use crate::trial::spec::Purpose;
use crate::trial::worker::Inbox;

#[test]
fn a_trial_steps_updates_and_samples_in_order() {
    let told = run(&spec(Purpose::Ladder, 4), &Script::default());
    assert_eq!(told.outcome, Outcome::Completed);
    assert_eq!(told.samples(), [3, 5], "every third step and the last one");
    let expected = "build, step 0, load, forward, backward, step 1, load, forward, backward, optimizer, \
                    step 2, load, forward, backward, sample 3 Estimate, step 3, load, forward, backward, optimizer, \
                    step 4, load, forward, backward, sample 5 Estimate, dropped, end, trim";
    assert_eq!(told.calls.join(", "), expected, "tensors are dropped before the trial ends on the device");
    let measurement = told.measurement.unwrap();
    assert_eq!((measurement.steps, measurement.peak_allocated_bytes), (4, 6));
    assert_eq!((measurement.first_loss, measurement.last_loss), (Some(1.0), Some(0.2)));
    assert!(told.clean && measurement.samples_per_second > 0.0);
}

#[test]
fn every_sample_says_what_the_worker_holds_of_the_host_and_what_is_left() {
    let told = run(&spec(Purpose::Ladder, 4), &Script::default());
    let host = |message: &FromWorker| match message {
        FromWorker::Sample { sample, .. } => Some(sample.host_bytes.zip(sample.host_available_bytes)),
        _ => None,
    };
    let samples: Vec<_> = told.messages.iter().filter_map(host).collect();
    assert_eq!(samples.len(), 2);
    assert!(samples.iter().all(|host| host.is_some_and(|(held, available)| held > 0 && available > 0)));
}

#[test]
fn trims_come_when_the_point_says() {
    for (trim, times) in [(Trim::Never, 1), (Trim::AfterUpdate, 8), (Trim::EveryK, 3), (Trim::AfterEval, 2)] {
        let mut soak = spec(Purpose::Soak, 27);
        soak.point.trim = trim;
        // The last one is the end of the trial.
        assert_eq!(run(&soak, &Script::default()).count("trim"), times, "{trim:?}");
    }
}

#[test]
fn a_model_with_running_statistics_is_told_of() {
    let told = |batch_norm| {
        let told = run(&spec(Purpose::Ladder, 4), &Script { batch_norm, ..Script::default() });
        told.measurement.unwrap().has_batch_norm
    };
    assert!(told(true) && !told(false));
}

#[test]
fn parameters_without_a_gradient_are_named_once() {
    let names = |count: usize| (0..count).map(|i| format!("block.{i}.norm")).collect::<Vec<_>>();
    let warnings = |count| {
        let told = run(&spec(Purpose::Ladder, 4), &Script { unreached: names(count), ..Script::default() });
        told.warnings().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(warnings(0).is_empty());
    let [one] = &warnings(1)[..] else { panic!("not one warning") };
    assert!(one.starts_with("1 parameter got no gradient in the first step: `block.0.norm`. "), "{one}");
    let long = Script { unreached: vec!["é".repeat(1 << 20)], ..Script::default() };
    assert!(run(&spec(Purpose::Ladder, 4), &long).warnings()[0].chars().count() < 5_000, "names are anybody's");
    let [many] = &warnings(11)[..] else { panic!("not one warning") };
    assert!(many.contains("`block.7.norm` and 3 more. "), "{many}");
    assert!(many.contains("candle_nn::LayerNorm"));
}

#[test]
fn a_stop_ends_the_trial_after_the_step() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let inbox = Inbox::listen(BufReader::new(reader), |_| {});
    let told = run_with(&spec(Purpose::Ladder, 1_000_000), &Script::default(), &inbox, |message| {
        if matches!(message, FromWorker::Step { step: 2, .. }) {
            writer.write_all(b"{\"message\":\"stop\"}\n").unwrap();
            while !inbox.stop_requested() {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!((told.outcome.clone(), told.steps(), told.clean), (Outcome::Cancelled, 2, true));
}

#[test]
fn out_of_memory_is_told_with_its_figures_step_and_phase() {
    let at = |phase, count| {
        let script = Script { out_of_memory: Some((phase, count)), ..Script::default() };
        let told = run(&spec(Purpose::Ladder, 4), &script);
        assert!(!told.clean, "the device is not trusted after it");
        let figures = (Some(5), Some(7), Some(8), Some(10));
        match told.outcome {
            Outcome::OutOfMemory { requested_bytes, allocated_bytes, reserved_bytes, limit_bytes, step, phase } => {
                assert_eq!((requested_bytes, allocated_bytes, reserved_bytes, limit_bytes), figures);
                (step, phase)
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(at(Phase::Build, 1), (None, Some(Phase::Build)));
    assert_eq!(at(Phase::Load, 1), (Some(0), Some(Phase::Load)));
    assert_eq!(at(Phase::Backward, 3), (Some(2), Some(Phase::Backward)));
    assert_eq!(at(Phase::Optimizer, 2), (Some(3), Some(Phase::Optimizer)));
}

#[test]
fn failures_of_the_workload_end_in_their_own_outcomes() {
    let outcome = |script: Script| {
        let told = run(&spec(Purpose::Ladder, 4), &script);
        assert_eq!(told.measurement, None);
        (told.outcome, told.clean)
    };
    let (failed, clean) = outcome(Script { error: Some(2), ..Script::default() });
    assert_eq!((failed, clean), (Outcome::Failed { message: "shape mismatch in matmul".to_owned() }, false));
    let (failed, clean) = outcome(Script { panic: Some(1), ..Script::default() });
    assert_eq!((failed, clean), (Outcome::Failed { message: "it panicked: index 9 out of range".to_owned() }, false));
    let (failed, clean) = outcome(Script { device_error: Some(1), ..Script::default() });
    assert_eq!((failed, clean), (Outcome::DeviceError { message: "an illegal memory access".to_owned() }, false));
    let (diverged, clean) = outcome(Script { no_number: Some(3), ..Script::default() });
    assert_eq!((diverged, clean), (Outcome::Diverged { step: 3 }, true));
    // Two steps an update.
    let (diverged, clean) = outcome(Script { lost_update: Some(2), ..Script::default() });
    assert_eq!((diverged, clean), (Outcome::Diverged { step: 3 }, true));
}

#[test]
fn a_worker_with_memory_left_is_not_clean() {
    let left = |left_bytes| run(&spec(Purpose::Ladder, 1), &Script { left_bytes, ..Script::default() }).clean;
    assert!(left(8 << 20));
    assert!(!left((8 << 20) + 1));
}
