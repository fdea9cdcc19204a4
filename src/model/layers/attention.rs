//! Self-attention, written out in differentiable operations.

use candle_core::{D, DType, Result, Tensor};

use super::{BlockDimensions, Projection};
use crate::model::parameters::Parameters;

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

/// Scaled dot-product attention (Vaswani et al., 2017): `query` is `[B, H, T, K]`, `key` and `value` are `[B, G, T, K]`.
///
/// G divides H, and H / G heads of queries in a row share one of keys and values (Ainslie et al., "GQA", 2023). Nothing
/// is repeated for that: those heads are seen as one of (H / G)·T queries.
pub fn attend(query: &Tensor, key: &Tensor, value: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let (batch, heads, length, size) = query.dims4()?;
    let shared = key.dim(1)?;
    let queries = heads / shared.max(1) * length;
    // The query is scaled and not the scores: they are T / K times as large.
    let query = (query * (1.0 / (size as f64).sqrt()))?; // [B, H, T, K]
    let query = query.reshape((batch, shared, queries, size))?; // [B, G, (H / G)·T, K]
    let scores = query.matmul(&key.t()?)?.to_dtype(DType::F32)?; // [B, G, (H / G)·T, T]
    let scores = scores.reshape((batch, heads, length, ()))?; // [B, H, T, T]
    let scores = match mask {
        Some(mask) => (scores + mask)?, // [B, H, T, T]
        None => scores,
    };
    let weights = candle_nn::ops::softmax(&scores, D::Minus1)?.to_dtype(value.dtype())?; // [B, H, T, T]
    let weights = weights.reshape((batch, shared, queries, ()))?; // [B, G, (H / G)·T, T]
    weights.matmul(value)?.reshape((batch, heads, length, size)) // [B, H, T, K]
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

        let mixed = attend(&query, &key, &value, Some(mask))?; // [B, H, T, K]
        let mixed = mixed.transpose(1, 2)?.reshape((batch, length, width))?; // [B, T, D]
        self.output.forward(&mixed) // [B, T, D]
    }

    /// The same layer without a graph, over the same storage.
    pub fn detached(&self) -> Self {
        Self { query_key_value: self.query_key_value.detached(), output: self.output.detached(), heads: self.heads }
    }
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
    fn grouped_heads_are_those_of_repeated_keys_and_values() {
        let value = |seed: usize, shape: [usize; 4]| {
            let values: Vec<f32> =
                (0..shape.iter().product::<usize>()).map(|at| (at * (31 + seed) % 17) as f32 / 8.0 - 1.0).collect();
            Tensor::from_vec(values, &shape[..], &Device::Cpu).unwrap()
        };
        let (query, key, shared) = (value(0, [2, 6, 5, 4]), value(1, [2, 2, 5, 4]), value(2, [2, 2, 5, 4]));
        let mask = CausalMask::new(5, &Device::Cpu).unwrap().broadcast(2, 6, 5).unwrap();
        // Heads 0 to 2 share the first of the two.
        let repeated = |x: &Tensor| {
            let x = x.unsqueeze(2).unwrap().broadcast_as((2, 2, 3, 5, 4)).unwrap();
            x.reshape((2, 6, 5, 4)).unwrap()
        };
        let ours = attend(&query, &key, &shared, Some(&mask)).unwrap();
        let plain = attend(&query, &repeated(&key), &repeated(&shared), Some(&mask)).unwrap();
        let difference = (ours - plain).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(difference < 1e-6, "{difference}");
    }
}
