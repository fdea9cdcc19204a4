//! The laws of training, run over every family of the registry.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};

use super::testing::PlainCpu;
use super::{BatchNorm, GradientCheckpointing, OptimizerKind, Precision, TrainSpec, Trainer};
use crate::data::loader::{Loader, LoaderConfig};
use crate::data::{self, Batch, DataSpec};
use crate::model::contract::small;
use crate::model::{Buffers, BuildContext, ModelError, Registry, Workload};

const SEED: u64 = 4;
const PRECISIONS: [Precision; 5] =
    [Precision::F32, Precision::Bf16, Precision::F16, Precision::MixedBf16, Precision::MixedF16];

fn build(family: &str, precision: Precision, batch_norm: BatchNorm) -> Result<Box<dyn Workload>, ModelError> {
    let spec = small(family);
    let context = BuildContext { spec: &spec, device: &Device::Cpu, precision, batch_norm, seed: SEED, replicas: None };
    Registry::builtin().get(family)?.build(&context)
}

/// Four samples, and the same in two halves.
fn batches(family: &str) -> [Batch; 3] {
    let input = Registry::builtin().input(&small(family)).unwrap();
    let dataset = data::open(&DataSpec::default(), &input, SEED).unwrap();
    let config = LoaderConfig { batch_size: 4, workers: 0, prefetch_depth: 0, seed: SEED };
    let whole = Loader::start(dataset, config).next_batch().unwrap().to_device(&Device::Cpu).unwrap();
    let half = |first| {
        let part = |tensor: &Tensor| tensor.narrow(0, first, 2).unwrap().contiguous().unwrap();
        Batch { input: part(&whole.input), target: part(&whole.target), samples: 2 }
    };
    let halves = [half(0), half(2)];
    let [first, second] = halves;
    [whole, first, second]
}

fn families() -> Vec<&'static str> {
    Registry::builtin().names()
}

/// The mean losses and the gradients after these micro-batches.
fn gradients(workload: Box<dyn Workload>, spec: TrainSpec, batches: &[&Batch]) -> (Vec<f64>, BTreeMap<String, Tensor>) {
    let mut trainer = Trainer::new(workload, &spec).unwrap();
    let mut session = PlainCpu::default();
    let losses = batches.iter().map(|batch| trainer.step(batch, &mut session).unwrap().loss).collect();
    let names: Vec<String> = trainer.workload().parameters().iter().map(|(name, _)| name.to_owned()).collect();
    let gradient = |name: String| {
        let mean = trainer.gradients().mean(&name).unwrap().unwrap_or_else(|| panic!("`{name}` has no gradient"));
        (name, mean)
    };
    (losses, names.into_iter().map(gradient).collect())
}

fn largest(tensor: &Tensor) -> f32 {
    tensor.to_dtype(DType::F32).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap()
}

/// The largest difference between gradients, each against the largest value of its tensor. That is rounding alone where
/// a gradient is zero on paper (the bias of attention's keys moves all scores of a row alike), so tensors count as no
/// smaller than a thousandth of the largest.
fn difference(found: &BTreeMap<String, Tensor>, expected: &BTreeMap<String, Tensor>) -> f32 {
    assert!(found.keys().eq(expected.keys()));
    let least = 1e-3 * expected.values().map(largest).fold(f32::MIN_POSITIVE, f32::max);
    let off = |(name, expected): (&String, &Tensor)| {
        largest(&(&found[name] - expected).unwrap()) / largest(expected).max(least)
    };
    expected.iter().map(off).fold(0.0, f32::max)
}

#[test]
fn accumulation_gives_the_gradient_of_the_whole_batch() {
    for family in families() {
        // With statistics of each micro-batch it could not.
        let workload = || build(family, Precision::F32, BatchNorm::Frozen).unwrap();
        let [whole, first, second] = batches(family);
        for gradient_checkpointing in [GradientCheckpointing::None, GradientCheckpointing::Blocks] {
            let spec = TrainSpec { gradient_checkpointing, ..TrainSpec::default() };
            let (losses, expected) = gradients(workload(), spec, &[&whole]);
            let (parts, found) = gradients(workload(), spec, &[&first, &second]);
            assert!(
                (losses[0] - f64::midpoint(parts[0], parts[1])).abs() < 1e-5 * losses[0],
                "{family}: {losses:?} {parts:?}"
            );
            let difference = difference(&found, &expected);
            assert!(difference < 1e-5, "{family}, {gradient_checkpointing}: {difference}");
        }
    }
}

#[test]
fn recomputation_gives_the_gradients_of_the_plain_pass() {
    for family in families() {
        for batch_norm in [BatchNorm::Train, BatchNorm::Frozen] {
            let workload = || build(family, Precision::F32, batch_norm).unwrap();
            let [whole, ..] = batches(family);
            let plain = TrainSpec::default();
            let recomputing = TrainSpec { gradient_checkpointing: GradientCheckpointing::Blocks, ..plain };
            let (losses, expected) = gradients(workload(), plain, &[&whole]);
            let (again, found) = gradients(workload(), recomputing, &[&whole]);
            assert_eq!(again, losses, "{family}, {batch_norm:?}");
            let difference = difference(&found, &expected);
            assert!(difference < 2e-6, "{family}, {batch_norm:?}: {difference}");
        }
    }
}

#[test]
fn recomputation_leaves_the_running_statistics_that_the_plain_pass_leaves() {
    for family in families() {
        let statistics = |gradient_checkpointing| {
            let workload = build(family, Precision::F32, BatchNorm::Train).unwrap();
            let mut trainer =
                Trainer::new(workload, &TrainSpec { gradient_checkpointing, ..TrainSpec::default() }).unwrap();
            trainer.step(&batches(family)[0], &mut PlainCpu::default()).unwrap();
            let buffers = trainer.workload().buffers();
            let values = |tensor: &Tensor| -> Vec<f32> {
                tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
            };
            buffers.into_iter().flat_map(Buffers::iter).map(|(_, buffer)| values(buffer)).collect::<Vec<_>>()
        };
        assert_eq!(statistics(GradientCheckpointing::Blocks), statistics(GradientCheckpointing::None), "{family}");
    }
}

#[test]
fn every_precision_that_a_family_has_trains_with_and_without_recomputation() {
    for family in families() {
        let [whole, ..] = batches(family);
        for precision in PRECISIONS {
            for gradient_checkpointing in [GradientCheckpointing::None, GradientCheckpointing::Blocks] {
                let workload = match build(family, precision, BatchNorm::Train) {
                    Ok(workload) => workload,
                    Err(ModelError::PrecisionNotSupported { .. }) => continue,
                    Err(error) => panic!("{family} in {precision}: {error}"),
                };
                let spec =
                    TrainSpec { precision, gradient_checkpointing, learning_rate: 0.005, ..TrainSpec::default() };
                let mut trainer = Trainer::new(workload, &spec).unwrap();
                let mut session = PlainCpu::default();
                let mut losses = Vec::new();
                for _ in 0..10 {
                    losses.push(trainer.step(&whole, &mut session).unwrap().loss);
                    trainer.update(&mut session).unwrap();
                }
                assert!(trainer.unreached().is_empty() && !trainer.has_diverged());
                let falls = losses.iter().all(|loss| loss.is_finite()) && losses[9] < losses[0];
                assert!(falls, "{family} in {precision}, {gradient_checkpointing}: {losses:?}");
                for (name, variable) in trainer.workload().parameters().iter() {
                    assert_eq!(variable.dtype(), precision.parameter_dtype(), "{family}: `{name}`");
                }
            }
        }
    }
}

#[test]
fn momentum_learns_a_batch_by_heart() {
    for family in families() {
        let spec =
            TrainSpec { optimizer: OptimizerKind::Sgd, momentum: 0.9, learning_rate: 0.05, ..TrainSpec::default() };
        let workload = build(family, Precision::F32, BatchNorm::Train).unwrap();
        let mut trainer = Trainer::new(workload, &spec).unwrap();
        let mut session = PlainCpu::default();
        let [whole, ..] = batches(family);
        let losses: Vec<f64> = (0..15)
            .map(|_| {
                let loss = trainer.step(&whole, &mut session).unwrap().loss;
                trainer.update(&mut session).unwrap();
                loss
            })
            .collect();
        assert!(losses[14] < 0.9 * losses[0], "{family}: {losses:?}");
    }
}
