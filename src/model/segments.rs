//! A model's loss as a chain of segments.
//!
//! Gradient checkpointing (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016) keeps what goes from one
//! segment to the next and computes the rest again in the backward pass. candle's backward pass knows no hook for that,
//! so [`train`](crate::train) goes through the segments itself; a family only says where they are cut: the embedding,
//! each block, and the head with the loss.

use candle_core::{Result, Tensor};

use super::{Buffers, Parameters, Workload};
use crate::data::Batch;

/// What a pass through a model is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Training, with a graph.
    Train,
    /// Training's forward pass without a graph, because the backward pass computes it again. Running statistics are
    /// updated, as in [`Pass::Train`].
    Forward,
    /// The second time, with a graph: nothing is updated.
    Recompute,
    /// Evaluation, without a graph: with the running statistics, and nothing is updated.
    Evaluate,
}

impl Pass {
    /// Whether the pass builds a graph.
    pub fn has_graph(self) -> bool {
        matches!(self, Self::Train | Self::Recompute)
    }

    /// Whether running statistics are updated.
    pub fn updates_statistics(self) -> bool {
        matches!(self, Self::Train | Self::Forward)
    }
}

/// One pass over one batch, in segments. What all segments share (a mask) lives as long as this.
pub trait Segments {
    /// How many there are; never 0.
    fn count(&self) -> usize;

    /// What segment `index` makes of what the one before it made. The first takes the batch's input, and the last one
    /// gives the loss: a scalar.
    fn forward(&self, index: usize, x: &Tensor) -> Result<Tensor>;
}

/// A model that goes through every batch in segments: a [`Workload`] whose loss is all of them in a row.
pub trait Segmented {
    /// A pass over one batch.
    type OnePass<'a>: Segments
    where
        Self: 'a;

    /// The trainable parameters.
    fn parameters(&self) -> &Parameters;

    /// What the model keeps beside its parameters and no gradient reaches; `None` where it keeps nothing.
    fn buffers(&self) -> Option<&Buffers> {
        None
    }

    /// Begins a pass over a batch.
    fn pass<'a>(&'a self, batch: &'a Batch, pass: Pass) -> Result<Self::OnePass<'a>>;
}

impl<M: Segmented> Workload for M {
    fn parameters(&self) -> &Parameters {
        Segmented::parameters(self)
    }

    fn buffers(&self) -> Option<&Buffers> {
        Segmented::buffers(self)
    }

    fn loss(&self, batch: &Batch) -> Result<Tensor> {
        loss(&self.pass(batch, Pass::Train)?, &batch.input)
    }

    fn evaluate(&self, batch: &Batch) -> Result<Tensor> {
        loss(&self.pass(batch, Pass::Evaluate)?, &batch.input)
    }

    fn segments<'a>(&'a self, batch: &'a Batch, pass: Pass) -> Result<Option<Box<dyn Segments + 'a>>> {
        Ok(Some(Box::new(self.pass(batch, pass)?)))
    }
}

/// The loss: all segments in a row.
pub fn loss(segments: &dyn Segments, input: &Tensor) -> Result<Tensor> {
    (0..segments.count()).try_fold(input.clone(), |x, index| segments.forward(index, &x)) // []
}
