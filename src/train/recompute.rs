//! Gradient checkpointing: what goes from one segment of a model to the next is kept, the rest is computed twice.
//!
//! Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016); what PyTorch has as `torch.utils.checkpoint`
//! around every block. candle's backward pass knows no hook, so it is run here once per [segment](Segments): the forward
//! pass goes through all but the last without a graph, and the backward pass takes them from the last to the first, each
//! with a graph of its own over an input that is a leaf. At any time there is the graph of one segment.
//!
//! The gradients are those of the plain pass: the same operations on the same values, in the same order within a
//! segment. Only a parameter that two segments use (an embedding that is the output layer too) has its two gradients
//! summed at another moment. The last segment's graph is built in the forward phase, so the loss is known at its end and
//! that segment is computed once.

use std::sync::{Mutex, PoisonError};

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::cpu_backend::CpuDevice;
use candle_core::{CpuStorage, CudaStorage, CustomOp1, Layout, Result, Shape, Tensor, Var};

use super::gradients::Gradients;
use crate::data::Batch;
use crate::model::{Parameters, Pass, Segments, Workload};

/// A model of one piece.
#[derive(Debug, thiserror::Error)]
#[error(
    "the model is of one piece and cannot recompute its blocks (hint: `train.gradient_checkpointing: none`, or \
     `Workload::segments` for a model of your own)"
)]
pub(super) struct NoSegments;

/// Whoever follows a backward pass from segment to segment, the last one first.
pub(super) trait Follow {
    /// The gradients that a segment gave these parameters were added, and its graph is gone.
    fn segment_done(&mut self, reached: &[&str], gradients: &mut Gradients) -> Result<()>;

    /// All segments that there are gradients for are done.
    fn pass_done(&mut self, gradients: &mut Gradients);
}

/// A forward pass with the inputs of its segments.
pub(super) struct Recomputed<'a> {
    workload: &'a dyn Workload,
    batch: &'a Batch,
    /// The inputs of the segments from the second on to the last but one.
    inputs: Vec<Tensor>,
    /// The input of the last segment; `None` where there is only one.
    last: Option<Var>,
    loss: Tensor,
}

impl<'a> Recomputed<'a> {
    /// The forward pass and the loss.
    pub(super) fn forward(workload: &'a dyn Workload, batch: &'a Batch) -> Result<Self> {
        let mut inputs = kept_inputs(workload, batch)?;
        let last = inputs.pop().map(|input| Var::from_tensor(&input)).transpose()?;
        let x = last.as_ref().map_or(&batch.input, Var::as_tensor);
        // With statistics, unlike the other segments' second pass: it is the only one of this segment.
        let segments = cut(workload, batch, Pass::Train)?;
        let loss = segments.forward(inputs.len() + usize::from(last.is_some()), x)?; // []
        Ok(Self { workload, batch, inputs, last, loss })
    }

    /// The loss with the graph of its segment.
    pub(super) fn loss(&self) -> &Tensor {
        &self.loss
    }

    /// The backward pass: the gradients of every segment's parameters are added, and its graph is dropped, before the
    /// segment before it is computed again. Who follows it is told in between.
    pub(super) fn backward(self, gradients: &mut Gradients, mut follower: Option<&mut dyn Follow>) -> Result<()> {
        let Self { workload, batch, mut inputs, last, loss } = self;
        let parameters = workload.parameters();
        let root = gradients.scaled(&loss)?;
        drop(loss);
        let mut tell = |reached: &[&str], gradients: &mut Gradients| match &mut follower {
            Some(follower) => follower.segment_done(reached, gradients),
            None => Ok(()),
        };
        let (mut above, reached) = backward(root, last, parameters, gradients)?;
        tell(&reached, gradients)?;
        let segments = cut(workload, batch, Pass::Recompute)?;
        // The first segment's input has no gradient, and that ends it. So does a graph that is cut: nothing before the
        // cut is reached.
        while let Some(gradient) = above {
            let index = inputs.len();
            let input = inputs.pop().map(|input| Var::from_tensor(&input)).transpose()?;
            let x = input.as_ref().map_or(&batch.input, Var::as_tensor);
            let root = segments.forward(index, x)?.apply_op1(Seed(Mutex::new(Some(gradient))))?; // []
            let reached;
            (above, reached) = backward(root, input, parameters, gradients)?;
            tell(&reached, gradients)?;
        }
        gradients.end_micro_batch();
        if let Some(follower) = follower {
            follower.pass_done(gradients);
        }
        Ok(())
    }
}

/// The inputs of all segments but the first: a forward pass without a graph up to the last one.
fn kept_inputs(workload: &dyn Workload, batch: &Batch) -> Result<Vec<Tensor>> {
    let segments = cut(workload, batch, Pass::Forward)?;
    let mut inputs: Vec<Tensor> = Vec::new();
    for index in 1..segments.count() {
        let output = segments.forward(index - 1, inputs.last().unwrap_or(&batch.input))?;
        inputs.push(output.detach());
    }
    Ok(inputs)
}

fn cut<'a>(workload: &'a dyn Workload, batch: &'a Batch, pass: Pass) -> Result<Box<dyn Segments + 'a>> {
    workload.segments(batch, pass)?.ok_or_else(|| candle_core::Error::wrap(NoSegments))
}

/// The backward pass of one segment from its `root`. Gives the gradient of its input, and the parameters that it reached.
fn backward<'a>(
    root: Tensor,
    input: Option<Var>,
    parameters: &'a Parameters,
    gradients: &mut Gradients,
) -> Result<(Option<Tensor>, Vec<&'a str>)> {
    let mut store = root.backward()?;
    drop(root);
    let gradient = input.as_ref().and_then(|input| store.remove(input)).map(|gradient| gradient.detach());
    drop(input);
    let reached = gradients.take(parameters, store)?;
    Ok((gradient, reached))
}

/// Starts a backward pass with a gradient that is there already: a scalar of no meaning, whose backward gives the
/// gradient. candle starts at a scalar only, and the plain `(x * gradient).sum_all()` would keep the product and compute
/// a gradient of the gradient.
struct Seed(Mutex<Option<Tensor>>);

impl CustomOp1 for Seed {
    fn name(&self) -> &'static str {
        "seed"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, _layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let scalar = Shape::from(());
        Ok((CpuDevice.zeros_impl(&scalar, storage.dtype())?, scalar))
    }

    fn cuda_fwd(&self, storage: &CudaStorage, _layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let scalar = Shape::from(());
        Ok((storage.device().zeros_impl(&scalar, storage.dtype())?, scalar))
    }

    fn bwd(&self, _arg: &Tensor, _res: &Tensor, _grad_res: &Tensor) -> Result<Option<Tensor>> {
        // Given away, so that it is freed as soon as it is used.
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).take())
    }
}
