//! Tests of the trainer over a toy workload and a small GPT.

use candle_core::{Device, Result};

use super::*;
use crate::model::parameters::{Init, Parameters};
use crate::model::{BuildContext, ModelSpec, Registry};
use crate::train::testing::PlainCpu;
use crate::train::{BatchNorm, GradientCheckpointing, OptimizerKind, Precision};

/// A linear map through an operation without a backward pass, which cuts `before` off.
struct Cut {
    parameters: Parameters,
}

impl Cut {
    fn new() -> Self {
        let mut parameters = Parameters::new(&Device::Cpu, DType::F32, 1);
        for name in ["before.weight", "after.weight"] {
            parameters.create(name, &[4, 4], Init::Normal(1.0)).unwrap();
        }
        Self { parameters }
    }
}

impl Workload for Cut {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn loss(&self, batch: &Batch) -> Result<Tensor> {
        let weight = |name| self.parameters.get(name).unwrap().as_tensor().clone();
        let x = batch.input.matmul(&weight("before.weight"))?; // [B, 4]
        let norm = candle_nn::LayerNorm::new(
            Tensor::ones(4, DType::F32, &Device::Cpu)?,
            Tensor::zeros(4, DType::F32, &Device::Cpu)?,
            1e-5,
        );
        let x = candle_nn::Module::forward(&norm, &x)?; // [B, 4]
        x.matmul(&weight("after.weight"))?.sqr()?.mean_all() // []
    }
}

/// A workload that returns one loss per sample.
struct NotAScalar(Cut);

impl Workload for NotAScalar {
    fn parameters(&self) -> &Parameters {
        self.0.parameters()
    }

    fn loss(&self, batch: &Batch) -> Result<Tensor> {
        batch.input.sum(1) // [B]
    }
}

fn features() -> Batch {
    let input = Tensor::from_vec((0_u8..12).map(f32::from).collect(), (3, 4), &Device::Cpu).unwrap();
    Batch { target: input.clone(), input, samples: 3 }
}

fn gpt(precision: Precision) -> Box<dyn Workload> {
    let spec = ModelSpec {
        family: "gpt".to_owned(),
        sequence_length: Some(8),
        layers: Some(2),
        heads: Some(2),
        hidden_size: Some(16),
        vocabulary_size: Some(32),
        ..ModelSpec::default()
    };
    let context = BuildContext {
        spec: &spec,
        device: &Device::Cpu,
        precision,
        batch_norm: BatchNorm::Train,
        seed: 5,
        replicas: None,
    };
    Registry::builtin().get("gpt").unwrap().build(&context).unwrap()
}

/// `samples` rows of a fixed sequence, from row `first` on.
fn tokens(first: usize, samples: usize) -> Batch {
    let ids = |shift: usize| {
        let ids: Vec<u32> = (first * 8..(first + samples) * 8).map(|index| ((index * 5 + shift) % 29) as u32).collect();
        Tensor::from_vec(ids, (samples, 8), &Device::Cpu).unwrap()
    };
    Batch { input: ids(0), target: ids(5), samples }
}

fn trainer(optimizer: OptimizerKind) -> Trainer {
    let spec = TrainSpec { learning_rate: 0.01, optimizer, ..TrainSpec::default() };
    Trainer::new(gpt(Precision::F32), &spec).unwrap()
}

fn values(trainer: &Trainer, name: &str) -> Vec<f32> {
    trainer.workload().parameters().get(name).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn two_micro_batches_give_the_gradient_of_the_whole_batch() {
    let mut session = PlainCpu::default();
    let (mut parts, mut whole) = (trainer(OptimizerKind::Sgd), trainer(OptimizerKind::Sgd));
    parts.step(&tokens(0, 2), &mut session).unwrap();
    parts.step(&tokens(2, 2), &mut session).unwrap();
    whole.step(&tokens(0, 4), &mut session).unwrap();
    for (name, _) in whole.workload().parameters().iter() {
        let [parts, whole] = [&parts, &whole].map(|trainer| trainer.gradients.mean(name).unwrap().unwrap());
        let difference = (parts - &whole).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        let scale = whole.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(difference <= 1e-5 * (1.0 + scale), "{name}: {difference}");
    }
}

#[test]
fn accumulation_trains_like_the_whole_batch() {
    let mut session = PlainCpu::default();
    let (mut parts, mut whole) = (trainer(OptimizerKind::Sgd), trainer(OptimizerKind::Sgd));
    for _ in 0..3 {
        parts.step(&tokens(0, 2), &mut session).unwrap();
        parts.step(&tokens(2, 2), &mut session).unwrap();
        parts.update(&mut session).unwrap();
        whole.step(&tokens(0, 4), &mut session).unwrap();
        whole.update(&mut session).unwrap();
    }
    for (name, _) in whole.workload().parameters().iter() {
        for (part, whole) in values(&parts, name).iter().zip(values(&whole, name)) {
            assert!((part - whole).abs() < 1e-5, "{name}: {part} against {whole}");
        }
    }
}

#[test]
fn every_part_of_a_step_is_a_phase_that_ends() {
    use Phase::{Backward, Evaluation, Forward, Optimizer};
    let mut session = PlainCpu::default();
    let mut trainer = trainer(OptimizerKind::Adamw);
    assert_eq!(trainer.update(&mut session).unwrap(), Duration::ZERO);
    trainer.step(&tokens(0, 2), &mut session).unwrap();
    trainer.step(&tokens(2, 2), &mut session).unwrap();
    trainer.update(&mut session).unwrap();
    trainer.evaluate(&tokens(4, 2), &mut session).unwrap();
    assert_eq!(session.phases, [Forward, Backward, Forward, Backward, Optimizer, Evaluation]);
    assert_eq!(session.open, None);
}

#[test]
fn an_update_drops_the_gradients() {
    let mut session = PlainCpu::default();
    let mut trainer = trainer(OptimizerKind::Adamw);
    trainer.step(&tokens(0, 2), &mut session).unwrap();
    trainer.update(&mut session).unwrap();
    assert_eq!(trainer.gradients.micro_batches(), 0);
    let before = values(&trainer, "wte.weight");
    assert_eq!(trainer.update(&mut session).unwrap(), Duration::ZERO);
    assert_eq!(before, values(&trainer, "wte.weight"));
}

#[test]
fn a_cut_graph_names_what_it_does_not_reach() {
    let mut session = PlainCpu::default();
    let spec = TrainSpec { learning_rate: 0.01, ..TrainSpec::default() };
    let mut trainer = Trainer::new(Box::new(Cut::new()), &spec).unwrap();
    assert!(trainer.unreached().is_empty());
    trainer.step(&features(), &mut session).unwrap();
    assert_eq!(trainer.unreached(), ["before.weight"]);
    let before = values(&trainer, "before.weight");
    trainer.update(&mut session).unwrap();
    assert_eq!(before, values(&trainer, "before.weight"));
}

#[test]
fn a_gpt_has_no_unreached_parameter() {
    let mut session = PlainCpu::default();
    for precision in [Precision::F32, Precision::Bf16] {
        let mut trainer = Trainer::new(gpt(precision), &TrainSpec { precision, ..TrainSpec::default() }).unwrap();
        trainer.step(&tokens(0, 2), &mut session).unwrap();
        assert!(trainer.unreached().is_empty(), "{:?}", trainer.unreached());
    }
}

#[test]
fn bfloat16_training_lowers_the_loss() {
    let mut session = PlainCpu::default();
    let spec = TrainSpec { learning_rate: 0.01, precision: Precision::Bf16, ..TrainSpec::default() };
    let mut trainer = Trainer::new(gpt(Precision::Bf16), &spec).unwrap();
    let mut losses = Vec::new();
    for _ in 0..20 {
        losses.push(trainer.step(&tokens(0, 4), &mut session).unwrap().loss);
        trainer.update(&mut session).unwrap();
    }
    assert!(losses[19] < 0.8 * losses[0], "{losses:?}");
}

#[test]
fn a_model_of_one_piece_says_that_it_cannot_recompute() {
    let mut session = PlainCpu::default();
    let spec = TrainSpec { gradient_checkpointing: GradientCheckpointing::Blocks, ..TrainSpec::default() };
    let mut trainer = Trainer::new(Box::new(Cut::new()), &spec).unwrap();
    let error = trainer.step(&features(), &mut session).unwrap_err();
    assert!(matches!(&error, StepError::Workload(message) if message.contains("of one piece")), "{error}");
    assert_eq!(session.open, None);
}

#[test]
fn recomputation_keeps_the_phases_and_trains_to_the_same_parameters() {
    let spec = TrainSpec { learning_rate: 0.01, ..TrainSpec::default() };
    let train = |gradient_checkpointing| {
        let mut session = PlainCpu::default();
        let spec = TrainSpec { gradient_checkpointing, ..spec };
        let mut trainer = Trainer::new(gpt(Precision::F32), &spec).unwrap();
        for _ in 0..3 {
            trainer.step(&tokens(0, 2), &mut session).unwrap();
            trainer.step(&tokens(2, 2), &mut session).unwrap();
            trainer.update(&mut session).unwrap();
        }
        (session.phases, ["wte.weight", "h.0.attn.c_attn.weight", "ln_f.bias"].map(|name| values(&trainer, name)))
    };
    let (phases, plain) = train(GradientCheckpointing::None);
    let (again, recomputed) = train(GradientCheckpointing::Blocks);
    assert_eq!(phases, again);
    for (plain, recomputed) in plain.iter().flatten().zip(recomputed.iter().flatten()) {
        // Adam divides by the gradient's size, so where it is next to nothing the sum's rounding shows.
        assert!((plain - recomputed).abs() < 1e-4, "{plain} against {recomputed}");
    }
}

/// A loss whose gradient f16 cannot hold, until it is scaled down by more than 2¹⁶, or at all.
struct Steep {
    parameters: Parameters,
    slope: f64,
}

impl Steep {
    fn new(slope: f64) -> Self {
        let mut parameters = Parameters::new(&Device::Cpu, DType::F16, 1);
        parameters.create("weight", &[4], Init::Constant(0.0)).unwrap();
        Self { parameters, slope }
    }
}

impl Workload for Steep {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn loss(&self, _batch: &Batch) -> Result<Tensor> {
        let weight = self.parameters.get("weight").unwrap().as_tensor();
        weight.to_dtype(DType::F32)?.affine(self.slope, 0.5)?.mean_all() // []
    }
}

fn steep(slope: f64) -> Trainer {
    let spec = TrainSpec { precision: Precision::F16, learning_rate: 0.1, ..TrainSpec::default() };
    Trainer::new(Box::new(Steep::new(slope)), &spec).unwrap()
}

#[test]
fn updates_with_a_gradient_that_overflows_are_skipped_until_the_scale_fits() {
    let mut session = PlainCpu::default();
    let mut trainer = steep(16.0);
    let weight = |trainer: &Trainer| {
        let weight = trainer.workload().parameters().get("weight").unwrap().to_dtype(DType::F32).unwrap();
        weight.to_vec1::<f32>().unwrap()[0]
    };
    let mut weights = Vec::new();
    for _ in 0..5 {
        let loss = trainer.step(&features(), &mut session).unwrap().loss;
        assert!((loss - (16.0 * f64::from(weight(&trainer)) + 0.5)).abs() < 1e-3, "the loss is not scaled: {loss}");
        trainer.update(&mut session).unwrap();
        weights.push(weight(&trainer));
    }
    // A gradient of 4 at 65536, 32768 and 16384 is over 65504.
    assert!(weights[..3].iter().all(|weight| weight.abs() < f32::MIN_POSITIVE), "{weights:?}");
    assert!((weights[3] + 0.1).abs() < 1e-3 && (weights[4] + 0.2).abs() < 1e-3, "{weights:?}");
    assert!(!trainer.has_diverged());
}

#[test]
fn gradients_that_no_scale_makes_finite_are_divergence() {
    let mut session = PlainCpu::default();
    let mut trainer = steep(1e9);
    for _ in 0..19 {
        assert!(!trainer.has_diverged());
        trainer.step(&features(), &mut session).unwrap();
        trainer.update(&mut session).unwrap();
    }
    assert!(trainer.has_diverged());
}

#[test]
fn a_loss_that_is_not_a_scalar_is_the_workloads_error() {
    let mut session = PlainCpu::default();
    let mut trainer = Trainer::new(Box::new(NotAScalar(Cut::new())), &TrainSpec::default()).unwrap();
    let error = trainer.step(&features(), &mut session).unwrap_err();
    assert!(matches!(&error, StepError::Workload(message) if message.contains("mean_all")), "{error}");
    assert_eq!(session.open, None, "the phase is ended although its work failed");
}

#[test]
fn what_the_end_of_a_phase_reports_ends_the_step() {
    let mut session = PlainCpu::default();
    session.failure = Some(StepError::Device("gone".to_owned()));
    let error = trainer(OptimizerKind::Sgd).step(&tokens(0, 2), &mut session).unwrap_err();
    assert!(matches!(error, StepError::Device(_)));
    assert_eq!(session.phases, [Phase::Forward]);
}

#[test]
fn a_checkpoint_holds_parameters_and_moments() {
    let mut session = PlainCpu::default();
    let mut trainer = trainer(OptimizerKind::Adamw);
    trainer.step(&tokens(0, 2), &mut session).unwrap();
    trainer.update(&mut session).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let bytes = trainer.checkpoint(&path, &mut session).unwrap();
    assert_eq!(bytes, std::fs::metadata(&path).unwrap().len());
    assert_eq!(session.phases.last(), Some(&Phase::Checkpoint));

    let read = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    assert_eq!(read.len(), 3 * trainer.workload().parameters().len());
    for (name, _) in trainer.workload().parameters().iter() {
        let stored: Vec<f32> = read[name].flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(stored, values(&trainer, name), "{name}");
        let moment = &read[&format!("optimizer.{name}.second_moment")];
        assert_eq!(moment.shape(), read[name].shape());
    }
    let first = read["optimizer.ln_f.weight.first_moment"].abs().unwrap().max_all().unwrap();
    assert!(first.to_scalar::<f32>().unwrap() > 0.0);
}

#[test]
fn a_checkpoint_that_cannot_be_written_names_its_path() {
    let mut session = PlainCpu::default();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing").join("model.safetensors");
    let error = trainer(OptimizerKind::Adamw).checkpoint(&path, &mut session).unwrap_err().to_string();
    assert!(error.contains("missing/model.safetensors"), "{error}");
    assert_eq!(session.open, None);
}
