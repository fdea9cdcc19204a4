//! Differentiable building blocks of transformers.
//!
//! Every operation here has a backward pass in candle 0.11, which is not a matter of course:
//! `candle_nn::LayerNorm`, `RmsNorm`, `softmax_last_dim`, the rotary ops and `sdpa` are custom ops without one, and a
//! graph that goes through them is cut without an error. So normalisation is `candle_nn::ops::layer_norm_slow` and
//! attention is written out; both are what a candle user trains with, and so is their memory.
//!
//! Whatever the type of the activations, a layer converts its parameters to it, which does nothing where they agree
//! and is mixed precision where they do not: the conversion is part of the graph, so the gradient arrives in the type
//! of the parameter.
//!
//! With activations in 16 bits the normalisation and the softmax are computed in f32 (their sums lose too much in
//! 8 bits of mantissa) and cast back. That costs f32 copies of the scores, `[B, H, T, T]`, which live until the
//! backward pass like every other activation.
//!
//! The layers hold tensors and not variables: [`detached`](Projection::detached) gives a twin over the same storage
//! that builds no graph.
//!
//! Letters of the shapes: B samples, T tokens, D width of the residual stream, H heads, K = D / H, I inputs and
//! O outputs of a projection.

mod attention;
mod embedding;
mod loss;
mod mlp;
mod norm;
mod projection;
mod rotary;

pub use attention::{CausalAttention, CausalMask, attend};
pub use embedding::Embedding;
pub use loss::masked_cross_entropy;
pub use mlp::{GatedMlp, Mlp};
pub use norm::{LayerNorm, RmsNorm};
pub use projection::{Linear, Projection};
pub use rotary::{Llama3Scaling, Rotary, RotaryDimensions, Rotation};

/// What the layers of one block are made with.
#[derive(Clone, Copy, Debug)]
pub struct BlockDimensions {
    /// D.
    pub width: usize,
    /// H.
    pub heads: usize,
    /// Standard deviation of the weights.
    pub deviation: f32,
    /// Standard deviation of the weights that write to the residual stream.
    pub residual_deviation: f32,
}
