use candle_core::Device;

use super::*;
use crate::train::{BatchNorm, Precision};

fn spec(preset: &str) -> ModelSpec {
    ModelSpec { family: "llama".to_owned(), preset: Some(preset.to_owned()), ..ModelSpec::default() }
}

fn tiny() -> ModelSpec {
    ModelSpec {
        sequence_length: Some(8),
        layers: Some(2),
        heads: Some(4),
        key_value_heads: Some(2),
        hidden_size: Some(16),
        intermediate_size: Some(24),
        vocabulary_size: Some(32),
        ..spec("nano")
    }
}

fn build(spec: &ModelSpec, precision: Precision) -> Box<dyn Workload> {
    Llama
        .build(&BuildContext {
            spec,
            device: &Device::Cpu,
            precision,
            batch_norm: BatchNorm::Train,
            seed: 1,
            replicas: None,
        })
        .unwrap()
}

fn batch(samples: usize, length: usize) -> Batch {
    let ids = |shift: u32| {
        let ids: Vec<u32> = (0..(samples * length) as u32).map(|index| (index * 7 + shift) % 32).collect();
        Tensor::from_vec(ids, (samples, length), &Device::Cpu).unwrap()
    };
    Batch { input: ids(0), target: ids(7), samples }
}

fn invalid_field(spec: &ModelSpec) -> &'static str {
    match Llama.input(spec) {
        Err(ModelError::Invalid { field, .. }) => field,
        other => panic!("{other:?}"),
    }
}

#[test]
fn presets_have_the_published_numbers_of_parameters() {
    let count = |preset| PRESETS.get(preset).unwrap().parameters();
    assert_eq!(count("tinyllama-1.1b"), Some(1_100_048_384));
    assert_eq!(count("llama-3.2-1b"), Some(1_235_814_400));
    assert_eq!(count("llama-2-7b"), Some(6_738_415_616));
    for name in PRESETS.names() {
        assert!(Llama.input(&spec(name)).is_ok(), "{name}");
    }
}

#[test]
fn a_built_model_has_the_parameters_that_were_computed() {
    let workload = build(&tiny(), Precision::F32);
    let expected = Dimensions::of(&tiny()).unwrap().parameters();
    assert_eq!(Some(workload.parameters().elements()), expected);
    assert_eq!(workload.parameters().len(), 2 * 9 + 3);
}

#[test]
fn dimensions_that_do_not_go_together_name_their_field() {
    assert_eq!(invalid_field(&ModelSpec { heads: Some(3), ..spec("nano") }), "heads");
    assert_eq!(invalid_field(&ModelSpec { heads: Some(128), ..spec("nano") }), "heads");
    assert_eq!(invalid_field(&ModelSpec { heads: Some(0), ..spec("nano") }), "heads");
    assert_eq!(invalid_field(&ModelSpec { key_value_heads: Some(3), ..spec("nano") }), "key_value_heads");
    assert_eq!(invalid_field(&ModelSpec { key_value_heads: Some(8), ..spec("nano") }), "key_value_heads");
    assert_eq!(invalid_field(&ModelSpec { key_value_heads: Some(0), ..spec("nano") }), "key_value_heads");
    assert_eq!(invalid_field(&ModelSpec { intermediate_size: Some(0), ..spec("nano") }), "intermediate_size");
    assert_eq!(invalid_field(&ModelSpec { hidden_size: Some(1 << 40), ..spec("nano") }), "hidden_size");
    assert_eq!(invalid_field(&ModelSpec { layers: Some(usize::MAX), ..spec("nano") }), "layers");
    assert_eq!(invalid_field(&ModelSpec { image_size: Some(224), ..spec("nano") }), "image_size");
    assert_eq!(invalid_field(&ModelSpec { preset: None, ..spec("nano") }), "heads");
}

#[test]
fn evaluation_gives_the_same_loss_and_no_graph() {
    let workload = build(&tiny(), Precision::F32);
    let batch = batch(2, 8);
    let (trained, evaluated) = (workload.loss(&batch).unwrap(), workload.evaluate(&batch).unwrap());
    let bits = |loss: &Tensor| loss.to_scalar::<f32>().unwrap().to_bits();
    assert_eq!(bits(&trained), bits(&evaluated));
    assert!(trained.track_op() && !evaluated.track_op());
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
