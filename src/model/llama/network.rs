//! The layers of a Llama. Letters of the shapes: see [`super`].

use candle_core::{DType, Result, Tensor};

use super::dimensions::Dimensions;
use crate::model::layers::{Embedding, GatedMlp, Linear, RmsNorm, Rotation, attend};
use crate::model::parameters::Parameters;

/// Standard deviation of all weights, as in `transformers`.
const DEVIATION: f32 = 0.02;
/// What all blocks know of the tokens' places in one pass.
pub(super) struct Places {
    /// Who may look at whom, `[B, H, T, T]`.
    pub(super) mask: Tensor,
    pub(super) queries: Rotation,
    pub(super) keys: Rotation,
}

/// Self-attention with rotary positions, in which several heads of queries share one of keys and values.
#[derive(Clone, Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    size: usize,
}

impl Attention {
    fn create(parameters: &mut Parameters, name: &str, dimensions: &Dimensions) -> Result<Self> {
        let Dimensions { heads, shared, size, width, .. } = *dimensions;
        let mut linear =
            |part: &str, shape| Linear::create(parameters, &format!("{name}.{part}_proj"), shape, DEVIATION);
        Ok(Self {
            query: linear("q", [heads * size, width])?,
            key: linear("k", [shared * size, width])?,
            value: linear("v", [shared * size, width])?,
            output: linear("o", [width, heads * size])?,
            size,
        })
    }

    fn forward(&self, x: &Tensor, places: &Places) -> Result<Tensor> {
        let (batch, length, _) = x.dims3()?;
        let heads = |part: &Linear| part.forward(x)?.reshape((batch, length, (), self.size))?.transpose(1, 2);
        let query = places.queries.apply(&heads(&self.query)?)?; // [B, H, T, K]
        let key = places.keys.apply(&heads(&self.key)?)?; // [B, G, T, K]
        let value = heads(&self.value)?.contiguous()?; // [B, G, T, K]
        let mixed = attend(&query, &key, &value, Some(&places.mask))?; // [B, H, T, K]
        let mixed = mixed.transpose(1, 2)?.reshape((batch, length, ()))?; // [B, T, H·K]
        self.output.forward(&mixed) // [B, T, D]
    }

    fn detached(&self) -> Self {
        Self {
            query: self.query.detached(),
            key: self.key.detached(),
            value: self.value.detached(),
            output: self.output.detached(),
            size: self.size,
        }
    }
}

/// One block: attention and network, each behind a norm and around a residual connection.
#[derive(Clone, Debug)]
pub(super) struct Block {
    attention_norm: RmsNorm,
    attention: Attention,
    mlp_norm: RmsNorm,
    mlp: GatedMlp,
}

impl Block {
    fn create(parameters: &mut Parameters, name: &str, dimensions: &Dimensions) -> Result<Self> {
        let (width, epsilon) = (dimensions.width, dimensions.epsilon as f32);
        let shape = [width, dimensions.hidden];
        Ok(Self {
            attention_norm: RmsNorm::create(parameters, &format!("{name}.input_layernorm"), width, epsilon)?,
            attention: Attention::create(parameters, &format!("{name}.self_attn"), dimensions)?,
            mlp_norm: RmsNorm::create(parameters, &format!("{name}.post_attention_layernorm"), width, epsilon)?,
            mlp: GatedMlp::create(parameters, &format!("{name}.mlp"), shape, DEVIATION)?,
        })
    }

    pub(super) fn forward(&self, x: &Tensor, places: &Places) -> Result<Tensor> {
        let x = (x + self.attention.forward(&self.attention_norm.forward(x)?, places)?)?; // [B, T, D]
        let mlp = self.mlp.forward(&self.mlp_norm.forward(&x)?)?; // [B, T, D]
        x + mlp // [B, T, D]
    }

    fn detached(&self) -> Self {
        Self {
            attention_norm: self.attention_norm.detached(),
            attention: self.attention.detached(),
            mlp_norm: self.mlp_norm.detached(),
            mlp: self.mlp.detached(),
        }
    }
}

/// Tokens in, logits out.
#[derive(Clone, Debug)]
pub(super) struct Network {
    tokens: Embedding,
    pub(super) blocks: Vec<Block>,
    norm: RmsNorm,
    output: Linear,
}

impl Network {
    pub(super) fn create(parameters: &mut Parameters, dimensions: &Dimensions) -> Result<Self> {
        let Dimensions { layers, width, vocabulary, epsilon, tied, .. } = *dimensions;
        let tokens = Embedding::create(parameters, "embed_tokens", [vocabulary, width], DEVIATION)?; // [V, D]
        Ok(Self {
            blocks: (0..layers)
                .map(|layer| Block::create(parameters, &format!("layers.{layer}"), dimensions))
                .collect::<Result<_>>()?,
            norm: RmsNorm::create(parameters, "norm", width, epsilon as f32)?,
            output: if tied {
                Linear::tied(tokens.table())
            } else {
                Linear::create(parameters, "lm_head", [vocabulary, width], DEVIATION)?
            },
            tokens,
        })
    }

    /// Vectors of tokens, `[B, T]`, in the type of the activations.
    pub(super) fn embed(&self, tokens: &Tensor, compute: DType) -> Result<Tensor> {
        self.tokens.forward(tokens)?.to_dtype(compute) // [B, T, D]
    }

    /// What the last block's output says of the next token, in f32.
    pub(super) fn logits(&self, x: &Tensor) -> Result<Tensor> {
        self.output.rows(&self.norm.forward(x)?)?.to_dtype(DType::F32) // [B·T, V]
    }

    pub(super) fn detached(&self) -> Self {
        Self {
            tokens: self.tokens.detached(),
            blocks: self.blocks.iter().map(Block::detached).collect(),
            norm: self.norm.detached(),
            output: self.output.detached(),
        }
    }
}
