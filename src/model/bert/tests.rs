use candle_core::Device;

use super::*;
use crate::data::masked::IGNORED;
use crate::train::{BatchNorm, Precision};

fn spec(preset: &str) -> ModelSpec {
    ModelSpec { family: "bert".to_owned(), preset: Some(preset.to_owned()), ..ModelSpec::default() }
}

fn tiny() -> ModelSpec {
    ModelSpec {
        sequence_length: Some(8),
        layers: Some(2),
        heads: Some(2),
        hidden_size: Some(16),
        intermediate_size: Some(24),
        vocabulary_size: Some(32),
        ..spec("nano")
    }
}

fn build(spec: &ModelSpec, precision: Precision) -> Box<dyn Workload> {
    Bert.build(&BuildContext {
        spec,
        device: &Device::Cpu,
        precision,
        batch_norm: BatchNorm::Train,
        seed: 1,
        replicas: None,
    })
    .unwrap()
}

/// Every third token is asked about.
fn batch(samples: usize, length: usize) -> Batch {
    let ids = |of: fn(u32) -> u32| {
        let ids: Vec<u32> = (0..(samples * length) as u32).map(of).collect();
        Tensor::from_vec(ids, (samples, length), &Device::Cpu).unwrap()
    };
    let target = ids(|at| if at % 3 == 0 { (at * 5 + 2) % 32 } else { IGNORED });
    Batch { input: ids(|at| at * 7 % 32), target, samples }
}

fn invalid_field(spec: &ModelSpec) -> &'static str {
    match Bert.input(spec) {
        Err(ModelError::Invalid { field, .. }) => field,
        other => panic!("{other:?}"),
    }
}

#[test]
fn presets_have_the_numbers_of_parameters_of_the_reference() {
    assert_eq!(PRESETS.get("base").unwrap().parameters(), Some(109_514_298));
    assert_eq!(PRESETS.get("large").unwrap().parameters(), Some(335_174_458));
}

#[test]
fn a_built_model_has_the_parameters_that_were_computed() {
    let workload = build(&tiny(), Precision::F32);
    let expected = Dimensions::of(&tiny()).unwrap().parameters();
    assert_eq!(Some(workload.parameters().elements()), expected);
    assert_eq!(workload.parameters().len(), 5 + 2 * 16 + 5);
}

#[test]
fn the_mask_is_the_vocabulary_s_own_or_its_last_token() {
    let mask = |spec: &ModelSpec| match Bert.input(spec).unwrap() {
        InputSpec::MaskedTokens { mask_token, .. } => mask_token,
        other => panic!("{other:?}"),
    };
    assert_eq!(mask(&spec("base")), 103);
    assert_eq!(mask(&spec("nano")), 256);
    assert_eq!(mask(&tiny()), 31);
    assert_eq!(mask(&ModelSpec { preset: None, ..tiny() }), 31);
}

#[test]
fn dimensions_that_do_not_go_together_name_their_field() {
    assert_eq!(invalid_field(&ModelSpec { heads: Some(3), ..spec("nano") }), "heads");
    assert_eq!(invalid_field(&ModelSpec { vocabulary_size: Some(0), ..spec("nano") }), "vocabulary_size");
    assert_eq!(invalid_field(&ModelSpec { key_value_heads: Some(2), ..spec("nano") }), "key_value_heads");
    assert_eq!(invalid_field(&ModelSpec { hidden_size: Some(usize::MAX - 3), ..spec("nano") }), "hidden_size");
    assert_eq!(invalid_field(&ModelSpec { intermediate_size: Some(0), ..spec("nano") }), "intermediate_size");
}

#[test]
fn evaluation_gives_the_same_loss_and_no_graph() {
    let workload = build(&tiny(), Precision::F32);
    let batch = batch(2, 8);
    let (trained, evaluated) = (workload.loss(&batch).unwrap(), workload.evaluate(&batch).unwrap());
    let bits = |loss: &Tensor| loss.to_scalar::<f32>().unwrap().to_bits();
    assert_eq!(bits(&trained), bits(&evaluated));
    assert!(trained.track_op() && !evaluated.track_op());
    assert!(workload.loss(&super::tests::batch(1, 9)).is_err());
}

#[test]
fn every_token_sees_those_after_it() {
    let workload = build(&tiny(), Precision::F32);
    let loss = |last: u32| {
        let input = Tensor::new(&[[1_u32, 2, 3, last]], &Device::Cpu).unwrap();
        let target = Tensor::new(&[[5_u32, IGNORED, IGNORED, IGNORED]], &Device::Cpu).unwrap();
        workload.evaluate(&Batch { input, target, samples: 1 }).unwrap().to_scalar::<f32>().unwrap()
    };
    assert_ne!(loss(4).to_bits(), loss(9).to_bits());
}

#[test]
fn sixteen_bits_follow_f32() {
    let exact = build(&tiny(), Precision::F32).loss(&batch(2, 8)).unwrap().to_scalar::<f32>().unwrap();
    for precision in [Precision::Bf16, Precision::F16, Precision::MixedBf16, Precision::MixedF16] {
        let workload = build(&tiny(), precision);
        let loss = workload.loss(&batch(2, 8)).unwrap();
        assert_eq!(loss.dtype(), DType::F32);
        assert!((loss.to_scalar::<f32>().unwrap() - exact).abs() < 0.02, "{precision}");
        let gradients = loss.backward().unwrap();
        for (name, variable) in workload.parameters().iter() {
            let dtype = gradients.get(variable).map(Tensor::dtype);
            assert_eq!(dtype, Some(precision.parameter_dtype()), "{precision}: {name}");
        }
    }
}
