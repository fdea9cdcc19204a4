//! The layers of a ViT, from the image to the logits.
//!
//! The projection of the patches is a convolution whose windows do not overlap, which is a matrix product over the
//! values of each patch.
//!
//! Letters of the shapes: B samples, S side of the image, P side of a patch, G = S / P, N = G² patches, T = N + 1 tokens,
//! D `hidden_size`, H heads, K classes.

use candle_core::{DType, Result, Tensor};

use super::{CHANNELS, Dimensions};
use crate::model::layers::{LayerNorm, Linear, attend};
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
        let norm = LayerNorm::create(self.parameters, name, self.dimensions.width)?;
        Ok(norm.with_epsilon(self.dimensions.epsilon as f32))
    }
}

/// Patches, their places and the class token as vectors.
#[derive(Clone, Debug)]
struct Embeddings {
    /// As the convolution that it is in checkpoints.
    weight: Tensor,
    bias: Tensor,
    class: Tensor,
    positions: Tensor,
    patch: usize,
}

impl Embeddings {
    fn create(maker: &mut Maker<'_>) -> Result<Self> {
        let Dimensions { patch, width, .. } = *maker.dimensions;
        let tokens = maker.dimensions.tokens();
        let normal = Init::Normal(DEVIATION);
        let mut create = |name: &str, shape: &[usize], init| maker.parameters.create(name, shape, init);
        let name = "embeddings.patch_embeddings.projection";
        Ok(Self {
            weight: create(&format!("{name}.weight"), &[width, CHANNELS, patch, patch], normal)?, // [D, 3, P, P]
            bias: create(&format!("{name}.bias"), &[width], Init::Constant(0.0))?,                // [D]
            class: create("embeddings.cls_token", &[1, 1, width], normal)?,                       // [1, 1, D]
            positions: create("embeddings.position_embeddings", &[1, tokens, width], normal)?,    // [1, T, D]
            patch,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (samples, channels, height, width) = x.dims4()?;
        let (rows, columns) = (height / self.patch, width / self.patch);
        let patches = x.reshape(vec![samples, channels, rows, self.patch, columns, self.patch])?; // [B, 3, G, P, G, P]
        let patches = patches.permute(vec![0, 2, 4, 1, 3, 5])?; // [B, G, G, 3, P, P]
        let patches = patches.reshape((samples * rows * columns, ()))?; // [B·N, 3·P²]
        let weight = self.weight.flatten_from(1)?.to_dtype(x.dtype())?; // [D, 3·P²]
        let patches = patches.matmul(&weight.t()?)?.broadcast_add(&self.bias.to_dtype(x.dtype())?)?; // [B·N, D]
        let patches = patches.reshape((samples, rows * columns, ()))?; // [B, N, D]
        let class = self.class.to_dtype(x.dtype())?.broadcast_as((samples, 1, patches.dim(2)?))?; // [B, 1, D]
        let tokens = Tensor::cat(&[&class, &patches], 1)?; // [B, T, D]
        tokens.broadcast_add(&self.positions.to_dtype(x.dtype())?) // [B, T, D]
    }

    fn detached(&self) -> Self {
        Self {
            weight: self.weight.detach(),
            bias: self.bias.detach(),
            class: self.class.detach(),
            positions: self.positions.detach(),
            patch: self.patch,
        }
    }
}

/// One block: attention and network, each behind a norm and around a residual connection.
#[derive(Clone, Debug)]
pub(super) struct Block {
    attention_norm: LayerNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    mlp_norm: LayerNorm,
    up: Linear,
    down: Linear,
    heads: usize,
}

impl Block {
    fn create(maker: &mut Maker<'_>, layer: usize) -> Result<Self> {
        let Dimensions { width, hidden, heads, .. } = *maker.dimensions;
        let name = |part: &str| format!("encoder.layer.{layer}.{part}");
        Ok(Self {
            attention_norm: maker.norm(&name("layernorm_before"))?,
            query: maker.dense(&name("attention.attention.query"), [width, width])?,
            key: maker.dense(&name("attention.attention.key"), [width, width])?,
            value: maker.dense(&name("attention.attention.value"), [width, width])?,
            output: maker.dense(&name("attention.output.dense"), [width, width])?,
            mlp_norm: maker.norm(&name("layernorm_after"))?,
            up: maker.dense(&name("intermediate.dense"), [hidden, width])?,
            down: maker.dense(&name("output.dense"), [width, hidden])?,
            heads,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = (x + self.attention(&self.attention_norm.forward(x)?)?)?; // [B, T, D]
        let hidden = self.up.forward(&self.mlp_norm.forward(&x)?)?.gelu_erf()?; // [B, T, hidden width]
        x + self.down.forward(&hidden)? // [B, T, D]
    }

    /// Every token looks at every token.
    fn attention(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, length, width) = x.dims3()?;
        let heads = |part: &Linear| {
            let rows = part.forward(x)?.reshape((batch, length, self.heads, ()))?; // [B, T, H, D / H]
            rows.transpose(1, 2)?.contiguous() // [B, H, T, D / H]
        };
        let mixed = attend(&heads(&self.query)?, &heads(&self.key)?, &heads(&self.value)?, None)?; // [B, H, T, D / H]
        self.output.forward(&mixed.transpose(1, 2)?.reshape((batch, length, width))?) // [B, T, D]
    }

    fn detached(&self) -> Self {
        Self {
            attention_norm: self.attention_norm.detached(),
            query: self.query.detached(),
            key: self.key.detached(),
            value: self.value.detached(),
            output: self.output.detached(),
            mlp_norm: self.mlp_norm.detached(),
            up: self.up.detached(),
            down: self.down.detached(),
            heads: self.heads,
        }
    }
}

/// Images in, logits out.
#[derive(Clone, Debug)]
pub(super) struct Network {
    embeddings: Embeddings,
    pub(super) blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

impl Network {
    pub(super) fn create(parameters: &mut Parameters, dimensions: &Dimensions) -> Result<Self> {
        let mut maker = Maker { parameters, dimensions };
        Ok(Self {
            embeddings: Embeddings::create(&mut maker)?,
            blocks: (0..dimensions.layers).map(|layer| Block::create(&mut maker, layer)).collect::<Result<_>>()?,
            norm: maker.norm("layernorm")?,
            head: maker.dense("classifier", [dimensions.classes, dimensions.width])?,
        })
    }

    /// Vectors of the class token and of the patches, in the type of the images `[B, 3, S, S]`.
    pub(super) fn embed(&self, images: &Tensor) -> Result<Tensor> {
        self.embeddings.forward(images) // [B, T, D]
    }

    /// What the last block's output says of each image, in f32: the class token has seen all others.
    pub(super) fn logits(&self, x: &Tensor) -> Result<Tensor> {
        let class = x.narrow(1, 0, 1)?.contiguous()?; // [B, 1, D]
        self.head.rows(&self.norm.forward(&class)?)?.to_dtype(DType::F32) // [B, K]
    }

    pub(super) fn detached(&self) -> Self {
        Self {
            embeddings: self.embeddings.detached(),
            blocks: self.blocks.iter().map(Block::detached).collect(),
            norm: self.norm.detached(),
            head: self.head.detached(),
        }
    }
}
