//! `train:`, how to train.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::leaf::choice::Choice;
use crate::config::leaf::number::{LearningRate, MANY, Momentum, Whole};
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
    /// Updates from one evaluation pass of the coming run to the next, for its forecast; by default there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluate_every: Option<Updates>,
    /// Updates from one checkpoint of the coming run to the next, for its forecast; by default there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_every: Option<Updates>,
}

/// How many updates lie between two of something.
pub type Updates = Whole<1, MANY>;

impl Default for TrainFile {
    fn default() -> Self {
        Self {
            precision: Choice::default(),
            optimizer: Choice::default(),
            learning_rate: LearningRate(3e-4),
            momentum: Momentum::default(),
            gradient_checkpointing: Choice::default(),
            batch_norm: Choice::default(),
            evaluate_every: None,
            checkpoint_every: None,
        }
    }
}
