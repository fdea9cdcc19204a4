//! Plain stochastic gradient descent: no momentum, no state.
//!
//! Operation for operation `candle_nn::SGD`.

use candle_core::{Result, Var};

use super::Optimizer;
use crate::model::Parameters;
use crate::train::gradients::Gradients;

/// Stochastic gradient descent without momentum.
#[derive(Debug)]
pub struct Sgd {
    variables: Vec<(String, Var)>,
    learning_rate: f64,
    updates: u64,
}

impl Sgd {
    /// An optimizer over all `parameters`.
    pub fn new(parameters: &Parameters, learning_rate: f64) -> Self {
        let variables = parameters.iter().map(|(name, variable)| (name.to_owned(), variable.clone())).collect();
        Self { variables, learning_rate, updates: 0 }
    }
}

impl Optimizer for Sgd {
    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        for (name, variable) in &self.variables {
            let Some(gradient) = gradients.mean(name)? else { continue };
            variable.set(&variable.sub(&(gradient * self.learning_rate)?)?)?;
        }
        self.updates += 1;
        Ok(())
    }

    fn state(&self) -> Vec<(String, &Var)> {
        Vec::new()
    }

    fn updates(&self) -> u64 {
        self.updates
    }
}
