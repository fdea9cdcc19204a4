//! Affine maps of each token, in the two layouts that checkpoints have.

use candle_core::{Result, Tensor};

use crate::model::parameters::{Init, Parameters};

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

/// A map of the last dimension whose weight is stored `[O, I]`, as `torch.nn.Linear` stores it, with or without a bias.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// Creates `<name>.weight` of the shape `[O, I]` from a normal distribution of this deviation. It has no bias.
    pub fn create(parameters: &mut Parameters, name: &str, shape: [usize; 2], deviation: f32) -> Result<Self> {
        let weight = parameters.create(&format!("{name}.weight"), &shape, Init::Normal(deviation))?; // [O, I]
        Ok(Self { weight, bias: None })
    }

    /// The same with `<name>.bias` as zeros.
    pub fn with_bias(self, parameters: &mut Parameters, name: &str) -> Result<Self> {
        let bias = parameters.create(&format!("{name}.bias"), &[self.weight.dim(0)?], Init::Constant(0.0))?; // [O]
        Ok(Self { bias: Some(bias), ..self })
    }

    /// A map with the weight of another layer, such as an embedding's table.
    pub fn tied(weight: &Tensor) -> Self {
        Self { weight: weight.clone(), bias: None }
    }

    /// Applies the map to every token.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, length, _) = x.dims3()?;
        self.rows(x)?.reshape((batch, length, ())) // [B, T, O]
    }

    /// Applies the map to every token and joins the samples.
    pub fn rows(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, length, inputs) = x.dims3()?;
        // Two dimensions: with three, the weight would be broadcast and its gradient be B times as large.
        let rows = x.reshape((batch * length, inputs))?; // [B·T, I]
        let rows = rows.matmul(&self.weight.to_dtype(x.dtype())?.t()?)?; // [B·T, O]
        match &self.bias {
            Some(bias) => rows.broadcast_add(&bias.to_dtype(x.dtype())?), // [B·T, O]
            None => Ok(rows),
        }
    }

    /// The same layer without a graph, over the same storage.
    pub fn detached(&self) -> Self {
        Self { weight: self.weight.detach(), bias: self.bias.as_ref().map(Tensor::detach) }
    }
}
