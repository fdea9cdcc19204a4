//! The layers of a BERT. Letters of the shapes: see [`super`].

use candle_core::{DType, Result, Tensor};

use super::dimensions::Dimensions;
use crate::model::layers::{Embedding, LayerNorm, Linear, attend};
use crate::model::parameters::{Init, Parameters};

/// Standard deviation of all weights.
const DEVIATION: f32 = 0.02;

/// What the layers are made with.
struct Maker<'a> {
    parameters: &'a mut Parameters,
    dimensions: &'a Dimensions,
}

impl Maker<'_> {
    fn dense(&mut self, name: &str, shape: [usize; 2]) -> Result<Linear> {
        Linear::create(self.parameters, name, shape, DEVIATION)?.with_bias(self.parameters, name)
    }

    fn norm(&mut self, name: &str) -> Result<LayerNorm> {
        let norm = LayerNorm::create(self.parameters, &format!("{name}.LayerNorm"), self.dimensions.width)?;
        Ok(norm.with_epsilon(self.dimensions.epsilon as f32))
    }
}

/// Tokens, their places and their kinds as vectors.
#[derive(Clone, Debug)]
struct Embeddings {
    tokens: Embedding,
    positions: Embedding,
    types: Embedding,
    norm: LayerNorm,
}

impl Embeddings {
    fn create(maker: &mut Maker<'_>) -> Result<Self> {
        let Dimensions { length, vocabulary, types, width, .. } = *maker.dimensions;
        let mut table = |kind: &str, rows| {
            let name = format!("embeddings.{kind}_embeddings");
            Embedding::create(maker.parameters, &name, [rows, width], DEVIATION)
        };
        Ok(Self {
            tokens: table("word", vocabulary)?,    // [V, D]
            positions: table("position", length)?, // [T, D]
            types: table("token_type", types)?,    // [types, D]
            norm: maker.norm("embeddings")?,
        })
    }

    fn forward(&self, tokens: &Tensor, compute: DType) -> Result<Tensor> {
        let (_, length) = tokens.dims2()?;
        let places = self.positions.first(length)?.broadcast_add(&self.types.first(1)?)?; // [T, D]
        let embedded = self.tokens.forward(tokens)?.broadcast_add(&places)?; // [B, T, D]
        self.norm.forward(&embedded.to_dtype(compute)?) // [B, T, D]
    }

    fn detached(&self) -> Self {
        Self {
            tokens: self.tokens.detached(),
            positions: self.positions.detached(),
            types: self.types.detached(),
            norm: self.norm.detached(),
        }
    }
}

/// One block: attention and network, each with a residual connection around it and a norm behind that.
#[derive(Clone, Debug)]
pub(super) struct Block {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    attention_norm: LayerNorm,
    up: Linear,
    down: Linear,
    mlp_norm: LayerNorm,
    heads: usize,
}

impl Block {
    fn create(maker: &mut Maker<'_>, layer: usize) -> Result<Self> {
        let Dimensions { width, hidden, heads, .. } = *maker.dimensions;
        let name = |part: &str| format!("encoder.layer.{layer}.{part}");
        Ok(Self {
            query: maker.dense(&name("attention.self.query"), [width, width])?,
            key: maker.dense(&name("attention.self.key"), [width, width])?,
            value: maker.dense(&name("attention.self.value"), [width, width])?,
            output: maker.dense(&name("attention.output.dense"), [width, width])?,
            attention_norm: maker.norm(&name("attention.output"))?,
            up: maker.dense(&name("intermediate.dense"), [hidden, width])?,
            down: maker.dense(&name("output.dense"), [width, hidden])?,
            mlp_norm: maker.norm(&name("output"))?,
            heads,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.attention_norm.forward(&(x + self.attention(x)?)?)?; // [B, T, D]
        let hidden = self.up.forward(&x)?.gelu_erf()?; // [B, T, hidden width]
        let mlp = self.down.forward(&hidden)?; // [B, T, D]
        self.mlp_norm.forward(&(x + mlp)?) // [B, T, D]
    }

    /// Every token looks at every token.
    fn attention(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, length, width) = x.dims3()?;
        let heads = |part: &Linear| {
            let rows = part.forward(x)?.reshape((batch, length, self.heads, ()))?; // [B, T, H, K]
            rows.transpose(1, 2)?.contiguous() // [B, H, T, K]
        };
        let mixed = attend(&heads(&self.query)?, &heads(&self.key)?, &heads(&self.value)?, None)?; // [B, H, T, K]
        self.output.forward(&mixed.transpose(1, 2)?.reshape((batch, length, width))?) // [B, T, D]
    }

    fn detached(&self) -> Self {
        Self {
            query: self.query.detached(),
            key: self.key.detached(),
            value: self.value.detached(),
            output: self.output.detached(),
            attention_norm: self.attention_norm.detached(),
            up: self.up.detached(),
            down: self.down.detached(),
            mlp_norm: self.mlp_norm.detached(),
            heads: self.heads,
        }
    }
}

/// From vectors to logits: one more layer, then the similarity to each token's vector.
#[derive(Clone, Debug)]
struct Head {
    dense: Linear,
    norm: LayerNorm,
    output: Linear,
    bias: Tensor,
}

impl Head {
    fn create(maker: &mut Maker<'_>, tokens: &Tensor) -> Result<Self> {
        let Dimensions { width, vocabulary, .. } = *maker.dimensions;
        Ok(Self {
            dense: maker.dense("cls.predictions.transform.dense", [width, width])?,
            norm: maker.norm("cls.predictions.transform")?,
            output: Linear::tied(tokens),
            bias: maker.parameters.create("cls.predictions.bias", &[vocabulary], Init::Constant(0.0))?, // [V]
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.norm.forward(&self.dense.forward(x)?.gelu_erf()?)?; // [B, T, D]
        let logits = self.output.rows(&x)?; // [B·T, V]
        logits.broadcast_add(&self.bias.to_dtype(x.dtype())?) // [B·T, V]
    }

    fn detached(&self) -> Self {
        Self {
            dense: self.dense.detached(),
            norm: self.norm.detached(),
            output: self.output.detached(),
            bias: self.bias.detach(),
        }
    }
}

/// Tokens in, logits out.
#[derive(Clone, Debug)]
pub(super) struct Network {
    embeddings: Embeddings,
    pub(super) blocks: Vec<Block>,
    head: Head,
}

impl Network {
    pub(super) fn create(parameters: &mut Parameters, dimensions: &Dimensions) -> Result<Self> {
        let mut maker = Maker { parameters, dimensions };
        let embeddings = Embeddings::create(&mut maker)?;
        let blocks = (0..dimensions.layers).map(|layer| Block::create(&mut maker, layer)).collect::<Result<_>>()?;
        let head = Head::create(&mut maker, embeddings.tokens.table())?;
        Ok(Self { embeddings, blocks, head })
    }

    /// Vectors of tokens, `[B, T]`, in the type of the activations.
    pub(super) fn embed(&self, tokens: &Tensor, compute: DType) -> Result<Tensor> {
        self.embeddings.forward(tokens, compute) // [B, T, D]
    }

    /// What the last block's output says of each token, in f32.
    pub(super) fn logits(&self, x: &Tensor) -> Result<Tensor> {
        self.head.forward(x)?.to_dtype(DType::F32) // [B·T, V]
    }

    pub(super) fn detached(&self) -> Self {
        Self {
            embeddings: self.embeddings.detached(),
            blocks: self.blocks.iter().map(Block::detached).collect(),
            head: self.head.detached(),
        }
    }
}
