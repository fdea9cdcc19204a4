//! BERT: the encoder that guesses masked tokens.
//!
//! Paper: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding" (2018);
//! reference implementation: `transformers`' `BertForMaskedLM`, whose parameter names and shapes are used here (without
//! the `bert.` prefix), so that a checkpoint of theirs fits. Post-norm blocks, learned positions, GELU in its exact form,
//! and an output layer that shares the token embedding and has a bias of its own. All tokens are of type 0, and there is
//! no next-sentence head, which most pre-training has dropped since RoBERTa (2019); nor is there dropout.
//!
//! Padding is not masked out of the attention: it costs what a token costs either way, and that is what is measured.
//!
//! Letters of the shapes: B samples, T tokens, D `hidden_size`, H `heads`, K = D / H, V `vocabulary_size`.

use candle_core::{DType, Result, Tensor};

use super::layers::masked_cross_entropy;
use super::parameters::Parameters;
use super::segments::{Pass, Segmented, Segments};
use super::{BuildContext, Family, ModelError, ModelSpec, Workload};
use crate::data::{Batch, InputSpec};

mod dimensions;
mod network;

use dimensions::PRESETS;
pub(super) use dimensions::{Dimensions, MASK_TOKEN};
use network::Network;

/// The BERT family.
#[derive(Debug)]
pub struct Bert;

impl Family for Bert {
    fn name(&self) -> &'static str {
        "bert"
    }

    fn presets(&self) -> Vec<&'static str> {
        PRESETS.names()
    }

    fn input(&self, spec: &ModelSpec) -> std::result::Result<InputSpec, ModelError> {
        let Dimensions { vocabulary, length, mask_token, .. } = Dimensions::of(spec)?;
        Ok(InputSpec::MaskedTokens { vocabulary_size: vocabulary, sequence_length: length, mask_token })
    }

    fn parameter_count(&self, spec: &ModelSpec) -> std::result::Result<Option<u64>, ModelError> {
        Ok(Dimensions::of(spec)?.parameters().map(|count| count as u64))
    }

    fn has_batch_norm(&self) -> bool {
        false
    }

    fn build(&self, context: &BuildContext<'_>) -> std::result::Result<Box<dyn Workload>, ModelError> {
        let dimensions = Dimensions::of(context.spec)?;
        let mut parameters = context.parameters(&["bert."])?;
        let network = Network::create(&mut parameters, &dimensions)?;
        let detached = network.detached();
        let compute = context.precision.compute_dtype();
        Ok(Box::new(BertWorkload { parameters, network, detached, compute }))
    }
}

/// A BERT that can be trained.
#[derive(Debug)]
struct BertWorkload {
    parameters: Parameters,
    network: Network,
    /// The same tensors without a graph.
    detached: Network,
    /// The type of the activations.
    compute: DType,
}

impl Segmented for BertWorkload {
    type OnePass<'a> = BertPass<'a>;

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn pass<'a>(&'a self, batch: &'a Batch, pass: Pass) -> Result<BertPass<'a>> {
        let network = if pass.has_graph() { &self.network } else { &self.detached };
        Ok(BertPass { network, target: &batch.target, compute: self.compute })
    }
}

/// A pass over one batch: the embeddings, the blocks, and the head.
struct BertPass<'a> {
    network: &'a Network,
    target: &'a Tensor,
    compute: DType,
}

impl Segments for BertPass<'_> {
    fn count(&self) -> usize {
        self.network.blocks.len() + 2
    }

    fn forward(&self, index: usize, x: &Tensor) -> Result<Tensor> {
        if index == 0 {
            return self.network.embed(x, self.compute); // [B, T, D]
        }
        if let Some(block) = self.network.blocks.get(index - 1) {
            return block.forward(x); // [B, T, D]
        }
        let logits = self.network.logits(x)?; // [B·T, V]
        masked_cross_entropy(&logits, &self.target.flatten_all()?) // []
    }
}

#[cfg(test)]
mod tests;
