//! Optimizers.
//!
//! An optimizer holds its variables in name order, takes the mean of the accumulated gradients one variable after the
//! other, and can show its state for a checkpoint. The gradients stay alive until the whole step is done, as in a
//! program that calls `optimizer.step(&gradients)`.
//!
//! # To add an optimizer
//! Create `train/optimizer/<kind>.rs` with a type that implements [`Optimizer`], add one variant to
//! [`OptimizerKind`] and one line to [`build`].

use candle_core::{Result, Var};

use super::gradients::Gradients;
use super::{OptimizerKind, TrainSpec};
use crate::model::Parameters;

pub mod adamw;
pub mod sgd;

/// Changes parameters by their gradients.
pub trait Optimizer {
    /// One update of every parameter that has a gradient.
    fn step(&mut self, gradients: &Gradients) -> Result<()>;

    /// The state that a checkpoint must hold beside the parameters: names and tensors, in the parameters' order.
    fn state(&self) -> Vec<(String, &Var)>;

    /// Updates done so far.
    fn updates(&self) -> u64;
}

/// The registry: the optimizer of a specification, with its state allocated in name order.
pub fn build(parameters: &Parameters, spec: &TrainSpec) -> Result<Box<dyn Optimizer>> {
    Ok(match spec.optimizer {
        OptimizerKind::Adamw => Box::new(adamw::AdamW::new(parameters, spec.learning_rate)?),
        OptimizerKind::Sgd => Box::new(sgd::Sgd::new(parameters, spec.learning_rate)),
    })
}
