//! What gradient checkpointing is for, on the CPU's virtual device: less memory at the peak, to the byte by the session's
//! own figures. `cargo test --test recompute -- --nocapture` prints them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must panic")]

use batchtune::data::{self, DataSpec};
use batchtune::device::{self, DeviceChoice, DeviceSession, LargestRequest};
use batchtune::memory::{AllocatorKind, LimitSpec, Phase};
use batchtune::model::{BuildContext, ModelSpec, Registry};
use batchtune::train::trainer::Trainer;
use batchtune::train::{BatchNorm, GradientCheckpointing, Precision, TrainSpec};
use batchtune::units::{Bytes, GIB};

batchtune::declare_allocator!();

const UPDATES: u32 = 2;

/// What some training took.
#[derive(Debug)]
struct Taken {
    peak_bytes: u64,
    forward_ms: f64,
    backward_ms: f64,
    last_loss: f64,
}

fn train(session: &mut dyn DeviceSession, batch_size: usize, mode: GradientCheckpointing) -> Taken {
    let spec = ModelSpec { family: "gpt".to_owned(), preset: Some("nano".to_owned()), ..ModelSpec::default() };
    let registry = Registry::builtin();
    let dataset = data::open(&DataSpec::default(), &registry.input(&spec).unwrap(), 7).unwrap();
    let loader = data::loader::LoaderConfig { batch_size, workers: 0, prefetch_depth: 0, seed: 7 };
    let mut batches = data::loader::Loader::start(dataset, loader);
    let device = session.candle().clone();

    session.begin_trial().unwrap();
    session.begin_phase(Phase::Build);
    let (precision, batch_norm) = (Precision::F32, BatchNorm::Train);
    let context = BuildContext { spec: &spec, device: &device, precision, batch_norm, seed: 7, replicas: None };
    let workload = registry.get("gpt").unwrap().build(&context).unwrap();
    let train = TrainSpec { learning_rate: 1e-3, gradient_checkpointing: mode, ..TrainSpec::default() };
    let mut trainer = Trainer::new(workload, &train).unwrap();
    session.end_phase().unwrap();
    let mut taken = Taken { peak_bytes: 0, forward_ms: 0.0, backward_ms: 0.0, last_loss: f64::NAN };
    for step in 0..UPDATES {
        session.begin_step(step);
        let host = batches.next_batch().unwrap();
        session.begin_phase(Phase::Load);
        let batch = host.to_device(&device).unwrap();
        session.end_phase().unwrap();
        let done = trainer.step(&batch, session).unwrap();
        trainer.update(session).unwrap();
        taken.forward_ms = done.forward.as_secs_f64() * 1e3;
        taken.backward_ms = done.backward.as_secs_f64() * 1e3;
        taken.last_loss = done.loss;
    }
    taken.peak_bytes = session.sample(UPDATES, LargestRequest::Estimate).peak_allocated_bytes;
    drop((trainer, batches));
    assert_eq!(session.end_trial(), 0, "every tensor of the trial is freed");
    taken
}

#[test]
fn recomputing_blocks_lowers_the_peak_by_more_than_a_third_and_repeats_to_the_byte() {
    let limit = LimitSpec::Bytes(Bytes(2 * GIB));
    let mut session = device::open(DeviceChoice::Cpu, limit, AllocatorKind::Auto).unwrap();
    let plain = train(&mut *session, 4, GradientCheckpointing::None);
    let blocks = train(&mut *session, 4, GradientCheckpointing::Blocks);
    let again = train(&mut *session, 4, GradientCheckpointing::Blocks);
    for (name, taken) in [("none", &plain), ("blocks", &blocks)] {
        let Taken { peak_bytes, forward_ms, backward_ms, last_loss } = taken;
        println!(
            "gpt nano, batch size 4, gradient_checkpointing: {name:<6}  peak {:>9}, forward {forward_ms:.0} ms, backward \
             {backward_ms:.0} ms, loss {last_loss:.6}",
            Bytes(*peak_bytes).to_string(),
        );
    }
    assert!((blocks.last_loss - plain.last_loss).abs() < 1e-4, "{plain:?} {blocks:?}");
    assert!(3 * blocks.peak_bytes < 2 * plain.peak_bytes, "{plain:?} {blocks:?}");
    assert_eq!(blocks.peak_bytes, again.peak_bytes);
}
