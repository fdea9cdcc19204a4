//! Tables of vectors, one for each token.

use candle_core::{Result, Tensor};

use crate::model::parameters::{Init, Parameters};

/// A vector for each of V ids.
#[derive(Clone, Debug)]
pub struct Embedding {
    table: Tensor,
}

impl Embedding {
    /// Creates `<name>.weight` of the shape `[V, D]` from a normal distribution of this deviation.
    pub fn create(parameters: &mut Parameters, name: &str, shape: [usize; 2], deviation: f32) -> Result<Self> {
        Ok(Self { table: parameters.create(&format!("{name}.weight"), &shape, Init::Normal(deviation))? }) // [V, D]
    }

    /// The vectors of these ids, `[B, T]`, in the type of the table.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let (samples, length) = ids.dims2()?;
        let vectors = self.table.index_select(&ids.flatten_all()?, 0)?; // [B·T, D]
        vectors.reshape((samples, length, ())) // [B, T, D]
    }

    /// The vectors of the first `count` ids.
    pub fn first(&self, count: usize) -> Result<Tensor> {
        self.table.narrow(0, 0, count) // [count, D]
    }

    /// All vectors, for an output layer that shares them.
    pub fn table(&self) -> &Tensor {
        &self.table // [V, D]
    }

    /// The same layer without a graph, over the same storage.
    pub fn detached(&self) -> Self {
        Self { table: self.table.detach() }
    }
}
