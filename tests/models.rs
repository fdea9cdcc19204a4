//! The model families on the CPU: against PyTorch's figures, and their forecasts against real training.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as the tests do")]

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

use batchtune::Registry;
use batchtune::data::loader::{Loader, LoaderConfig};
use batchtune::data::{self, DataSpec, HostBatch};
use batchtune::device::cpu::VirtualDevice;
use batchtune::device::{DeviceSession, LargestRequest};
use batchtune::memory::forecast::{Conditions, Forecaster, Method, Probe, Request};
use batchtune::memory::policy::native::Native;
use batchtune::memory::{AllocatorKind, Event, LimitSpec, MemorySample, Phase};
use batchtune::model::{BuildContext, ModelSpec};
use batchtune::train::{BatchNorm, Precision, TrainSpec, Trainer};
use batchtune::units::{Bytes, GIB};

#[path = "models/fixtures.rs"]
mod fixtures;
#[path = "../src/model/contract/small.rs"]
mod small;

use fixtures::{CASES, Case, Tolerance};

batchtune::declare_allocator!();

const LIMIT_BYTES: u64 = 2 * GIB;
const SEED: u64 = 3;
/// Steps of training before an evaluation.
const STEPS: usize = 3;

/// The virtual device is the process's.
static DEVICE: Mutex<()> = Mutex::new(());

fn with_device<T>(work: impl FnOnce(&mut VirtualDevice) -> T) -> T {
    let _turn = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut device = VirtualDevice::open(LimitSpec::Bytes(Bytes(LIMIT_BYTES)), AllocatorKind::Native).unwrap();
    device.begin_trial().unwrap();
    let made = work(&mut device);
    device.end_trial();
    made
}

#[test]
fn every_family_computes_what_pytorch_does() {
    for name in CASES {
        let tolerance = Tolerance { loss: 1e-4, gradient: 1e-4 };
        with_device(|device| Case::open(name).check(device, Precision::F32, tolerance));
    }
}

#[test]
fn bfloat16_stays_near() {
    for (name, precision) in CASES.into_iter().zip([Precision::Bf16, Precision::MixedBf16].into_iter().cycle()) {
        let tolerance = Tolerance::of_bfloat16(name);
        with_device(|device| Case::open(name).check(device, precision, tolerance));
    }
}

/// Real training on the virtual device: its events, and a sample after the build and each part of a step.
struct Trained {
    events: Vec<Event>,
    samples: Vec<MemorySample>,
}

/// Host batches for a model, made before anything is recorded: a loader's own memory is no tensor's.
fn batches(spec: &ModelSpec, batch_size: usize) -> Vec<HostBatch> {
    let input = Registry::builtin().input(spec).unwrap();
    let dataset = data::open(&DataSpec::default(), &input, SEED).unwrap();
    let mut loader = Loader::start(dataset, LoaderConfig { batch_size, workers: 0, prefetch_depth: 0, seed: SEED });
    (0..=STEPS).map(|_| loader.next_batch().unwrap()).collect()
}

/// Trains three steps with batches of this size, an update after each, then evaluates.
fn train(spec: &ModelSpec, batch_size: usize) -> Trained {
    let batches = batches(spec, batch_size);
    with_device(|device| {
        let events = Rc::new(RefCell::new(Vec::new()));
        let copy = Rc::clone(&events);
        device.set_event_sink(Some(Box::new(move |piece| copy.borrow_mut().extend_from_slice(piece))));
        let candle = device.candle().clone();
        let (precision, batch_norm) = (Precision::F32, BatchNorm::Train);
        let context = BuildContext { spec, device: &candle, precision, batch_norm, seed: SEED, replicas: None };
        let mut trainer = within(device, Phase::Build, || {
            let workload = Registry::builtin().get(&spec.family).unwrap().build(&context).unwrap();
            Trainer::new(workload, &TrainSpec::default()).unwrap()
        });
        let mut samples = vec![device.sample(0, LargestRequest::Estimate)];
        for (step, batch) in batches.iter().enumerate() {
            device.begin_step(step as u32);
            let batch = within(device, Phase::Load, || batch.to_device(&candle).unwrap());
            if step < STEPS {
                trainer.step(&batch, device).unwrap();
                trainer.update(device).unwrap();
            } else {
                trainer.evaluate(&batch, device).unwrap();
            }
            drop(batch);
            samples.push(device.sample(step as u32, LargestRequest::Estimate));
        }
        assert_eq!(trainer.unreached(), [""; 0]);
        drop(trainer);
        device.set_event_sink(None);
        Trained { events: events.take(), samples }
    })
}

fn within<T>(device: &mut VirtualDevice, phase: Phase, work: impl FnOnce() -> T) -> T {
    device.begin_phase(phase);
    let made = work();
    device.end_phase().unwrap();
    made
}

#[test]
fn two_probes_forecast_every_family_to_the_byte() {
    for family in Registry::builtin().names() {
        let spec = small::small(family);
        let probes = [2, 3].map(|batch_size| (batch_size, train(&spec, batch_size).events));
        let probes: Vec<Probe<'_>> =
            probes.iter().map(|(batch_size, events)| Probe { batch_size: *batch_size, events }).collect();
        let conditions = Conditions { limit_bytes: LIMIT_BYTES, make_policy: &|limit| Box::new(Native::new(limit)) };
        let report = Forecaster::new(&probes).report(&Request::of(&[8]), &conditions).unwrap();
        assert_eq!(report.method, Method::Exact, "{family}: {}", report.reason);
        let samples = train(&spec, 8).samples;
        let highest = |figure: fn(&MemorySample) -> u64| samples.iter().map(figure).max();
        let point = &report.points[0];
        assert_eq!(Some(point.peak_allocated_bytes), highest(|sample| sample.peak_allocated_bytes), "{family}");
        assert_eq!(Some(point.peak_reserved_bytes), highest(|sample| sample.peak_reserved_bytes), "{family}");
        assert_eq!(Some(point.largest_request_bytes), highest(|sample| sample.largest_request_bytes), "{family}");
    }
}
