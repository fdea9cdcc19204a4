//! Differentiable building blocks of transformers.
//!
//! Every operation here has a backward pass in candle 0.11, which is not a matter of course:
//! `candle_nn::LayerNorm`, `RmsNorm`, `softmax_last_dim`, the rotary ops and `sdpa` are custom ops without one, and a
//! graph that goes through them is cut without an error. So normalisation is `candle_nn::ops::layer_norm_slow` and
//! attention is written out; both are what a candle user trains with, and so is their memory.
//!
//! Whatever the type of the activations, a layer converts its parameters to it, which does nothing where they agree
//! and is mixed precision where they do not: the conversion is part of the graph, so the gradient arrives in the type
//! of the parameter.
//!
//! With activations in 16 bits the normalisation and the softmax are computed in f32 (their sums lose too much in
//! 8 bits of mantissa) and cast back. That costs f32 copies of the scores, `[B, H, T, T]`, which live until the
//! backward pass like every other activation.
//!
//! The layers hold tensors and not variables: [`detached`](Projection::detached) gives a twin over the same storage
//! that builds no graph.
//!
//! Letters of the shapes: B samples, T tokens, D width of the residual stream, H heads, K = D / H, I inputs and
//! O outputs of a projection.

use candle_core::{D, DType, Result, Tensor};

use super::parameters::{Init, Parameters};

/// What is added to the variance before its root, as in GPT-2.
const NORM_EPSILON: f32 = 1e-5;

/// Layer normalisation over the last dimension (Ba, Kiros and Hinton, 2016).
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
}

impl LayerNorm {
    /// Creates `<name>.weight` as ones and `<name>.bias` as zeros.
    pub fn create(parameters: &mut Parameters, name: &str, width: usize) -> Result<Self> {
        Ok(Self {
            weight: parameters.create(&format!("{name}.weight"), &[width], Init::Constant(1.0))?, // [D]
            bias: parameters.create(&format!("{name}.bias"), &[width], Init::Constant(0.0))?,     // [D]
        })
    }

    /// Normalises each row of `x`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (weight, bias) = (self.weight.to_dtype(x.dtype())?, self.bias.to_dtype(x.dtype())?); // [D], [D]
        candle_nn::ops::layer_norm_slow(x, &weight, &bias, NORM_EPSILON) // [.., D]
    }

    /// The same layer without a graph, over the same storage.
    pub fn detached(&self) -> Self {
        Self { weight: self.weight.detach(), bias: self.bias.detach() }
    }
}

/// An affine map of the last dimension. Its weight is stored `[I, O]`, as GPT-2's `Conv1D` stores it.
#[derive(Clone, Debug)]
pub struct Projection {
    weight: Tensor,
    bias: Tensor,
}

impl Projection {
    /// Creates `<name>.weight` from a normal distribution of this deviation and `<name>.bias` as zeros.
    pub fn create(parameters: &mut Parameters, name: &str, shape: [usize; 2], deviation: f32) -> Result<Self> {
        let [_, outputs] = shape;
        Ok(Self {
            weight: parameters.create(&format!("{name}.weight"), &shape, Init::Normal(deviation))?, // [I, O]
            bias: parameters.create(&format!("{name}.bias"), &[outputs], Init::Constant(0.0))?,     // [O]
        })
    }

    /// Applies the map to every token.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, length, inputs) = x.dims3()?;
        // Two dimensions: with three, the weight would be broadcast and its gradient be B times as large.
        let rows = x.reshape((batch * length, inputs))?; // [B·T, I]
        let (weight, bias) = (self.weight.to_dtype(x.dtype())?, self.bias.to_dtype(x.dtype())?); // [I, O], [O]
        let rows = rows.matmul(&weight)?.broadcast_add(&bias)?; // [B·T, O]
        rows.reshape((batch, length, ())) // [B, T, O]
    }

    /// The same layer without a graph, over the same storage.
    pub fn detached(&self) -> Self {
        Self { weight: self.weight.detach(), bias: self.bias.detach() }
    }
}

/// The causal mask: 0 where a token may look, −∞ where it may not.
///
/// The `[T, T]` table is made once per model. A forward pass broadcasts it once, and all layers share that view:
/// candle computes a gradient for whatever is added to a tracked tensor and keeps it to the end of the backward pass,
/// so a view per layer would cost `[B, H, T, T]` per layer.
#[derive(Clone, Debug)]
pub struct CausalMask {
    table: Tensor,
}

impl CausalMask {
    /// The mask for up to `length` tokens.
    pub fn new(length: usize, device: &candle_core::Device) -> Result<Self> {
        let table: Vec<f32> = (0..length)
            .flat_map(|row| (0..length).map(move |column| if column > row { f32::NEG_INFINITY } else { 0.0 }))
            .collect();
        Ok(Self { table: Tensor::from_vec(table, (length, length), device)? }) // [T, T]
    }

    /// A view for the scores of one forward pass.
    pub fn broadcast(&self, batch: usize, heads: usize, length: usize) -> Result<Tensor> {
        let table = self.table.narrow(0, 0, length)?.narrow(1, 0, length)?; // [T, T]
        table.broadcast_as((batch, heads, length, length)) // [B, H, T, T]
    }
}

/// Multi-head causal self-attention (Vaswani et al., 2017), written out in differentiable operations.
#[derive(Clone, Debug)]
pub struct CausalAttention {
    query_key_value: Projection,
    output: Projection,
    heads: usize,
}

impl CausalAttention {
    /// Creates `<name>.c_attn` and `<name>.c_proj`. `heads` divides `width`.
    pub fn create(parameters: &mut Parameters, name: &str, dimensions: &BlockDimensions) -> Result<Self> {
        let width = dimensions.width;
        let deviation = dimensions.deviation;
        Ok(Self {
            query_key_value: Projection::create(parameters, &format!("{name}.c_attn"), [width, 3 * width], deviation)?,
            output: Projection::create(
                parameters,
                &format!("{name}.c_proj"),
                [width, width],
                dimensions.residual_deviation,
            )?,
            heads: dimensions.heads,
        })
    }

    /// Lets every token look at itself and at those before it. `mask` comes from [`CausalMask::broadcast`].
    pub fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (batch, length, width) = x.dims3()?;
        let size = width / self.heads;
        let joint = self.query_key_value.forward(x)?; // [B, T, 3·D]
        let joint = joint.reshape((batch, length, 3, self.heads, size))?; // [B, T, 3, H, K]
        let part = |index| joint.narrow(2, index, 1)?.squeeze(2)?.transpose(1, 2)?.contiguous(); // [B, H, T, K]
        let (query, key, value) = (part(0)?, part(1)?, part(2)?);

        // The query is scaled and not the scores: they are T / K times as large.
        let query = (query * (1.0 / (size as f64).sqrt()))?; // [B, H, T, K]
        let scores = query.matmul(&key.t()?)?.to_dtype(DType::F32)?; // [B, H, T, T]
        let scores = (scores + mask)?; // [B, H, T, T]
        let weights = candle_nn::ops::softmax(&scores, D::Minus1)?.to_dtype(x.dtype())?; // [B, H, T, T]

        let mixed = weights.matmul(&value)?; // [B, H, T, K]
        let mixed = mixed.transpose(1, 2)?.reshape((batch, length, width))?; // [B, T, D]
        self.output.forward(&mixed) // [B, T, D]
    }

    /// The same layer without a graph, over the same storage.
    pub fn detached(&self) -> Self {
        Self { query_key_value: self.query_key_value.detached(), output: self.output.detached(), heads: self.heads }
    }
}

/// The position-wise network of a block: four times the width, GELU in its tanh form, and back.
#[derive(Clone, Debug)]
pub struct Mlp {
    up: Projection,
    down: Projection,
}

impl Mlp {
    /// Creates `<name>.c_fc` and `<name>.c_proj`.
    pub fn create(parameters: &mut Parameters, name: &str, dimensions: &BlockDimensions) -> Result<Self> {
        let width = dimensions.width;
        let down = dimensions.residual_deviation;
        Ok(Self {
            up: Projection::create(parameters, &format!("{name}.c_fc"), [width, 4 * width], dimensions.deviation)?,
            down: Projection::create(parameters, &format!("{name}.c_proj"), [4 * width, width], down)?,
        })
    }

    /// Applies the network to every token.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let hidden = self.up.forward(x)?.gelu()?; // [B, T, 4·D]
        self.down.forward(&hidden) // [B, T, D]
    }

    /// The same layer without a graph, over the same storage.
    pub fn detached(&self) -> Self {
        Self { up: self.up.detached(), down: self.down.detached() }
    }
}

/// What the layers of one block are made with.
#[derive(Clone, Copy, Debug)]
pub struct BlockDimensions {
    /// D.
    pub width: usize,
    /// H.
    pub heads: usize,
    /// Standard deviation of the weights.
    pub deviation: f32,
    /// Standard deviation of the weights that write to the residual stream.
    pub residual_deviation: f32,
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    fn attention(heads: usize, width: usize) -> (Parameters, CausalAttention) {
        let mut parameters = Parameters::new(&Device::Cpu, DType::F32, 7);
        let dimensions = BlockDimensions { width, heads, deviation: 0.3, residual_deviation: 0.3 };
        let attention = CausalAttention::create(&mut parameters, "attn", &dimensions).unwrap();
        (parameters, attention)
    }

    fn input(length: usize, width: usize) -> Var {
        let values: Vec<f32> = (0..length * width).map(|index| ((index * 37 % 23) as f32 - 11.0) / 11.0).collect();
        Var::from_tensor(&Tensor::from_vec(values, (1, length, width), &Device::Cpu).unwrap()).unwrap()
    }

    #[test]
    fn a_token_does_not_see_those_after_it() {
        let (_parameters, attention) = attention(2, 8);
        let mask = CausalMask::new(5, &Device::Cpu).unwrap();
        let x = input(5, 8);
        let whole = attention.forward(&x, &mask.broadcast(1, 2, 5).unwrap()).unwrap();
        let head = attention.forward(&x.narrow(1, 0, 3).unwrap(), &mask.broadcast(1, 2, 3).unwrap()).unwrap();
        let difference = (whole.narrow(1, 0, 3).unwrap() - head).unwrap().abs().unwrap().max_all().unwrap();
        assert!(difference.to_scalar::<f32>().unwrap() < 1e-6);
    }

    #[test]
    fn attention_has_the_gradient_of_finite_differences() {
        let (_parameters, attention) = attention(2, 4);
        let mask = CausalMask::new(3, &Device::Cpu).unwrap().broadcast(1, 2, 3).unwrap();
        let x = input(3, 4);
        let loss = |x: &Tensor| attention.forward(x, &mask).unwrap().sqr().unwrap().sum_all().unwrap();
        let gradient = loss(&x).backward().unwrap().remove(&x).unwrap();
        let gradient: Vec<f32> = gradient.flatten_all().unwrap().to_vec1().unwrap();
        let values: Vec<f32> = x.flatten_all().unwrap().to_vec1().unwrap();
        let at = |index: usize, shift: f32| {
            let mut moved = values.clone();
            moved[index] += shift;
            let moved = Tensor::from_vec(moved, (1, 3, 4), &Device::Cpu).unwrap();
            loss(&moved).to_scalar::<f32>().unwrap()
        };
        for (index, expected) in gradient.iter().enumerate() {
            let numeric = (at(index, 1e-2) - at(index, -1e-2)) / 2e-2;
            assert!(
                (numeric - expected).abs() < 2e-3 * (1.0 + expected.abs()),
                "{index}: {numeric} against {expected}"
            );
        }
    }

    #[test]
    fn a_detached_layer_builds_no_graph_and_follows_updates() {
        let (parameters, attention) = attention(2, 4);
        let detached = attention.detached();
        let mask = CausalMask::new(3, &Device::Cpu).unwrap().broadcast(1, 2, 3).unwrap();
        let x = input(3, 4).as_detached_tensor();
        assert!(!detached.forward(&x, &mask).unwrap().track_op());
        for (_, variable) in parameters.iter() {
            variable.set(&variable.zeros_like().unwrap()).unwrap();
        }
        let after = detached.forward(&x, &mask).unwrap().abs().unwrap().max_all().unwrap();
        assert!(after.to_scalar::<f32>().unwrap() < f32::MIN_POSITIVE);
    }

    #[test]
    fn layer_normalisation_has_mean_zero_and_variance_one() {
        let mut parameters = Parameters::new(&Device::Cpu, DType::F32, 0);
        let norm = LayerNorm::create(&mut parameters, "ln", 8).unwrap();
        let y: Vec<f32> = norm.forward(&input(1, 8)).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        let mean = y.iter().sum::<f32>() / 8.0;
        let variance = y.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / 8.0;
        assert!(mean.abs() < 1e-6 && (variance - 1.0).abs() < 1e-3);
    }
}
