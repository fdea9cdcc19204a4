//! Batch normalisation (Ioffe and Szegedy, 2015), as PyTorch's `BatchNorm2d`.
//!
//! `candle_nn::BatchNorm` fails in 16 bits and holds its running statistics among the variables of an optimizer, so
//! this is one of our own. Written out in tensor operations, every step of it would live until the backward pass: five
//! tensors of the size of the activations. So it is one operation with a backward pass of its own, and what it keeps is
//! its input and its result, as in PyTorch. Inside, everything is f32 whatever the type of the activations: temporary
//! tensors that go at once.
//!
//! The running statistics are [`Buffers`]: no gradient reaches them. They follow the batch's with a momentum of 0.1, and
//! the variance as that of a sample (divided by n − 1), while the batch is normalised with that of a population. PyTorch
//! also counts the batches (`num_batches_tracked`), which only matters without a momentum; here nobody does.
//!
//! A channel of a single value (one sample of one pixel) has no variance. PyTorch refuses it in training; here it
//! becomes the bias and the running variance takes a zero, so that a search can pass through a micro-batch of one.
//!
//! # Over replicas
//! With [`Statistics::Replicas`] the batch is that of all replicas (PyTorch's `SyncBatchNorm`). With R replicas of n values
//! each, and Σ over the values of all of them,
//!
//! ```text
//! μ = Σ x / (R·n)      σ² = Σ (x − μ)² / (R·n)      ∂x = s · (g − Σ g / (R·n) − x̂ · Σ (g · x̂) / (R·n))
//! ```
//!
//! As every replica has as many values (the loader's shards are of one size), each sum over all is the mean of the
//! replicas' own means: two exchanges of C values forward, and one of 2·C backward. The gradients of weight and bias
//! stay the replica's own sums; they are averaged with those of all other parameters. The running statistics follow the
//! batch of all, so they are the same everywhere.
//!
//! Letters of the shapes: B samples, C channels, H and W sides of the image, n = B·H·W.

use std::sync::Arc;

use candle_core::backend::BackendStorage;
use candle_core::op::{Add, Mul};
use candle_core::{CpuStorage, CudaStorage, CustomOp3, DType, Layout, Result, Shape, Storage, Tensor, Var};

use super::parameters::{Buffers, Init, Parameters};
use super::segments::Pass;
use crate::device::collective::{Collective, Reduction};

/// What is added to the variance before its root.
const EPSILON: f64 = 1e-5;

/// Share of a batch's statistics in the running ones.
const MOMENTUM: f64 = 0.1;

/// What a layer normalises by in training.
#[derive(Clone, Debug)]
pub enum Statistics {
    /// The batch's own statistics; the running ones follow.
    Batch,
    /// The running ones, which stay as they are.
    Running,
    /// Those of the batches of all replicas; the running ones follow.
    Replicas(Arc<dyn Collective>),
}

impl Statistics {
    fn replicas(&self) -> Option<&Arc<dyn Collective>> {
        match self {
            Self::Replicas(group) => Some(group),
            Self::Batch | Self::Running => None,
        }
    }
}

/// A batch normalisation over the channels of an image.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    weight: Tensor,
    bias: Tensor,
    running_mean: Var,
    running_variance: Var,
    statistics: Statistics,
}

impl BatchNorm {
    /// Creates the parameters `<name>.weight` as ones and `<name>.bias` as zeros, and the buffers
    /// `<name>.running_mean` as zeros and `<name>.running_var` as ones.
    pub fn create(
        (parameters, buffers): (&mut Parameters, &mut Buffers),
        name: &str,
        channels: usize,
        statistics: Statistics,
    ) -> Result<Self> {
        Ok(Self {
            weight: parameters.create(&format!("{name}.weight"), &[channels], Init::Constant(1.0))?, // [C]
            bias: parameters.create(&format!("{name}.bias"), &[channels], Init::Constant(0.0))?,     // [C]
            running_mean: buffers.create(&format!("{name}.running_mean"), &[channels], 0.0)?,        // [C]
            running_variance: buffers.create(&format!("{name}.running_var"), &[channels], 1.0)?,     // [C]
            statistics,
        })
    }

    /// Normalises every channel of `x`.
    pub fn forward(&self, x: &Tensor, pass: Pass) -> Result<Tensor> {
        let uses_batch = pass != Pass::Evaluate && !matches!(self.statistics, Statistics::Running);
        let replicas = self.statistics.replicas();
        let (mean, variance) = if uses_batch {
            let (mean, variance) = statistics(&x.detach(), replicas)?; // [C], [C]
            if pass.updates_statistics() {
                let [samples, _, height, width] = dimensions(x)?;
                let world = replicas.map_or(1, |group| group.world());
                self.follow(&mean, &variance, samples * height * width * world)?;
            }
            (mean, variance)
        } else {
            (self.running_mean.as_detached_tensor(), self.running_variance.as_detached_tensor()) // [C], [C]
        };
        let (weight, bias) = (self.weight.to_dtype(DType::F32)?, self.bias.to_dtype(DType::F32)?); // [C], [C]
        let reciprocal = (variance + EPSILON)?.sqrt()?.recip()?; // [C]
        let scale = (weight.detach() * &reciprocal)?; // [C]
        let shift = (bias.detach() - (&mean * &scale)?)?; // [C]
        let normalise = Normalise {
            mean: per_channel(&mean)?,
            reciprocal: per_channel(&reciprocal)?,
            scale: per_channel(&scale)?,
            shift: per_channel(&shift)?,
            uses_batch,
            replicas: replicas.filter(|_| uses_batch).map(Arc::clone),
        };
        x.apply_op3(&weight, &bias, normalise) // [B, C, H, W]
    }

    /// Moves the running statistics towards those of a batch of `count` values a channel.
    fn follow(&self, mean: &Tensor, variance: &Tensor, count: usize) -> Result<()> {
        let unbiased = count as f64 / count.saturating_sub(1).max(1) as f64;
        for (running, value) in [(&self.running_mean, mean.clone()), (&self.running_variance, (variance * unbiased)?)] {
            let moved = ((running.as_detached_tensor() * (1.0 - MOMENTUM))? + (value * MOMENTUM)?)?; // [C]
            running.set(&moved)?;
        }
        Ok(())
    }

    /// The same layer without a graph, over the same storage.
    pub fn detached(&self) -> Self {
        Self { weight: self.weight.detach(), bias: self.bias.detach(), ..self.clone() }
    }
}

fn dimensions(x: &Tensor) -> Result<[usize; 4]> {
    x.dims4().map(|(samples, channels, height, width)| [samples, channels, height, width])
}

/// Makes values that are means over this replica's batch those over the batch of all.
fn over_replicas(mean: Tensor, replicas: Option<&Arc<dyn Collective>>) -> Result<Tensor> {
    if let Some(group) = replicas {
        group.all_reduce(&[&mean], Reduction::Mean).map_err(candle_core::Error::wrap)?;
    }
    Ok(mean)
}

/// Mean and variance of a channel's values, in f32.
fn statistics(x: &Tensor, replicas: Option<&Arc<dyn Collective>>) -> Result<(Tensor, Tensor)> {
    let [samples, _, height, width] = dimensions(x)?;
    let share = 1.0 / (samples * height * width) as f64;
    let x = x.to_dtype(DType::F32)?; // [B, C, H, W]
    let mean = over_replicas((sum(&x)? * share)?, replicas)?; // [C]
    // In two passes: the difference of two means of squares would lose the digits that a large mean needs.
    let variance = (sum(&x.broadcast_sub(&per_channel(&mean)?)?.sqr()?)? * share)?; // [C]
    Ok((mean, over_replicas(variance, replicas)?))
}

/// The sum of a channel's values. First over the image, which lies in one piece, and then over the samples: candle's
/// kernel gives each result one block of threads, and C alone would leave most of a device idle.
fn sum(x: &Tensor) -> Result<Tensor> {
    let [samples, channels, height, width] = dimensions(x)?;
    x.reshape((samples, channels, height * width))?.sum(2)?.sum(0) // [C]
}

/// A view that goes with images.
fn per_channel(x: &Tensor) -> Result<Tensor> {
    x.reshape((1, (), 1, 1)) // [1, C, 1, 1]
}

/// The operation in the graph: (x, weight, bias) to `x · scale + shift`, where the scale is `weight / deviation` and the
/// shift `bias − mean · scale`.
struct Normalise {
    /// [1, C, 1, 1], as are all.
    mean: Tensor,
    /// One over the deviation.
    reciprocal: Tensor,
    scale: Tensor,
    shift: Tensor,
    /// Whether the mean and the deviation are those of x, and so depend on it.
    uses_batch: bool,
    /// Those whose x they are beside this one's.
    replicas: Option<Arc<dyn Collective>>,
}

impl Normalise {
    /// The means of two values of each channel over the batch of all replicas, in one exchange.
    fn over_replicas(&self, weight: Tensor, bias: Tensor) -> Result<(Tensor, Tensor)> {
        if self.replicas.is_none() {
            return Ok((weight, bias));
        }
        let both = over_replicas(Tensor::cat(&[&weight, &bias], 0)?, self.replicas.as_ref())?; // [2, C, 1, 1]
        Ok((both.narrow(0, 0, 1)?, both.narrow(0, 1, 1)?)) // [1, C, 1, 1], [1, C, 1, 1]
    }

    fn forward<S: BackendStorage>(&self, x: (&S, &Layout), of: fn(&Storage) -> Option<&S>) -> Result<(S, Shape)> {
        let (x, layout) = x;
        let shape = layout.shape();
        let (scale, scale_layout) = self.scale.storage_and_layout();
        let (shift, shift_layout) = self.shift.storage_and_layout();
        let (Some(scale), Some(shift)) = (of(&scale), of(&shift)) else {
            candle_core::bail!("an image and its batch norm lie on different devices")
        };
        let whole = Layout::contiguous(shape);
        let (scale_layout, shift_layout) = (scale_layout.broadcast_as(shape)?, shift_layout.broadcast_as(shape)?);
        let scaled = if x.dtype() == DType::F32 {
            x.binary_impl::<Mul>(scale, layout, &scale_layout)? // [B, C, H, W]
        } else {
            x.to_dtype(layout, DType::F32)?.binary_impl::<Mul>(scale, &whole, &scale_layout)? // [B, C, H, W]
        };
        let shifted = scaled.binary_impl::<Add>(shift, &whole, &shift_layout)?; // [B, C, H, W]
        drop(scaled);
        let y = if x.dtype() == DType::F32 { shifted } else { shifted.to_dtype(&whole, x.dtype())? }; // [B, C, H, W]
        Ok((y, shape.clone()))
    }
}

impl CustomOp3 for Normalise {
    fn name(&self) -> &'static str {
        "batch-norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        layout: &Layout,
        _weight: &CpuStorage,
        _: &Layout,
        _bias: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward((x, layout), |storage| match storage {
            Storage::Cpu(storage) => Some(storage),
            Storage::Cuda(_) | Storage::Metal(_) => None,
        })
    }

    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        layout: &Layout,
        _weight: &CudaStorage,
        _: &Layout,
        _bias: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.forward((x, layout), |storage| match storage {
            Storage::Cuda(storage) => Some(storage),
            Storage::Cpu(_) | Storage::Metal(_) => None,
        })
    }

    /// With x̂ the normalised x, g the gradient of the result and s the scale, the gradient of x is
    /// `s · (g − mean(g) − x̂ · mean(g · x̂))`, and `s · g` where the statistics do not depend on x.
    fn bwd(
        &self,
        x: &Tensor,
        _weight: &Tensor,
        _bias: &Tensor,
        _result: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [samples, _, height, width] = dimensions(x)?;
        let share = 1.0 / (samples * height * width) as f64;
        let g = gradient.to_dtype(DType::F32)?; // [B, C, H, W]
        let centred = x.detach().to_dtype(DType::F32)?.broadcast_sub(&self.mean)?; // [B, C, H, W]
        let bias = per_channel(&sum(&g)?)?; // [1, C, 1, 1]
        let weight = (per_channel(&sum(&(&g * &centred)?)?)? * &self.reciprocal)?; // [1, C, 1, 1]
        let mut of_x = g.broadcast_mul(&self.scale)?; // [B, C, H, W]
        drop(g);
        if self.uses_batch {
            let (weight, bias) = ((&weight * -share)?, (&bias * -share)?); // [1, C, 1, 1], [1, C, 1, 1]
            let (weight, bias) = self.over_replicas(weight, bias)?; // [1, C, 1, 1], [1, C, 1, 1]
            let slope = ((&self.scale * &self.reciprocal)? * weight)?; // [1, C, 1, 1]
            let turned = centred.broadcast_mul(&slope)?; // [B, C, H, W]
            drop(centred);
            of_x = (of_x + turned)?; // [B, C, H, W]
            of_x = of_x.broadcast_add(&(&self.scale * bias)?)?; // [B, C, H, W]
        }
        Ok((Some(of_x.to_dtype(x.dtype())?), Some(weight.flatten_all()?), Some(bias.flatten_all()?)))
    }
}

#[cfg(test)]
mod tests {
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
}
