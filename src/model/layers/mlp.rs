//! The position-wise network of a block.

use candle_core::{Result, Tensor};

use super::{BlockDimensions, Linear, Projection};
use crate::model::parameters::Parameters;

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

/// A gated network (Shazeer, "GLU Variants Improve Transformer", 2020) in its SwiGLU form, as Llama has it.
#[derive(Clone, Debug)]
pub struct GatedMlp {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl GatedMlp {
    /// Creates `<name>.gate_proj`, `<name>.up_proj` and `<name>.down_proj` for `[D, hidden width]`.
    pub fn create(parameters: &mut Parameters, name: &str, shape: [usize; 2], deviation: f32) -> Result<Self> {
        let [width, hidden] = shape;
        Ok(Self {
            gate: Linear::create(parameters, &format!("{name}.gate_proj"), [hidden, width], deviation)?,
            up: Linear::create(parameters, &format!("{name}.up_proj"), [hidden, width], deviation)?,
            down: Linear::create(parameters, &format!("{name}.down_proj"), [width, hidden], deviation)?,
        })
    }

    /// Applies the network to every token.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let hidden = (self.gate.forward(x)?.silu()? * self.up.forward(x)?)?; // [B, T, hidden width]
        self.down.forward(&hidden) // [B, T, D]
    }

    /// The same layer without a graph, over the same storage.
    pub fn detached(&self) -> Self {
        Self { gate: self.gate.detached(), up: self.up.detached(), down: self.down.detached() }
    }
}
