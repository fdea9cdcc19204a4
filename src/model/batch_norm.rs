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
mod tests;
