//! The layer as sentences: PyTorch's rules, and gradients by finite differences.

use candle_core::Device;

use super::*;

const CHANNELS: usize = 3;

fn layer(statistics: Statistics) -> (Parameters, Buffers, BatchNorm) {
    let mut parameters = Parameters::new(&Device::Cpu, DType::F32, 1);
    let mut buffers = parameters.buffers();
    let norm = BatchNorm::create((&mut parameters, &mut buffers), "bn", CHANNELS, statistics).unwrap();
    let set = |variable: &Var, values: &[f32]| variable.set(&Tensor::new(values, &Device::Cpu).unwrap()).unwrap();
    set(parameters.get("bn.weight").unwrap(), &[0.5, -1.5, 2.0]);
    set(parameters.get("bn.bias").unwrap(), &[0.1, 0.2, -0.3]);
    (parameters, buffers, norm)
}

fn image(dtype: DType) -> Var {
    let values: Vec<f32> = (0..2 * CHANNELS * 4).map(|index| (index * 37 % 23) as f32 / 5.0 + 3.0).collect();
    let tensor = Tensor::from_vec(values, (2, CHANNELS, 2, 2), &Device::Cpu).unwrap();
    Var::from_tensor(&tensor.to_dtype(dtype).unwrap()).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// A channel's values.
fn channel(x: &[f32], channel: usize) -> Vec<f32> {
    x.chunks(4).skip(channel).step_by(CHANNELS).flatten().copied().collect()
}

fn moments(values: &[f32]) -> (f32, f32) {
    let mean = values.iter().sum::<f32>() / values.len() as f32;
    (mean, values.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / values.len() as f32)
}

#[test]
fn a_channel_gets_the_bias_as_its_mean_and_the_weight_as_its_deviation() {
    let (_parameters, _buffers, norm) = layer(Statistics::Batch);
    let y = values(&norm.forward(&image(DType::F32), Pass::Train).unwrap());
    for (index, (weight, bias)) in [(0.5_f32, 0.1_f32), (-1.5, 0.2), (2.0, -0.3)].into_iter().enumerate() {
        let (mean, variance) = moments(&channel(&y, index));
        assert!((mean - bias).abs() < 1e-5 && (variance.sqrt() - weight.abs()).abs() < 1e-4, "{mean} {variance}");
    }
}

#[test]
fn the_running_statistics_follow_training_alone() {
    let (_parameters, buffers, norm) = layer(Statistics::Batch);
    let (_frozen_parameters, frozen_buffers, frozen) = layer(Statistics::Running);
    let x = image(DType::F32);
    let held = |buffers: &Buffers| buffers.iter().flat_map(|(_, buffer)| values(buffer)).collect::<Vec<f32>>();
    let first = held(&buffers);
    for pass in [Pass::Recompute, Pass::Evaluate] {
        norm.forward(&x, pass).unwrap();
        assert_eq!(held(&buffers), first, "{pass:?}");
    }
    frozen.forward(&x, Pass::Train).unwrap();
    assert_eq!(held(&frozen_buffers), first);

    for (steps, pass) in [(1, Pass::Train), (2, Pass::Forward)] {
        norm.forward(&x, pass).unwrap();
        let kept = 0.9_f32.powi(steps);
        for index in 0..CHANNELS {
            let (mean, variance) = moments(&channel(&values(&x), index));
            let running = held(&buffers);
            let expected = [mean * (1.0 - kept), kept + variance * 8.0 / 7.0 * (1.0 - kept)];
            for (found, expected) in [running[index], running[CHANNELS + index]].into_iter().zip(expected) {
                assert!((found - expected).abs() < 1e-4, "{found} against {expected}");
            }
        }
    }
}

#[test]
fn evaluation_and_frozen_layers_use_the_running_statistics() {
    let (_parameters, buffers, norm) = layer(Statistics::Running);
    for (_, buffer) in buffers.iter() {
        buffer.set(&Tensor::new(&[4.0_f32, 5.0, 6.0], &Device::Cpu).unwrap()).unwrap();
    }
    let x = image(DType::F32);
    let y = values(&norm.forward(&x, Pass::Train).unwrap());
    assert_eq!(y, values(&norm.forward(&x, Pass::Evaluate).unwrap()));
    for (index, (weight, bias)) in [(0.5, 0.1), (-1.5, 0.2), (2.0, -0.3)].into_iter().enumerate() {
        let running = 4.0 + index as f32;
        for (x, y) in channel(&values(&x), index).iter().zip(channel(&y, index)) {
            let expected = weight * (x - running) / (running + 1e-5).sqrt() + bias;
            assert!((y - expected).abs() < 1e-5, "{y} against {expected}");
        }
    }
}

#[test]
fn the_gradients_are_those_of_finite_differences() {
    for mode in [Statistics::Batch, Statistics::Running] {
        let (parameters, buffers, norm) = layer(mode.clone());
        for (_, buffer) in buffers.iter() {
            buffer.set(&Tensor::new(&[4.0_f32, 5.0, 6.0], &Device::Cpu).unwrap()).unwrap();
        }
        let x = image(DType::F32);
        let weights = image(DType::F32).sin().unwrap().detach();
        let loss = || {
            let y = norm.forward(&x, Pass::Recompute).unwrap();
            (y.sqr().unwrap() * &weights).unwrap().sum_all().unwrap()
        };
        let gradients = loss().backward().unwrap();
        let variables = parameters.iter().chain([("x", &x)]);
        for (name, variable) in variables {
            let gradient = values(gradients.get(variable).unwrap());
            let start = values(variable);
            let at = |index: usize, shift: f32| {
                let mut moved = start.clone();
                moved[index] += shift;
                variable.set(&Tensor::from_vec(moved, variable.shape(), &Device::Cpu).unwrap()).unwrap();
                loss().to_scalar::<f32>().unwrap()
            };
            for (index, expected) in gradient.iter().enumerate() {
                let numeric = (at(index, 1e-2) - at(index, -1e-2)) / 2e-2;
                at(index, 0.0);
                let close = (numeric - expected).abs() < 5e-3 * (1.0 + expected.abs());
                assert!(close, "{mode:?} {name} {index}: {numeric} against {expected}");
            }
        }
    }
}

#[test]
fn bfloat16_loses_no_more_than_its_own_digits() {
    let (_parameters, _buffers, norm) = layer(Statistics::Batch);
    let (exact, rounded) = (image(DType::F32), image(DType::BF16));
    let gradient = |x: &Var| {
        let y = norm.forward(x, Pass::Train).unwrap();
        assert_eq!(y.dtype(), x.dtype());
        y.to_dtype(DType::F32).unwrap().powf(3.0).unwrap().sum_all().unwrap().backward().unwrap().remove(x).unwrap()
    };
    let (exact, rounded) = (values(&gradient(&exact)), gradient(&rounded));
    assert_eq!(rounded.dtype(), DType::BF16);
    let scale = exact.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    for (exact, rounded) in exact.iter().zip(values(&rounded)) {
        assert!((exact - rounded).abs() < 0.02 * scale, "{exact} against {rounded}");
    }
}

#[test]
fn a_channel_of_one_value_becomes_its_bias() {
    let (_parameters, buffers, norm) = layer(Statistics::Batch);
    let x = image(DType::F32).narrow(0, 0, 1).unwrap().narrow(2, 0, 1).unwrap().narrow(3, 0, 1).unwrap();
    let y = values(&norm.forward(&x.contiguous().unwrap(), Pass::Train).unwrap());
    for (y, bias) in y.iter().zip([0.1, 0.2, -0.3]) {
        assert!((y - bias).abs() < 1e-3, "{y} against {bias}");
    }
    assert!(buffers.iter().all(|(_, buffer)| values(buffer).iter().all(|value| value.is_finite())));
}
