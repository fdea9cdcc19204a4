//! The laws of a workload, run over every family of the registry.
//!
//! A new family adds one arm to [`small::small`] and is held to all of them.

use candle_core::Device;

use super::{Buffers, BuildContext, ModelSpec, Registry, Workload};
use crate::data::loader::{Loader, LoaderConfig};
use crate::data::{self, Batch, DataSpec, InputSpec};
use crate::train::testing::PlainCpu;
use crate::train::{BatchNorm, Precision, TrainSpec, Trainer};

pub(crate) use small::small;

mod small;

const SEED: u64 = 3;

fn with_every_family(law: impl Fn(&str, Box<dyn Workload>, Batch, usize)) {
    let registry = Registry::builtin();
    for name in registry.names() {
        let spec = small(name);
        let context = BuildContext {
            spec: &spec,
            device: &Device::Cpu,
            precision: Precision::F32,
            batch_norm: BatchNorm::Train,
            seed: SEED,
            replicas: None,
        };
        let workload = registry.get(name).unwrap().build(&context).unwrap();
        let input = registry.input(&spec).unwrap();
        let choices = match &input {
            InputSpec::Tokens { vocabulary_size, .. } | InputSpec::MaskedTokens { vocabulary_size, .. } => {
                *vocabulary_size
            }
            InputSpec::Features { classes, .. } => *classes,
        };
        let dataset = data::open(&DataSpec::default(), &input, SEED).unwrap();
        let config = LoaderConfig { batch_size: 4, workers: 0, prefetch_depth: 0, seed: SEED };
        let batch = Loader::start(dataset, config).next_batch().unwrap().to_device(&Device::Cpu).unwrap();
        law(name, workload, batch, choices);
    }
}

#[test]
fn the_first_loss_is_that_of_guessing() {
    with_every_family(|name, workload, batch, choices| {
        let loss = workload.loss(&batch).unwrap();
        assert_eq!(loss.rank(), 0, "{name}");
        let (loss, guess) = (f64::from(loss.to_scalar::<f32>().unwrap()), (choices as f64).ln());
        assert!((loss - guess).abs() < 0.1 * guess, "{name}: {loss} against {guess}");
    });
}

#[test]
fn a_family_says_whether_it_normalises_over_batches() {
    let registry = Registry::builtin();
    with_every_family(|name, workload, _, _| {
        assert_eq!(registry.get(name).unwrap().has_batch_norm(), workload.buffers().is_some(), "{name}");
    });
}

#[test]
fn a_family_says_whether_it_takes_images_of_any_side() {
    let registry = Registry::builtin();
    with_every_family(|name, workload, batch, _| {
        let takes_any = match batch.input.dims4() {
            Ok((_, _, height, width)) => {
                let input = batch.input.upsample_nearest2d(2 * height, 2 * width).unwrap();
                workload.loss(&Batch { input, ..batch }).is_ok()
            }
            Err(_) => false,
        };
        assert_eq!(registry.get(name).unwrap().takes_any_image_size(), takes_any, "{name}");
    });
}

#[test]
fn every_parameter_is_reached_by_a_gradient() {
    with_every_family(|name, workload, batch, _| {
        let gradients = workload.loss(&batch).unwrap().backward().unwrap();
        for (parameter, variable) in workload.parameters().iter() {
            let gradient = gradients.get(variable).unwrap_or_else(|| panic!("{name}: `{parameter}` has no gradient"));
            assert_eq!(gradient.shape(), variable.shape(), "{name}: `{parameter}`");
            let largest = gradient.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
            assert!(largest.is_finite() && largest > 0.0, "{name}: `{parameter}` has the gradient {largest}");
        }
    });
}

#[test]
fn the_loss_falls_when_one_batch_is_learned_by_heart() {
    with_every_family(|name, workload, batch, _| {
        let spec = TrainSpec { learning_rate: 0.01, ..TrainSpec::default() };
        let mut trainer = Trainer::new(workload, &spec).unwrap();
        let mut session = PlainCpu::default();
        let losses: Vec<f64> = (0..20)
            .map(|_| {
                let loss = trainer.step(&batch, &mut session).unwrap().loss;
                trainer.update(&mut session).unwrap();
                loss
            })
            .collect();
        assert!(losses.iter().all(|loss| loss.is_finite()), "{name}: {losses:?}");
        assert!(losses[19] < 0.6 * losses[0], "{name}: {losses:?}");
    });
}

#[test]
fn evaluation_agrees_with_training() {
    with_every_family(|name, workload, batch, _| {
        // A batch norm evaluates with its running statistics. They come close to those of a batch that is seen often,
        // but for the variance's divisor, which is one less.
        let tolerance = if workload.buffers().is_some() { 0.05 } else { 1e-5 };
        for _ in 0..if workload.buffers().is_some() { 60 } else { 0 } {
            workload.loss(&batch).unwrap();
        }
        let (trained, evaluated) = (workload.loss(&batch).unwrap(), workload.evaluate(&batch).unwrap());
        let difference = trained.to_scalar::<f32>().unwrap() - evaluated.to_scalar::<f32>().unwrap();
        assert!(difference.abs() < tolerance, "{name}: {difference}");
    });
}

#[test]
fn evaluation_builds_no_graph_and_changes_nothing() {
    with_every_family(|name, workload, batch, _| {
        let held = || -> Vec<Vec<f32>> {
            let buffers = workload.buffers().into_iter().flat_map(Buffers::iter);
            buffers.map(|(_, buffer)| buffer.flatten_all().unwrap().to_vec1().unwrap()).collect()
        };
        let before = held();
        assert!(!workload.evaluate(&batch).unwrap().track_op(), "{name}");
        assert_eq!(held(), before, "{name}");
    });
}

#[test]
fn the_same_seed_builds_the_same_model() {
    with_every_family(|name, workload, batch, _| {
        let spec = small(name);
        let build = |seed| {
            let context = BuildContext {
                spec: &spec,
                device: &Device::Cpu,
                precision: Precision::F32,
                batch_norm: BatchNorm::Train,
                seed,
                replicas: None,
            };
            let workload = Registry::builtin().get(name).unwrap().build(&context).unwrap();
            workload.loss(&batch).unwrap().to_scalar::<f32>().unwrap()
        };
        let loss = workload.loss(&batch).unwrap().to_scalar::<f32>().unwrap();
        assert_eq!(loss.to_bits(), build(SEED).to_bits(), "{name}");
        assert_ne!(loss.to_bits(), build(SEED + 1).to_bits(), "{name}");
    });
}
