//! `train:`, how to train.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::leaf::choice::Choice;
use crate::config::leaf::number::{LearningRate, Momentum};
use crate::train::{BatchNorm, GradientCheckpointing, OptimizerKind, Precision};

/// How to train.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrainFile {
    /// The type of parameters, activations and optimizer state.
    pub precision: Choice<Precision>,
    /// The optimizer.
    pub optimizer: Choice<OptimizerKind>,
    /// The optimizer's step size.
    pub learning_rate: LearningRate,
    /// For SGD: the share of the last step that the next one keeps.
    pub momentum: Momentum,
    /// Whether activations are recomputed in the backward pass; auto makes it part of the search.
    pub gradient_checkpointing: Choice<GradientCheckpointing>,
    /// What batch normalisation does while training.
    pub batch_norm: Choice<BatchNorm>,
}

impl Default for TrainFile {
    fn default() -> Self {
        Self {
            precision: Choice::default(),
            optimizer: Choice::default(),
            learning_rate: LearningRate(3e-4),
            momentum: Momentum::default(),
            gradient_checkpointing: Choice::default(),
            batch_norm: Choice::default(),
        }
    }
}
