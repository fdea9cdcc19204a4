//! The memory room from outside: a binary that declares the allocator, records real training steps, writes a trace file
//! and replays it; and every fixture through the one door that reads files.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use batchtune::device::{self, DeviceChoice, DeviceSession, LargestRequest};
use batchtune::memory::compare::{ReplayOptions, compare, report};
use batchtune::memory::oom::{self, OomClass};
use batchtune::memory::recording::Recording;
use batchtune::memory::trace::{TraceHeader, TraceWriter};
use batchtune::memory::{AllocatorKind, LimitSpec, Phase};
use batchtune::units::{Bytes, MIB};
use candle_core::{DType, Device, Tensor, Var};

batchtune::declare_allocator!();

fn fixtures(folder: &str, extension: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(folder);
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|found| found == extension)).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

fn phase<T>(session: &mut dyn DeviceSession, phase: Phase, work: impl FnOnce() -> T) -> T {
    session.begin_phase(phase);
    let made = work();
    session.end_phase().unwrap();
    made
}

/// A two-layer perceptron trained for a few steps; the batch grows so that blocks of several sizes come and go.
fn train(session: &mut dyn DeviceSession) {
    let device = Device::Cpu;
    let variables = phase(session, Phase::Build, || {
        let first = Var::from_tensor(&Tensor::ones((256, 512), DType::F32, &device).unwrap()).unwrap(); // [256, 512]
        let second = Var::from_tensor(&Tensor::ones((512, 64), DType::F32, &device).unwrap()).unwrap(); // [512, 64]
        [first, second]
    });
    for step in 0..4 {
        session.begin_step(step);
        let rows = 256 * (step as usize + 1);
        let input = phase(session, Phase::Load, || Tensor::ones((rows, 256), DType::F32, &device).unwrap()); // [rows, 256]
        let loss = phase(session, Phase::Forward, || {
            let hidden = input.matmul(&variables[0]).unwrap().relu().unwrap(); // [rows, 512]
            hidden.matmul(&variables[1]).unwrap().sqr().unwrap().mean_all().unwrap() // []
        });
        let gradients = phase(session, Phase::Backward, || loss.backward().unwrap());
        phase(session, Phase::Optimizer, || {
            for variable in &variables {
                let step = gradients.get(variable).unwrap().affine(-1e-6, 0.0).unwrap();
                variable.set(&variable.as_tensor().add(&step).unwrap()).unwrap();
            }
        });
        drop((input, loss, gradients));
    }
}

#[test]
fn a_recorded_run_replays_from_its_trace_file_to_the_devices_own_figures() {
    let limit = LimitSpec::Bytes(Bytes(256 * MIB));
    for allocator in [AllocatorKind::Native, AllocatorKind::Expandable] {
        let mut session = device::open(DeviceChoice::Cpu, limit, allocator).unwrap();
        let header = TraceHeader { device: "cpu".to_owned(), ..TraceHeader::default() };
        let writer = Rc::new(RefCell::new(TraceWriter::new(Vec::new(), &header).unwrap()));
        let sink = Rc::clone(&writer);
        session.set_event_sink(Some(Box::new(move |events| sink.borrow_mut().write(events).unwrap())));
        session.begin_trial().unwrap();
        train(session.as_mut());
        let sample = session.sample(4, LargestRequest::Probe);
        assert_eq!(sample.allocated_bytes, 0, "all tensors are dropped");
        assert_eq!(session.end_trial(), 0);
        session.set_event_sink(None);
        let file = Rc::into_inner(writer).unwrap().into_inner().finish().unwrap();

        let trace = Recording::read(&file).unwrap().into_trace();
        let conf = if allocator == AllocatorKind::Expandable { "expandable_segments:True" } else { "" };
        let options = ReplayOptions { conf: Some(conf.parse().unwrap()), limit_bytes: Some(256 * MIB) };
        let replayed = report(&trace, &options).unwrap();
        assert_eq!(replayed.peak_allocated_bytes, sample.peak_allocated_bytes);
        assert_eq!(replayed.peak_reserved_bytes, sample.peak_reserved_bytes);
        assert_eq!(replayed.largest_request_bytes, sample.largest_request_bytes);
        assert_eq!(replayed.steps.len(), 4);
        assert!(replayed.steps.windows(2).all(|pair| pair[0].peak_allocated_bytes < pair[1].peak_allocated_bytes));
        assert!(replayed.minimum_limit_bytes.unwrap() <= replayed.peak_reserved_bytes);
    }
}

#[test]
fn every_snapshot_is_read_inspected_and_compared() {
    for file in fixtures("pytorch", "pickle") {
        let recording = Recording::read(&std::fs::read(&file).unwrap()).unwrap();
        let found = recording.inspect().unwrap();
        let truth: serde_json::Value =
            serde_json::from_slice(&std::fs::read(file.with_extension("json")).unwrap()).unwrap();
        assert_eq!(Some(found.peak_reserved_bytes), truth["max_reserved"].as_u64(), "{}", file.display());
        assert_eq!(Some(found.peak_allocated_bytes), truth["max_allocated"].as_u64(), "{}", file.display());
        assert_eq!(found.replay.placed_other, 0, "{}", file.display());
        let ranked = compare(&recording.into_trace(), None).unwrap();
        assert!(ranked.windows(2).all(|pair| pair[0].minimum_limit_bytes <= pair[1].minimum_limit_bytes));
    }
}

#[test]
fn every_error_text_is_explained() {
    for file in fixtures("oom", "txt") {
        let class = oom::explain(&std::fs::read_to_string(&file).unwrap(), None).class;
        let expected = match file.file_stem().and_then(|stem| stem.to_str()).unwrap() {
            "fragmented" => OomClass::Fragmentation,
            "capacity" | "uncapped" => OomClass::Capacity,
            "other_process" => OomClass::OtherProcess,
            _ => OomClass::Unknown,
        };
        assert_eq!(class, expected, "{}", file.display());
    }
}
