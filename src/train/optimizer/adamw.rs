//! AdamW (Loshchilov and Hutter, 2017, "Decoupled Weight Decay Regularization").
//!
//! Operation for operation `candle_nn::AdamW` with its defaults, so that time and memory are what a candle user gets;
//! a test holds the two equal to the bit. It is written again because candle's keeps its moments private, and a
//! checkpoint without them measures less than a real one. The moments have the optimizers' [state type](super::state_dtype).

use candle_core::{Result, Tensor, Var};

use super::{Optimizer, state_dtype};
use crate::model::Parameters;
use crate::train::gradients::Gradients;

/// Decay of the first moment.
const BETA1: f64 = 0.9;
/// Decay of the second moment.
const BETA2: f64 = 0.999;
/// Added to the root of the second moment.
const EPSILON: f64 = 1e-8;
/// Share of a parameter that decays per unit of learning rate.
const WEIGHT_DECAY: f64 = 0.01;

/// Adam with decoupled weight decay.
#[derive(Debug)]
pub struct AdamW {
    slots: Vec<Slot>,
    learning_rate: f64,
    updates: u64,
}

/// A parameter with its moments.
#[derive(Debug)]
struct Slot {
    name: String,
    variable: Var,
    first_moment: Var,
    second_moment: Var,
}

impl AdamW {
    /// An optimizer over all `parameters`, with moments of zero.
    pub fn new(parameters: &Parameters, learning_rate: f64) -> Result<Self> {
        let slots = parameters
            .iter()
            .map(|(name, variable)| {
                let zeros = || Var::zeros(variable.shape(), state_dtype(variable.dtype()), variable.device());
                Ok(Slot {
                    name: name.to_owned(),
                    variable: variable.clone(),
                    first_moment: zeros()?,
                    second_moment: zeros()?,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self { slots, learning_rate, updates: 0 })
    }

    /// Corrections of the moments' bias towards zero after `updates` steps.
    fn bias_corrections(&self) -> (f64, f64) {
        let updates = i32::try_from(self.updates).unwrap_or(i32::MAX);
        (1.0 / (1.0 - BETA1.powi(updates)), 1.0 / (1.0 - BETA2.powi(updates)))
    }
}

impl Slot {
    fn update(&self, gradient: &Tensor, learning_rate: f64, (first, second): (f64, f64)) -> Result<()> {
        let (m, v) = (self.first_moment.as_tensor(), self.second_moment.as_tensor());
        let next_m = ((m * BETA1)? + (gradient * (1.0 - BETA1))?)?;
        let next_v = ((v * BETA2)? + (gradient.sqr()? * (1.0 - BETA2))?)?;
        let m_hat = (&next_m * first)?;
        let v_hat = (&next_v * second)?;
        let dtype = self.variable.dtype();
        let decayed = (self.variable.to_dtype(state_dtype(dtype))? * (1.0 - learning_rate * WEIGHT_DECAY))?;
        let direction = (m_hat / (v_hat.sqrt()? + EPSILON)?)?;
        let next = (decayed - (direction * learning_rate)?)?;
        self.first_moment.set(&next_m)?;
        self.second_moment.set(&next_v)?;
        self.variable.set(&next.to_dtype(dtype)?)
    }
}

impl Optimizer for AdamW {
    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        self.updates += 1;
        let corrections = self.bias_corrections();
        for slot in &self.slots {
            if let Some(gradient) = gradients.mean(&slot.name)? {
                slot.update(&gradient, self.learning_rate, corrections)?;
            }
        }
        Ok(())
    }

    fn state(&self) -> Vec<(String, &Var)> {
        self.slots
            .iter()
            .flat_map(|slot| {
                [
                    (format!("{}.first_moment", slot.name), &slot.first_moment),
                    (format!("{}.second_moment", slot.name), &slot.second_moment),
                ]
            })
            .collect()
    }

    fn updates(&self) -> u64 {
        self.updates
    }
}

#[cfg(test)]
mod tests {
    use candle_core::backprop::GradStore;
    use candle_core::{DType, Device};
    use candle_nn::Optimizer as _;

    use super::*;
    use crate::model::parameters::Init;

    fn parameters() -> Parameters {
        let mut parameters = Parameters::new(&Device::Cpu, DType::F32, 9);
        for name in ["b", "a"] {
            parameters.create(name, &[3, 5], Init::Normal(1.0)).unwrap();
        }
        parameters
    }

    fn backward(parameters: &Parameters) -> GradStore {
        let [a, b] = ["a", "b"].map(|name| parameters.get(name).unwrap().as_tensor().clone());
        (a.sqr().unwrap() * b.sin().unwrap()).unwrap().sum_all().unwrap().backward().unwrap()
    }

    fn bits(parameters: &Parameters) -> Vec<u32> {
        let values =
            parameters.iter().flat_map(|(_, variable)| variable.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        values.map(f32::to_bits).collect()
    }

    #[test]
    fn five_updates_equal_those_of_candle_to_the_bit() {
        let (ours, theirs) = (parameters(), parameters());
        let mut optimizer = AdamW::new(&ours, 0.05).unwrap();
        let variables = theirs.iter().map(|(_, variable)| variable.clone()).collect();
        let mut candle = candle_nn::AdamW::new_lr(variables, 0.05).unwrap();
        for _ in 0..5 {
            let mut gradients = Gradients::default();
            gradients.add(&ours, backward(&ours)).unwrap();
            optimizer.step(&gradients).unwrap();
            candle.step(&backward(&theirs)).unwrap();
        }
        assert_eq!(bits(&ours), bits(&theirs));
        assert_ne!(bits(&ours), bits(&parameters()));
        assert_eq!(optimizer.updates(), 5);
    }

    #[test]
    fn plain_descent_equals_that_of_candle_to_the_bit() {
        let (ours, theirs) = (parameters(), parameters());
        let mut optimizer = crate::train::optimizer::sgd::Sgd::new(&ours, 0.1, 0.0).unwrap();
        let variables = theirs.iter().map(|(_, variable)| variable.clone()).collect();
        let mut candle = candle_nn::SGD::new(variables, 0.1).unwrap();
        for _ in 0..3 {
            let mut gradients = Gradients::default();
            gradients.add(&ours, backward(&ours)).unwrap();
            optimizer.step(&gradients).unwrap();
            candle.step(&backward(&theirs)).unwrap();
        }
        assert_eq!(bits(&ours), bits(&theirs));
        assert!(optimizer.state().is_empty());
    }

    #[test]
    fn moments_come_in_name_order_with_the_type_of_their_parameter_but_for_f16() {
        for (dtype, expected) in [(DType::F32, DType::F32), (DType::BF16, DType::BF16), (DType::F16, DType::F32)] {
            let mut parameters = Parameters::new(&Device::Cpu, dtype, 9);
            for name in ["b", "a"] {
                parameters.create(name, &[3], Init::Constant(1.0)).unwrap();
            }
            let optimizer = AdamW::new(&parameters, 0.1).unwrap();
            let state = optimizer.state();
            let names: Vec<&str> = state.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, ["a.first_moment", "a.second_moment", "b.first_moment", "b.second_moment"]);
            assert!(state.iter().all(|(_, moment)| moment.dtype() == expected), "{dtype:?}");
        }
    }

    #[test]
    fn a_gradient_whose_square_f16_cannot_hold_moves_a_parameter_by_the_learning_rate() {
        let mut parameters = Parameters::new(&Device::Cpu, DType::F16, 9);
        let variable = parameters.create("a", &[3], Init::Constant(1.0)).unwrap();
        let mut gradients = Gradients::default();
        let loss = (variable * 1e-4).unwrap().sum_all().unwrap();
        gradients.add(&parameters, loss.backward().unwrap()).unwrap();
        AdamW::new(&parameters, 0.1).unwrap().step(&gradients).unwrap();
        let after: Vec<f32> =
            parameters.get("a").unwrap().to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        // 1 − 0.1 · 0.01 − 0.1
        assert!(after.iter().all(|value| (value - 0.899).abs() < 1e-3), "{after:?}");
    }
}
