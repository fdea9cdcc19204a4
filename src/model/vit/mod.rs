//! ViT: the transformer encoder over the patches of an image.
//!
//! Paper: Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale" (2020);
//! reference implementation: `transformers`' `ViTForImageClassification`. Parameters have the names that its published
//! checkpoints have (without the `vit.` prefix), which version 5 of the library maps to other ones when it loads them.
//! Pre-norm blocks, a class token, learned positions, and GELU in its exact form. No dropout, as in the published nets.
//!
//! Letters of the shapes: B samples, S side of the image, P side of a patch, N = (S / P)² patches, T = N + 1 tokens,
//! D `hidden_size`, H heads, K classes.

use candle_core::{DType, Result, Tensor};

use super::parameters::Parameters;
use super::segments::{Pass, Segmented, Segments};
use super::{BuildContext, Family, ModelError, ModelSpec, Workload};
use crate::data::{Batch, InputSpec};

mod dimensions;
mod network;

pub(super) use dimensions::Dimensions;
use dimensions::{CHANNELS, PRESETS};
use network::Network;

/// The ViT family.
#[derive(Debug)]
pub struct Vit;

impl Family for Vit {
    fn name(&self) -> &'static str {
        "vit"
    }

    fn presets(&self) -> Vec<&'static str> {
        PRESETS.names()
    }

    fn input(&self, spec: &ModelSpec) -> std::result::Result<InputSpec, ModelError> {
        let Dimensions { image, classes, .. } = Dimensions::of(spec)?;
        Ok(InputSpec::Features { shape: vec![CHANNELS, image, image], classes })
    }

    fn parameter_count(&self, spec: &ModelSpec) -> std::result::Result<Option<u64>, ModelError> {
        Ok(Dimensions::of(spec)?.parameters().map(|count| count as u64))
    }

    fn has_batch_norm(&self) -> bool {
        false
    }

    fn build(&self, context: &BuildContext<'_>) -> std::result::Result<Box<dyn Workload>, ModelError> {
        let dimensions = Dimensions::of(context.spec)?;
        let mut parameters = context.parameters(&["vit."])?;
        let network = Network::create(&mut parameters, &dimensions)?;
        let detached = network.detached();
        let compute = context.precision.compute_dtype();
        Ok(Box::new(VitWorkload { parameters, network, detached, compute }))
    }
}

/// A ViT that can be trained.
#[derive(Debug)]
struct VitWorkload {
    parameters: Parameters,
    network: Network,
    /// The same tensors without a graph.
    detached: Network,
    /// The type of the activations.
    compute: DType,
}

impl Segmented for VitWorkload {
    type OnePass<'a> = VitPass<'a>;

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn pass<'a>(&'a self, batch: &'a Batch, pass: Pass) -> Result<VitPass<'a>> {
        let network = if pass.has_graph() { &self.network } else { &self.detached };
        Ok(VitPass { network, target: &batch.target, compute: self.compute })
    }
}

/// A pass over one batch: the patches, the blocks, and the head.
struct VitPass<'a> {
    network: &'a Network,
    target: &'a Tensor,
    compute: DType,
}

impl Segments for VitPass<'_> {
    fn count(&self) -> usize {
        self.network.blocks.len() + 2
    }

    fn forward(&self, index: usize, x: &Tensor) -> Result<Tensor> {
        if index == 0 {
            return self.network.embed(&x.to_dtype(self.compute)?); // [B, T, D]
        }
        if let Some(block) = self.network.blocks.get(index - 1) {
            return block.forward(x); // [B, T, D]
        }
        let logits = self.network.logits(x)?; // [B, K]
        candle_nn::loss::cross_entropy(&logits, self.target) // []
    }
}

#[cfg(test)]
mod tests;
