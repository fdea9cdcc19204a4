//! Batches on their way to the device, and trials of the loader alone.

use std::io::{BufReader, Write};
use std::time::Duration;

use super::stand_ins::{Calls, FakeSupplies, Script};
use super::{run, spec};
use crate::trial::protocol::FromWorker;
use crate::trial::spec::{Point, Purpose, TrialId, TrialSpec};
use crate::trial::worker::open::Supplies;
use crate::trial::worker::{Inbox, Weighed, throughput};
use crate::trial::{Measurement, Outcome};

#[test]
fn batches_staged_on_the_device_are_copied_ahead() {
    let mut staged = spec(Purpose::Loader, 2);
    staged.point.device_prefetch = 2;
    let told = run(&staged, &Script::default());
    assert!(told.calls.join(", ").starts_with("build, step 0, load, load, load, forward"), "{:?}", told.calls);
    assert_eq!(told.count("load"), 5, "three steps and two batches ahead");
}

#[test]
fn a_device_that_copies_beside_the_steps_takes_a_batch_before_the_next_one_is_staged_over_it() {
    let script = Script { has_stager: true, ..Script::default() };
    for (pin_memory, workers) in [(false, 0), (true, 0), (true, 1)] {
        for (device_prefetch, first, copies) in
            [(0, "stage 0, take 0, load", 3), (1, "stage 0, load, stage 1, take 0, load", 4)]
        {
            let mut staged = spec(Purpose::Loader, 2);
            staged.point = Point { pin_memory, device_prefetch, loader_workers: workers, ..staged.point };
            let told = run(&staged, &script);
            assert_eq!(told.outcome, Outcome::Completed);
            let calls = told.calls.join(", ");
            assert!(calls.starts_with(&format!("build, step 0, {first}, forward")), "{calls}");
            assert_eq!(told.calls.iter().filter(|call| call.starts_with("stage")).count(), copies);
            assert_eq!((told.count("take 0"), told.count("take 1"), told.count("take 2")), (1, 1, 1));
            assert!(told.clean && told.warnings().is_empty());
        }
    }
}

#[test]
fn a_slow_source_is_in_the_samples_per_second_and_beside_them() {
    let slow = Script { slow_source: Duration::from_millis(5), ..Script::default() };
    let measurement = run(&spec(Purpose::Ladder, 8), &slow).measurement.unwrap();
    let rate = measurement.samples_per_second;
    assert!(rate <= 4.0 / 0.005, "four samples take at least 5 ms: {rate}");
    let (low, high) = measurement.samples_per_second_interval;
    assert!(low <= rate && rate <= high, "{low} {rate} {high}");
    assert!(measurement.phases.data_wait_ms >= 5.0 && measurement.data_wait_fraction > 0.0);
    // Every step is in the fraction, and so is every wait.
    let waited = measurement.data_wait_fraction * f64::from(measurement.steps) * measurement.step_ms.p95;
    assert!(waited >= 5.0, "{measurement:?}");
}

#[test]
fn training_batches_are_weighed() {
    let supplies = FakeSupplies::new(&Script::default(), &Calls::default());
    let weighed = Weighed::new(&supplies);
    let ended = |measurement| FromWorker::Ended {
        trial: TrialId(3),
        outcome: Outcome::Completed,
        measurement: Some(measurement),
        clean: true,
    };
    let bytes = |ended| match ended {
        FromWorker::Ended { measurement, .. } => measurement.and_then(|measurement| measurement.batch_bytes),
        other => panic!("{other:?}"),
    };
    assert_eq!(bytes(weighed.enter_into(ended(Measurement::default()))), None, "nothing was loaded");
    let mut point = spec(Purpose::Ladder, 1).point;
    for batch_size in [4, 8, 2] {
        point.batch_size = batch_size;
        weighed.training_batches(&point).next_batch().unwrap();
    }
    weighed.evaluation_batches(&Point { batch_size: 100, ..point }).next_batch().unwrap();
    assert_eq!(bytes(weighed.enter_into(ended(Measurement::default()))), Some(64), "of eight samples and targets");
}

#[test]
fn samples_that_were_skipped_are_a_warning() {
    let told = run(&spec(Purpose::Ladder, 2), &Script { skipped: 2, ..Script::default() });
    assert_eq!(told.outcome, Outcome::Completed);
    assert_eq!(told.warnings(), ["2 bad samples skipped, the first of them: `7.jpg` is empty"]);
    assert!(run(&spec(Purpose::Ladder, 2), &Script::default()).warnings().is_empty());
}

/// What a trial of the loader alone says.
fn load(spec: &TrialSpec, script: &Script, inbox: &Inbox) -> (Outcome, Option<Measurement>, Vec<String>) {
    let calls = Calls::default();
    let supplies = FakeSupplies::new(script, &calls);
    let FromWorker::Ended { outcome, measurement, clean: true, .. } = throughput::run(spec, &supplies, inbox).unwrap()
    else {
        panic!("not the end of a clean trial")
    };
    let calls = calls.borrow().clone();
    (outcome, measurement, calls)
}

#[test]
fn the_loader_alone_is_timed_by_whole_rounds_and_nothing_is_built() {
    let (_keep_open, input) = std::io::pipe().map(|(reader, writer)| (writer, BufReader::new(reader))).unwrap();
    let inbox = Inbox::listen(input, |_| {});
    let slow = Script { slow_source: Duration::from_millis(2), ..Script::default() };
    let mut alone = spec(Purpose::Throughput, 5);
    alone.point.loader_workers = 4;
    let (outcome, measurement, calls) = load(&alone, &slow, &inbox);
    let measurement = measurement.unwrap();
    assert_eq!((outcome, measurement.steps), (Outcome::Completed, 8), "two rounds of four");
    let rate = measurement.batches_per_second.unwrap();
    assert!(rate > 0.0 && rate <= 500.0, "{rate}");
    assert!((measurement.samples_per_second - 4.0 * rate).abs() < 1e-6);
    assert!(calls.is_empty(), "{calls:?}");
}

#[test]
fn a_stop_ends_the_loader_alone_between_two_batches() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let inbox = Inbox::listen(BufReader::new(reader), |_| {});
    writer.write_all(b"{\"message\":\"stop\"}\n").unwrap();
    while !inbox.stop_requested() {
        std::thread::yield_now();
    }
    let (outcome, measurement, _) = load(&spec(Purpose::Throughput, 1_000_000), &Script::default(), &inbox);
    assert_eq!((outcome, measurement), (Outcome::Cancelled, None));
}
