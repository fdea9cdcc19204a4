use candle_core::Device;

use super::*;
use crate::model::segments;
use crate::train;
use crate::train::Precision;

fn spec(preset: &str) -> ModelSpec {
    ModelSpec { family: "resnet".to_owned(), preset: Some(preset.to_owned()), ..ModelSpec::default() }
}

fn build_with(precision: Precision, batch_norm: train::BatchNorm) -> Box<dyn Workload> {
    let spec = spec("nano");
    let context = BuildContext { spec: &spec, device: &Device::Cpu, precision, batch_norm, seed: 1, replicas: None };
    ResNet.build(&context).unwrap()
}

fn build() -> Box<dyn Workload> {
    build_with(Precision::F32, train::BatchNorm::Train)
}

fn batch(samples: usize, side: usize) -> Batch {
    let values: Vec<f32> = (0..samples * 3 * side * side).map(|index| (index * 37 % 101) as f32 / 50.0 - 1.0).collect();
    let target: Vec<u32> = (0..samples as u32).map(|index| index * 7 % 10).collect();
    Batch {
        input: Tensor::from_vec(values, (samples, 3, side, side), &Device::Cpu).unwrap(),
        target: Tensor::from_vec(target, samples, &Device::Cpu).unwrap(),
        samples,
    }
}

fn value(loss: &Tensor) -> f32 {
    loss.to_scalar().unwrap()
}

#[test]
fn presets_have_the_published_numbers_of_parameters() {
    for (preset, published) in [
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
    ] {
        assert_eq!(ResNet.parameter_count(&spec(preset)).unwrap(), Some(published), "{preset}");
    }
}

#[test]
fn a_built_model_has_the_parameters_that_were_computed() {
    let workload = build();
    let elements = workload.parameters().elements() as u64;
    assert_eq!(ResNet.parameter_count(&spec("nano")).unwrap(), Some(elements));
    // Nine convolutions, with a weight and a bias of the norm after each, and the head.
    assert_eq!(workload.parameters().len(), 9 * 3 + 2);
    assert_eq!(workload.buffers().unwrap().iter().count(), 9 * 2);
}

#[test]
fn names_are_those_of_torchvision() {
    let dimensions = PRESETS.get("resnet50").unwrap();
    let blocks = dimensions.blocks();
    assert_eq!(blocks.len(), 16);
    assert_eq!(blocks[3].name, "layer2.0");
    let strides: Vec<usize> = blocks[3].kernels.iter().map(|kernel| kernel.stride).collect();
    assert_eq!(strides, [1, 2, 1], "the stride is in the convolution of 3 × 3");
    let workload = build();
    for name in ["conv1.weight", "bn1.bias", "layer1.0.conv2.weight", "layer2.0.downsample.1.weight", "fc.bias"] {
        assert!(workload.parameters().get(name).is_some(), "{name}");
    }
    let buffers: Vec<&str> = workload.buffers().unwrap().iter().map(|(name, _)| name).collect();
    assert!(buffers.contains(&"bn1.running_mean") && buffers.contains(&"layer3.0.bn2.running_var"), "{buffers:?}");
}

#[test]
fn dimensions_that_cannot_be_meant_name_their_field() {
    let field = |spec: &ModelSpec| match ResNet.input(spec) {
        Err(ModelError::Invalid { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(field(&ModelSpec { preset: None, ..spec("nano") }), "preset");
    assert_eq!(field(&ModelSpec { image_size: Some(0), ..spec("nano") }), "image_size");
    assert_eq!(field(&ModelSpec { image_size: Some(1 << 20), ..spec("nano") }), "image_size");
    assert_eq!(field(&ModelSpec { hidden_size: Some(0), ..spec("nano") }), "hidden_size");
    assert_eq!(field(&ModelSpec { heads: Some(2), ..spec("nano") }), "heads");
    assert_eq!(field(&ModelSpec { classes: Some(0), ..spec("nano") }), "classes");
    assert_eq!(field(&ModelSpec { classes: Some(usize::MAX), ..spec("nano") }), "classes");
    let mut odd = spec("nano");
    odd.options.insert("groups".to_owned(), 32.into());
    assert_eq!(field(&odd), "options");
    let error = ResNet.input(&spec("resnet51")).unwrap_err().to_string();
    assert!(error.contains("`resnet51`") && error.contains("resnet152"), "{error}");
}

#[test]
fn statistics_over_replicas_need_more_than_one() {
    let spec = spec("nano");
    let context = BuildContext {
        spec: &spec,
        device: &Device::Cpu,
        precision: Precision::F32,
        batch_norm: train::BatchNorm::Sync,
        seed: 1,
        replicas: None,
    };
    assert!(matches!(ResNet.build(&context), Err(ModelError::SyncWithoutReplicas)));
}

#[test]
fn images_of_any_size_have_a_backward_pass() {
    for side in [1, 2, 7, 17, 30, 33] {
        let loss = build().loss(&batch(2, side)).unwrap();
        assert!(value(&loss).is_finite(), "{side}");
        loss.backward().unwrap();
    }
    let wide = Batch { input: batch(1, 32).input.reshape((1, 3, 64, 16)).unwrap(), ..batch(1, 32) };
    build().loss(&wide).unwrap().backward().unwrap();
}

#[test]
fn the_segments_in_a_row_are_the_loss() {
    let (whole, cut) = (build(), build());
    let batch = batch(2, 32);
    let loss = whole.loss(&batch).unwrap();
    let segments = cut.segments(&batch, Pass::Forward).unwrap().unwrap();
    assert_eq!(segments.count(), 5);
    let forward = segments::loss(segments.as_ref(), &batch.input).unwrap();
    assert_eq!(value(&loss).to_bits(), value(&forward).to_bits());
    assert!(loss.track_op() && !forward.track_op());
    // The running statistics have moved once; a second time, for the backward pass, they stay.
    let again = segments::loss(cut.segments(&batch, Pass::Recompute).unwrap().unwrap().as_ref(), &batch.input).unwrap();
    assert_eq!(value(&loss).to_bits(), value(&again).to_bits());
    for ((name, one), (_, other)) in whole.buffers().unwrap().iter().zip(cut.buffers().unwrap().iter()) {
        assert_eq!(one.to_vec1::<f32>().unwrap(), other.to_vec1::<f32>().unwrap(), "{name}");
    }
}

#[test]
fn bfloat16_follows_f32() {
    let batch = batch(4, 32);
    let exact = value(&build().loss(&batch).unwrap());
    for precision in [Precision::Bf16, Precision::MixedBf16, Precision::F16] {
        let rounded = build_with(precision, train::BatchNorm::Train);
        let loss = rounded.loss(&batch).unwrap();
        assert_eq!(loss.dtype(), DType::F32);
        assert!((exact - value(&loss)).abs() < 0.02 * exact, "{precision}: {exact} against {}", value(&loss));
        let gradients = loss.backward().unwrap();
        for (name, variable) in rounded.parameters().iter() {
            assert_eq!(gradients.get(variable).map(Tensor::dtype), Some(precision.parameter_dtype()), "{name}");
        }
    }
}
