//! Real training on the CPU's virtual device: what its figures say of a GPT.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must panic")]

use batchtune::data::{self, DataSpec};
use batchtune::device::{self, DeviceChoice, DeviceSession, LargestRequest};
use batchtune::memory::{AllocatorKind, LimitSpec, MemorySample, Phase};
use batchtune::model::{BuildContext, ModelSpec, Registry};
use batchtune::train::trainer::Trainer;
use batchtune::train::{BatchNorm, Precision, TrainSpec};
use batchtune::units::{Bytes, GIB};

batchtune::declare_allocator!();

/// Trains two updates of `accumulation` micro-batches of 4 samples and gives the sample that closes them.
fn train(session: &mut dyn DeviceSession, accumulation: u32) -> (MemorySample, Vec<String>) {
    let spec = ModelSpec {
        family: "gpt".to_owned(),
        preset: Some("nano".to_owned()),
        layers: Some(2),
        sequence_length: Some(32),
        ..ModelSpec::default()
    };
    let registry = Registry::builtin();
    let source = DataSpec::default();
    let dataset = data::open(&source, &registry.input(&spec).unwrap(), 7).unwrap();
    let loader = data::loader::LoaderConfig { batch_size: 4, workers: 0, prefetch_depth: 0, seed: 7 };
    let mut batches = data::loader::Loader::start(dataset, loader);
    let device = session.candle().clone();

    session.begin_trial().unwrap();
    session.begin_phase(Phase::Build);
    let context = BuildContext {
        spec: &spec,
        device: &device,
        precision: Precision::F32,
        batch_norm: BatchNorm::Train,
        seed: 7,
        replicas: None,
    };
    let workload = registry.get("gpt").unwrap().build(&context).unwrap();
    let mut trainer = Trainer::new(workload, &TrainSpec { learning_rate: 1e-3, ..TrainSpec::default() }).unwrap();
    session.end_phase().unwrap();
    for step in 0..2 * accumulation {
        session.begin_step(step);
        let host = batches.next_batch().unwrap();
        session.begin_phase(Phase::Load);
        let batch = host.to_device(&device).unwrap();
        session.end_phase().unwrap();
        trainer.step(&batch, session).unwrap();
        if (step + 1) % accumulation == 0 {
            trainer.update(session).unwrap();
        }
    }
    let sample = session.sample(2 * accumulation, LargestRequest::Probe);
    let unreached = trainer.unreached().to_vec();
    drop((trainer, batches));
    assert_eq!(session.end_trial(), 0, "every tensor of the trial is freed");
    (sample, unreached)
}

#[test]
fn the_peak_at_accumulation_4_equals_that_at_2_and_every_parameter_has_a_gradient() {
    let limit = LimitSpec::Bytes(Bytes(GIB));
    let mut session = device::open(DeviceChoice::Cpu, limit, AllocatorKind::Auto).unwrap();
    let (two, unreached) = train(&mut *session, 2);
    let (four, _) = train(&mut *session, 4);
    assert!(two.peak_allocated_bytes > 0 && two.peak_allocated_bytes <= two.peak_reserved_bytes);
    assert_eq!(four.peak_allocated_bytes, two.peak_allocated_bytes);
    assert_eq!(four.peak_reserved_bytes, two.peak_reserved_bytes);
    assert_eq!(unreached, Vec::<String>::new());
    // The state between updates is the same too: parameters and two moments each.
    assert_eq!(four.allocated_bytes, two.allocated_bytes);
}
