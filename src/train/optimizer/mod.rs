//! Optimizers.
//!
//! An optimizer holds its variables in name order, takes the mean of the accumulated gradients one variable after the
//! other, and can show its state for a checkpoint. The gradients stay alive until the whole step is done, as in a
//! program that calls `optimizer.step(&gradients)`.
//!
//! # The type of the state
//! [`state_dtype`]: that of the parameter, but f32 where the parameter is f16, and the update is then computed in f32
//! too. In f16 a squared gradient under 6·10⁻⁸ is 0 and so is AdamW's ε of 10⁻⁸, so that the quotient of the moments is
//! 0/0. With it a parameter in f16 takes 10 bytes with its moments and not 6. bf16 has the range of f32, and its state
//! stays in bf16: nothing vanishes there, it is only coarse, and that is what training throughout in bf16 means.
//!
//! # To add an optimizer
//! Create `train/optimizer/<kind>.rs` with a type that implements [`Optimizer`], add one variant to
//! [`OptimizerKind`] and one line to [`build`].

use candle_core::{DType, Result, Var};

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
        OptimizerKind::Sgd => Box::new(sgd::Sgd::new(parameters, spec.learning_rate, spec.momentum)?),
    })
}

/// The type of an optimizer's state for a parameter of this type.
pub(super) fn state_dtype(parameter: DType) -> DType {
    if parameter == DType::F16 { DType::F32 } else { parameter }
}
