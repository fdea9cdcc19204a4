//! Llama: the decoder-only transformer with rotary positions.
//!
//! Paper: Touvron et al., "LLaMA: Open and Efficient Foundation Language Models" (2023), with the grouped queries of
//! Llama 2 (2023) and the long-context frequencies of Llama 3 (2024); reference implementation: `transformers`'
//! `LlamaForCausalLM`, whose parameter names and shapes are used here (without the `model.` prefix), so that a checkpoint
//! of theirs fits. Pre-norm blocks with a root-mean-square norm, SwiGLU, no biases, and an output layer of its own or the
//! embedding's.
//!
//! Letters of the shapes: B samples, T tokens, D `hidden_size`, H `heads`, G `key_value_heads`, K the width of a head,
//! V `vocabulary_size`.

use candle_core::{DType, Result, Tensor};

use super::layers::{CausalMask, Rotary, RotaryDimensions};
use super::parameters::Parameters;
use super::segments::{Pass, Segmented, Segments};
use super::{BuildContext, Family, ModelError, ModelSpec, Workload};
use crate::data::{Batch, InputSpec};

mod dimensions;
mod network;

use dimensions::PRESETS;
pub(super) use dimensions::{Dimensions, THETA};
use network::{Network, Places};

/// The Llama family.
#[derive(Debug)]
pub struct Llama;

impl Family for Llama {
    fn name(&self) -> &'static str {
        "llama"
    }

    fn presets(&self) -> Vec<&'static str> {
        PRESETS.names()
    }

    fn input(&self, spec: &ModelSpec) -> std::result::Result<InputSpec, ModelError> {
        let dimensions = Dimensions::of(spec)?;
        Ok(InputSpec::Tokens { vocabulary_size: dimensions.vocabulary, sequence_length: dimensions.length })
    }

    fn parameter_count(&self, spec: &ModelSpec) -> std::result::Result<Option<u64>, ModelError> {
        Ok(Dimensions::of(spec)?.parameters().map(|count| count as u64))
    }

    fn has_batch_norm(&self) -> bool {
        false
    }

    fn build(&self, context: &BuildContext<'_>) -> std::result::Result<Box<dyn Workload>, ModelError> {
        let dimensions = Dimensions::of(context.spec)?;
        let mut parameters = context.parameters(&["model."])?;
        let network = Network::create(&mut parameters, &dimensions)?;
        let detached = network.detached();
        let Dimensions { length, size, theta, scaling, .. } = dimensions;
        let rotary = Rotary::new(&RotaryDimensions { length, size, theta, scaling }, context.device)?;
        let mask = CausalMask::new(length, context.device)?;
        let compute = context.precision.compute_dtype();
        Ok(Box::new(LlamaWorkload { parameters, network, detached, mask, rotary, dimensions, compute }))
    }
}

/// A Llama that can be trained.
#[derive(Debug)]
struct LlamaWorkload {
    parameters: Parameters,
    network: Network,
    /// The same tensors without a graph.
    detached: Network,
    mask: CausalMask,
    rotary: Rotary,
    dimensions: Dimensions,
    /// The type of the activations.
    compute: DType,
}

impl Segmented for LlamaWorkload {
    type OnePass<'a> = LlamaPass<'a>;

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn pass<'a>(&'a self, batch: &'a Batch, pass: Pass) -> Result<LlamaPass<'a>> {
        let (samples, length) = batch.input.dims2()?;
        let Dimensions { heads, shared, size, .. } = self.dimensions;
        let queries = self.rotary.rotation([samples, heads, length, size], self.compute)?;
        let keys = if shared == heads {
            queries.clone()
        } else {
            self.rotary.rotation([samples, shared, length, size], self.compute)?
        };
        let mask = self.mask.broadcast(samples, heads, length)?; // [B, H, T, T]
        Ok(LlamaPass {
            network: if pass.has_graph() { &self.network } else { &self.detached },
            places: Places { mask, queries, keys },
            target: &batch.target,
            compute: self.compute,
        })
    }
}

/// A pass over one batch: the embedding, the blocks, and the head.
struct LlamaPass<'a> {
    network: &'a Network,
    places: Places,
    target: &'a Tensor,
    compute: DType,
}

impl Segments for LlamaPass<'_> {
    fn count(&self) -> usize {
        self.network.blocks.len() + 2
    }

    fn forward(&self, index: usize, x: &Tensor) -> Result<Tensor> {
        if index == 0 {
            return self.network.embed(x, self.compute); // [B, T, D]
        }
        if let Some(block) = self.network.blocks.get(index - 1) {
            return block.forward(x, &self.places); // [B, T, D]
        }
        let logits = self.network.logits(x)?; // [B·T, V]
        candle_nn::loss::cross_entropy(&logits, &self.target.flatten_all()?) // []
    }
}

#[cfg(test)]
mod tests;
