//! A run in which every step has another length, forecast from seven tiny probes and trained for real on the virtual
//! device: the same live bytes and the same reserved bytes, step by step.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must panic")]

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Mutex;

use batchtune::data::Batch;
use batchtune::device::{self, DeviceChoice, DeviceSession, LargestRequest};
use batchtune::memory::forecast::long_run::{LongRunFigures, play};
use batchtune::memory::forecast::shape::{Axes, LongRun, Shape, ShapeForecaster, ShapeProbe};
use batchtune::memory::forecast::{Method, Releases};
use batchtune::memory::fragmentation::against_need;
use batchtune::memory::policy::native::Native;
use batchtune::memory::{AllocatorKind, Event, LimitSpec, MemorySample, Phase};
use batchtune::model::{BuildContext, ModelSpec, Registry};
use batchtune::train::trainer::Trainer;
use batchtune::train::{BatchNorm, Precision, TrainSpec};
use batchtune::units::{Bytes, GIB};
use candle_core::{Device, Tensor};

batchtune::declare_allocator!();

const LIMIT_BYTES: u64 = 2 * GIB;
const PROBES: [[u64; 2]; 7] = [[2, 8], [3, 8], [2, 12], [3, 12], [2, 20], [4, 16], [3, 25]];
const STEPS: u64 = 24;

/// The virtual device is one at a time in a process.
static DEVICE: Mutex<()> = Mutex::new(());

/// What a run does beside its steps.
#[derive(Clone, Copy)]
struct Schedule {
    accumulation_steps: usize,
    /// Updates after which an evaluation pass comes.
    evaluated: fn(usize) -> bool,
    /// Updates after which a checkpoint comes.
    saved: fn(usize) -> bool,
    /// The shape of an evaluation pass.
    evaluation: [u64; 2],
    /// The cache is handed back at the end of every so many steps; 0 is never.
    release_every: usize,
}

const STEPS_ALONE: Schedule =
    Schedule { accumulation_steps: 1, evaluated: |_| false, saved: |_| false, evaluation: [2, 8], release_every: 0 };

/// Steps of these lengths, with what the device saw and its figures after each.
fn train(shapes: &[[u64; 2]], schedule: Schedule) -> (Vec<Event>, Vec<MemorySample>) {
    let _alone = DEVICE.lock();
    let limit = LimitSpec::Bytes(Bytes(LIMIT_BYTES));
    let mut session = device::open(DeviceChoice::Cpu, limit, AllocatorKind::Native).unwrap();
    let events: Rc<RefCell<Vec<Event>>> = Rc::default();
    let sink = Rc::clone(&events);
    session.set_event_sink(Some(Box::new(move |new| sink.borrow_mut().extend_from_slice(new))));
    let samples = steps(session.as_mut(), shapes, schedule);
    session.set_event_sink(None);
    assert_eq!(session.end_trial(), 0, "every tensor of the trial is freed");
    (events.take(), samples)
}

fn steps(session: &mut dyn DeviceSession, shapes: &[[u64; 2]], schedule: Schedule) -> Vec<MemorySample> {
    let spec = ModelSpec {
        family: "gpt".to_owned(),
        sequence_length: Some(64),
        layers: Some(2),
        heads: Some(2),
        hidden_size: Some(48),
        vocabulary_size: Some(101),
        ..ModelSpec::default()
    };
    let device = session.candle().clone();
    session.begin_trial().unwrap();
    session.begin_phase(Phase::Build);
    let (precision, batch_norm) = (Precision::F32, BatchNorm::Train);
    let context = BuildContext { spec: &spec, device: &device, precision, batch_norm, seed: 7, replicas: None };
    let workload = Registry::builtin().get("gpt").unwrap().build(&context).unwrap();
    let mut trainer = Trainer::new(workload, &TrainSpec { learning_rate: 1e-3, ..TrainSpec::default() }).unwrap();
    session.end_phase().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let load = |session: &mut dyn DeviceSession, [samples, length]: [u64; 2]| {
        session.begin_phase(Phase::Load);
        let batch = batch(samples as usize, length as usize, &device);
        session.end_phase().unwrap();
        batch
    };
    let mut samples = Vec::new();
    for (step, shape) in shapes.iter().enumerate() {
        session.begin_step(u32::try_from(step).unwrap());
        let batch = load(session, *shape);
        trainer.step(&batch, session).unwrap();
        if (step + 1).is_multiple_of(schedule.accumulation_steps) {
            trainer.update(session).unwrap();
        }
        drop(batch);
        if schedule.release_every > 0 && (step + 1).is_multiple_of(schedule.release_every) {
            session.trim();
        }
        let updates = (step + 1) / schedule.accumulation_steps;
        if (step + 1).is_multiple_of(schedule.accumulation_steps) {
            if (schedule.evaluated)(updates) {
                let batch = load(session, schedule.evaluation);
                trainer.evaluate(&batch, session).unwrap();
            }
            if (schedule.saved)(updates) {
                trainer.checkpoint(&folder.path().join("checkpoint.safetensors"), session).unwrap();
            }
        }
        samples.push(session.sample(u32::try_from(step).unwrap() + 1, LargestRequest::Estimate));
    }
    drop(trainer);
    samples
}

fn batch(samples: usize, length: usize, device: &Device) -> Batch {
    let ids: Vec<u32> = (0..samples * length).map(|place| u32::try_from(place * 31 % 101).unwrap()).collect();
    let tensor = || Tensor::from_slice(&ids, (samples, length), device).unwrap(); // [B, T]
    Batch { input: tensor(), target: tensor(), samples }
}

fn forecaster(updates: usize, schedule: Schedule) -> ShapeForecaster {
    let steps = updates * schedule.accumulation_steps;
    let record = |shape: &[u64; 2]| train(&vec![*shape; steps], Schedule { evaluation: *shape, ..schedule }).0;
    let recordings: Vec<Vec<Event>> = PROBES.iter().map(record).collect();
    let probes: Vec<ShapeProbe<'_>> =
        PROBES.iter().zip(&recordings).map(|(shape, events)| ShapeProbe { shape: Shape::of(*shape), events }).collect();
    ShapeForecaster::new(Axes::batch_and_length(), &probes).unwrap()
}

/// Holds every point of a forecast against the sample that the real run has there.
fn assert_alike(figures: &LongRunFigures, real: &[MemorySample]) {
    assert_eq!(figures.steps as usize, real.len());
    for (point, sample) in figures.points.iter().zip(real) {
        let step = point.step;
        assert_eq!(point.peak_reserved_bytes, sample.peak_reserved_bytes, "reserved in step {step}");
        assert_eq!(point.largest_satisfiable_bytes, sample.largest_satisfiable_bytes, "L after step {step}");
        assert_eq!(point.unreleasable_bytes, sample.unreleasable_bytes, "U after step {step}");
        // The first window of the real run has the build as well.
        if step > 0 {
            assert_eq!(point.peak_allocated_bytes, sample.peak_allocated_bytes, "allocated in step {step}");
            assert_eq!(point.rates, sample.rates, "rates after step {step}");
        }
    }
    // The need of the whole run, which the last sample knows.
    let last = against_need(real).last().and_then(|sample| sample.rates.peak).unwrap();
    // Two formulas for one rate: they differ by what a float rounds.
    let off = figures.points.last().and_then(|point| point.against_need).unwrap() - last;
    assert!(off.abs() < 1e-9, "against need at the end");
}

#[test]
fn evaluation_checkpoints_and_more_micro_steps_than_recorded_are_forecast_to_the_byte() {
    // Evaluation and checkpoint were recorded after the same update, and come on cadences of their own.
    let recorded = Schedule { accumulation_steps: 3, evaluated: |n| n == 4, saved: |n| n == 4, ..STEPS_ALONE };
    let forecaster = forecaster(6, recorded);
    assert_eq!(forecaster.method(), Method::Exact, "{}", forecaster.reason());
    for accumulation_steps in [3, 5] {
        let evaluation = [8, 64];
        let cadences = Schedule { evaluated: |n| n % 3 == 0, saved: |n| n % 2 == 0, ..STEPS_ALONE };
        let schedule = Schedule { accumulation_steps, evaluation, ..cadences };
        let run: Vec<[u64; 2]> = (0..7 * accumulation_steps as u64).map(|step| [8, 7 + step * 37 % 58]).collect();
        let (_, real) = train(&run, schedule);
        let shapes: Vec<Shape> = run.iter().copied().map(Shape::of).collect();
        let long = LongRun {
            evaluation: Shape::of(evaluation),
            evaluate_every: Some(3),
            checkpoint_every: Some(2),
            accumulation_steps: Some(accumulation_steps),
            ..LongRun::of(&shapes)
        };
        let figures = play(forecaster.events(long).unwrap(), Box::new(Native::new(LIMIT_BYTES)), &mut |_| ());
        assert_alike(&figures, &real);
    }
}

#[test]
fn releases_of_the_cache_and_a_pass_after_the_very_first_update_are_forecast_to_the_byte() {
    // Recorded after the fourth update, without a release.
    let recorded = Schedule { accumulation_steps: 2, evaluated: |n| n == 4, ..STEPS_ALONE };
    let forecaster = forecaster(6, recorded);
    let evaluation = [8, 64];
    let schedule = Schedule { evaluated: |_| true, evaluation, release_every: 5, ..recorded };
    let run: Vec<[u64; 2]> = (0..16).map(|step| [8, 7 + step * 37 % 58]).collect();
    let (_, real) = train(&run, schedule);
    let shapes: Vec<Shape> = run.iter().copied().map(Shape::of).collect();
    let long = LongRun {
        evaluation: Shape::of(evaluation),
        evaluate_every: Some(1),
        releases: Releases::EverySteps(5),
        ..LongRun::of(&shapes)
    };
    let figures = play(forecaster.events(long).unwrap(), Box::new(Native::new(LIMIT_BYTES)), &mut |_| ());
    assert_alike(&figures, &real);
}

#[test]
fn every_step_of_a_run_of_varying_lengths_is_forecast_to_the_byte_from_seven_tiny_probes() {
    let forecaster = forecaster(4, STEPS_ALONE);
    assert_eq!(forecaster.method(), Method::Exact, "{}", forecaster.reason());
    println!("{}", forecaster.reason());

    let run: Vec<[u64; 2]> = (0..STEPS).map(|step| [8, 7 + step * 37 % 58]).collect();
    let (_, real) = train(&run, STEPS_ALONE);
    let shapes: Vec<Shape> = run.iter().copied().map(Shape::of).collect();
    let long = LongRun::of(&shapes);
    let figures = play(forecaster.events(long).unwrap(), Box::new(Native::new(LIMIT_BYTES)), &mut |_| ());
    assert_alike(&figures, &real);
}
