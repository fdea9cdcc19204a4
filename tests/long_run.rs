//! A run in which every step has another length, forecast from seven tiny probes and trained for real on the virtual
//! device: the same live bytes and the same reserved bytes, step by step.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must panic")]

use std::cell::RefCell;
use std::rc::Rc;

use batchtune::data::Batch;
use batchtune::device::{self, DeviceChoice, DeviceSession, LargestRequest};
use batchtune::memory::forecast::Method;
use batchtune::memory::forecast::long_run::{LongRunPoint, play};
use batchtune::memory::forecast::shape::{LongRun, Shape, ShapeForecaster, ShapeProbe};
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

/// Steps of these lengths, with what the device saw and its figures after each.
fn train(shapes: &[[u64; 2]]) -> (Vec<Event>, Vec<MemorySample>) {
    let limit = LimitSpec::Bytes(Bytes(LIMIT_BYTES));
    let mut session = device::open(DeviceChoice::Cpu, limit, AllocatorKind::Native).unwrap();
    let events: Rc<RefCell<Vec<Event>>> = Rc::default();
    let sink = Rc::clone(&events);
    session.set_event_sink(Some(Box::new(move |new| sink.borrow_mut().extend_from_slice(new))));
    let samples = steps(session.as_mut(), shapes);
    session.set_event_sink(None);
    assert_eq!(session.end_trial(), 0, "every tensor of the trial is freed");
    (events.take(), samples)
}

fn steps(session: &mut dyn DeviceSession, shapes: &[[u64; 2]]) -> Vec<MemorySample> {
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
    let context = BuildContext { spec: &spec, device: &device, precision, batch_norm, seed: 7 };
    let workload = Registry::builtin().get("gpt").unwrap().build(&context).unwrap();
    let mut trainer = Trainer::new(workload, &TrainSpec { learning_rate: 1e-3, ..TrainSpec::default() }).unwrap();
    session.end_phase().unwrap();
    let mut samples = Vec::new();
    for (step, [samples_of_step, length]) in shapes.iter().enumerate() {
        session.begin_step(u32::try_from(step).unwrap());
        session.begin_phase(Phase::Load);
        let batch = batch(*samples_of_step as usize, *length as usize, &device);
        session.end_phase().unwrap();
        trainer.step(&batch, session).unwrap();
        trainer.update(session).unwrap();
        drop(batch);
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

#[test]
fn every_step_of_a_run_of_varying_lengths_is_forecast_to_the_byte_from_seven_tiny_probes() {
    let recordings: Vec<Vec<Event>> = PROBES.iter().map(|shape| train(&[*shape; 4]).0).collect();
    let probes: Vec<ShapeProbe<'_>> =
        PROBES.iter().zip(&recordings).map(|(shape, events)| ShapeProbe { shape: Shape::of(*shape), events }).collect();
    let forecaster = ShapeForecaster::new(&probes).unwrap();
    assert_eq!(forecaster.method(), Method::Exact, "{}", forecaster.reason());
    println!("{}", forecaster.reason());

    let run: Vec<[u64; 2]> = (0..STEPS).map(|step| [8, 7 + step * 37 % 58]).collect();
    let (_, real) = train(&run);
    let shapes: Vec<Shape> = run.iter().copied().map(Shape::of).collect();
    let long = LongRun::of(&shapes);
    let figures = play(forecaster.events(long).unwrap(), Box::new(Native::new(LIMIT_BYTES)), &mut |_| ());
    assert_eq!(figures.steps as usize, run.len());
    for (point, sample) in figures.points.iter().zip(&real) {
        let LongRunPoint { step, peak_allocated_bytes, peak_reserved_bytes, .. } = *point;
        assert_eq!(peak_reserved_bytes, sample.peak_reserved_bytes, "reserved in step {step}");
        // The first window of the real run has the build as well.
        if step > 0 {
            assert_eq!(peak_allocated_bytes, sample.peak_allocated_bytes, "allocated in step {step}");
        }
    }
}
