//! The affine map of PyTorch's `Linear`, whose weight is stored `[O, I]`.
//!
//! Letters of the shapes: N rows, I inputs, O outputs.

use candle_core::{Result, Tensor};

use super::parameters::{Init, Parameters};

/// An affine map of rows.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Tensor,
}

impl Linear {
    /// Creates `<name>.weight` and `<name>.bias`; `[weight, bias]` say how they start.
    pub fn create(
        parameters: &mut Parameters,
        name: &str,
        [inputs, outputs]: [usize; 2],
        [weight, bias]: [Init; 2],
    ) -> Result<Self> {
        Ok(Self {
            weight: parameters.create(&format!("{name}.weight"), &[outputs, inputs], weight)?, // [O, I]
            bias: parameters.create(&format!("{name}.bias"), &[outputs], bias)?,               // [O]
        })
    }

    /// Applies the map to every row of `[N, I]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (weight, bias) = (self.weight.to_dtype(x.dtype())?, self.bias.to_dtype(x.dtype())?); // [O, I], [O]
        x.matmul(&weight.t()?)?.broadcast_add(&bias) // [N, O]
    }

    /// The same layer without a graph, over the same storage.
    pub fn detached(&self) -> Self {
        Self { weight: self.weight.detach(), bias: self.bias.detach() }
    }
}
