//! The train room: one step of training, and what decides its memory.
//!
//! A *step* is one micro-batch, forward and backward. An *update* is `accumulation_steps` steps and one optimizer
//! step. [`trainer::Trainer`] does both over any [`crate::model::Workload`].

use std::fmt;

use candle_core::DType;
use serde::{Deserialize, Serialize};

mod checkpoint;
#[cfg(test)]
mod contract;
pub mod gradients;
mod loss_scale;
pub mod optimizer;
mod recompute;
#[cfg(test)]
pub(crate) mod testing;
pub mod trainer;

pub use trainer::{MicroBatch, Trainer};

/// The type of parameters, activations and optimizer state.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 32-bit floating point throughout.
    #[default]
    F32,
    /// bfloat16 throughout.
    Bf16,
    /// IEEE half throughout, with dynamic loss scaling.
    F16,
    /// f32 parameters, bfloat16 compute.
    MixedBf16,
    /// f32 parameters, half compute, with dynamic loss scaling.
    MixedF16,
}

impl Precision {
    /// The type parameters are held in.
    pub fn parameter_dtype(self) -> DType {
        match self {
            Self::F32 | Self::MixedBf16 | Self::MixedF16 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }

    /// The type of the activations. Layers convert a parameter to the type of what they apply it to, so this decides
    /// what a model computes in.
    pub fn compute_dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 | Self::MixedBf16 => DType::BF16,
            Self::F16 | Self::MixedF16 => DType::F16,
        }
    }
}

impl fmt::Display for Precision {
    /// As the configuration writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::MixedBf16 => "mixed_bf16",
            Self::MixedF16 => "mixed_f16",
        })
    }
}

/// Which optimizer.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerKind {
    /// Adam with decoupled weight decay (Loshchilov and Hutter, 2017).
    #[default]
    Adamw,
    /// Stochastic gradient descent.
    Sgd,
}

/// Whether activations are recomputed in the backward pass.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum GradientCheckpointing {
    /// All are kept.
    #[default]
    None,
    /// Only the inputs of blocks are kept.
    Blocks,
    /// The search decides.
    Auto,
}

impl GradientCheckpointing {
    /// Whether nothing is recomputed. By reference, as serde asks.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
}

impl fmt::Display for GradientCheckpointing {
    /// As the configuration writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Blocks => "blocks",
            Self::Auto => "auto",
        })
    }
}

/// What batch normalisation does while training.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum BatchNorm {
    /// Statistics of the batch; the running ones are updated.
    #[default]
    Train,
    /// The running statistics, not updated.
    Frozen,
    /// Statistics over all replicas.
    Sync,
}

/// How to train, as a plan holds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainSpec {
    /// Types.
    pub precision: Precision,
    /// Optimizer.
    pub optimizer: OptimizerKind,
    /// Step size of the optimizer.
    pub learning_rate: f64,
    /// Share of the last step that SGD's next one keeps.
    pub momentum: f64,
    /// Recomputation.
    pub gradient_checkpointing: GradientCheckpointing,
    /// Batch normalisation.
    pub batch_norm: BatchNorm,
    /// Updates from one evaluation pass of the coming run to the next. Trials have their own, so it is for the forecast.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluate_every: Option<u32>,
    /// Updates from one checkpoint of the coming run to the next; for the forecast too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_every: Option<u32>,
}
