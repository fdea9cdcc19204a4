use candle_core::Device;

use super::*;
use crate::train::{BatchNorm, Precision};

fn spec(preset: &str) -> ModelSpec {
    ModelSpec { family: "vit".to_owned(), preset: Some(preset.to_owned()), ..ModelSpec::default() }
}

fn tiny() -> ModelSpec {
    ModelSpec {
        image_size: Some(8),
        layers: Some(2),
        heads: Some(2),
        hidden_size: Some(16),
        intermediate_size: Some(24),
        ..spec("nano")
    }
}

fn build(precision: Precision) -> Box<dyn Workload> {
    let spec = tiny();
    let batch_norm = BatchNorm::Train;
    Vit.build(&BuildContext { spec: &spec, device: &Device::Cpu, precision, batch_norm, seed: 1, replicas: None })
        .unwrap()
}

fn batch(samples: usize) -> Batch {
    let values: Vec<f32> = (0..samples * 3 * 64).map(|index| (index * 37 % 101) as f32 / 50.0 - 1.0).collect();
    let target: Vec<u32> = (0..samples as u32).map(|index| index * 7 % 10).collect();
    Batch {
        input: Tensor::from_vec(values, (samples, 3, 8, 8), &Device::Cpu).unwrap(),
        target: Tensor::from_vec(target, samples, &Device::Cpu).unwrap(),
        samples,
    }
}

fn value(loss: &Tensor) -> f32 {
    loss.to_scalar().unwrap()
}

#[test]
fn presets_have_the_published_numbers_of_parameters() {
    for (preset, published) in [("vit-s16", 22_050_664), ("vit-b16", 86_567_656), ("vit-l16", 304_326_632)] {
        assert_eq!(Vit.parameter_count(&spec(preset)).unwrap(), Some(published), "{preset}");
    }
}

#[test]
fn a_built_model_has_the_parameters_that_were_computed() {
    let workload = build(Precision::F32);
    let elements = workload.parameters().elements() as u64;
    assert_eq!(Vit.parameter_count(&tiny()).unwrap(), Some(elements));
    // Sixteen a block; the projection, the class token, the positions, the last norm and the head.
    assert_eq!(workload.parameters().len(), 2 * 16 + 8);
}

#[test]
fn dimensions_that_do_not_go_together_name_their_field() {
    let field = |spec: &ModelSpec| match Vit.input(spec) {
        Err(ModelError::Invalid { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(field(&ModelSpec { preset: None, ..spec("nano") }), "hidden_size");
    assert_eq!(field(&ModelSpec { image_size: Some(0), ..spec("nano") }), "image_size");
    assert_eq!(field(&ModelSpec { image_size: Some(1 << 20), ..spec("nano") }), "image_size");
    assert_eq!(field(&ModelSpec { patch_size: Some(0), ..spec("nano") }), "patch_size");
    assert_eq!(field(&ModelSpec { patch_size: Some(5), ..spec("nano") }), "patch_size");
    assert_eq!(field(&ModelSpec { patch_size: Some(64), ..spec("nano") }), "patch_size");
    assert_eq!(field(&ModelSpec { image_size: Some(1 << 14), patch_size: Some(1), ..spec("nano") }), "patch_size");
    assert_eq!(field(&ModelSpec { heads: Some(3), ..spec("nano") }), "heads");
    assert_eq!(field(&ModelSpec { classes: Some(0), ..spec("nano") }), "classes");
    assert_eq!(field(&ModelSpec { hidden_size: Some(1 << 40), ..spec("nano") }), "hidden_size");
    assert_eq!(field(&ModelSpec { sequence_length: Some(9), ..spec("nano") }), "sequence_length");
}

#[test]
fn the_projection_is_the_convolution_that_checkpoints_say_it_is() {
    let spec = tiny();
    let dimensions = Dimensions::of(&spec).unwrap();
    let mut parameters = Parameters::new(&Device::Cpu, DType::F32, 2);
    let network = Network::create(&mut parameters, &dimensions).unwrap();
    let images = batch(2).input;
    let embedded = network.embed(&images).unwrap();
    let weight = parameters.get("embeddings.patch_embeddings.projection.weight").unwrap();
    let convolved = images.conv2d(weight, 0, 4, 1, 1).unwrap().flatten_from(2).unwrap().transpose(1, 2).unwrap();
    let positions = parameters.get("embeddings.position_embeddings").unwrap().narrow(1, 1, 4).unwrap();
    let expected = convolved.broadcast_add(&positions).unwrap();
    let difference = (embedded.narrow(1, 1, 4).unwrap() - expected).unwrap().abs().unwrap().max_all().unwrap();
    assert!(value(&difference) < 1e-6);
}

#[test]
fn evaluation_gives_the_same_loss_and_no_graph() {
    let workload = build(Precision::F32);
    let (trained, evaluated) = (workload.loss(&batch(2)).unwrap(), workload.evaluate(&batch(2)).unwrap());
    assert_eq!(value(&trained).to_bits(), value(&evaluated).to_bits());
    assert!(trained.track_op() && !evaluated.track_op());
}

#[test]
fn sixteen_bits_follow_f32() {
    let exact = value(&build(Precision::F32).loss(&batch(4)).unwrap());
    for precision in [Precision::Bf16, Precision::MixedBf16, Precision::F16] {
        let workload = build(precision);
        let loss = workload.loss(&batch(4)).unwrap();
        assert_eq!(loss.dtype(), DType::F32);
        assert!((exact - value(&loss)).abs() < 0.02 * exact, "{precision}: {exact} against {}", value(&loss));
        let gradients = loss.backward().unwrap();
        for (name, variable) in workload.parameters().iter() {
            assert_eq!(gradients.get(variable).map(Tensor::dtype), Some(precision.parameter_dtype()), "{name}");
        }
    }
}
