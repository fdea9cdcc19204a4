//! Stochastic gradient descent, plain or with momentum.
//!
//! The rule is that of `torch.optim.SGD` without dampening, Nesterov or weight decay: `v = m·v + g`, `p = p − lr·v`, with
//! a velocity that begins as the first gradient. Without momentum it is operation for operation `candle_nn::SGD` and has
//! no state; candle has none with. The velocity has the optimizer's [state type](super::state_dtype).

use candle_core::{Result, Tensor, Var};

use super::{Optimizer, state_dtype};
use crate::model::Parameters;
use crate::train::gradients::Gradients;

/// Stochastic gradient descent.
#[derive(Debug)]
pub struct Sgd {
    slots: Vec<Slot>,
    learning_rate: f64,
    momentum: f64,
    updates: u64,
}

/// A parameter, with its velocity where there is momentum.
#[derive(Debug)]
struct Slot {
    name: String,
    variable: Var,
    velocity: Option<Var>,
}

impl Sgd {
    /// An optimizer over all `parameters`, with velocities of zero unless `momentum` is.
    pub fn new(parameters: &Parameters, learning_rate: f64, momentum: f64) -> Result<Self> {
        let slots = parameters
            .iter()
            .map(|(name, variable)| {
                let zeros = || Var::zeros(variable.shape(), state_dtype(variable.dtype()), variable.device());
                Ok(Slot {
                    name: name.to_owned(),
                    variable: variable.clone(),
                    velocity: (momentum > 0.0).then(zeros).transpose()?,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self { slots, learning_rate, momentum, updates: 0 })
    }
}

impl Slot {
    fn update(&self, gradient: Tensor, learning_rate: f64, momentum: f64) -> Result<()> {
        let direction = match &self.velocity {
            Some(velocity) => {
                let next = ((velocity.as_tensor() * momentum)? + gradient)?;
                velocity.set(&next)?;
                next
            }
            None => gradient,
        };
        let dtype = self.variable.dtype();
        let parameter = self.variable.to_dtype(state_dtype(dtype))?;
        self.variable.set(&parameter.sub(&(direction * learning_rate)?)?.to_dtype(dtype)?)
    }
}

impl Optimizer for Sgd {
    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        for slot in &self.slots {
            if let Some(gradient) = gradients.mean(&slot.name)? {
                slot.update(gradient, self.learning_rate, self.momentum)?;
            }
        }
        self.updates += 1;
        Ok(())
    }

    fn state(&self) -> Vec<(String, &Var)> {
        let velocities = self.slots.iter().filter_map(|slot| Some((&slot.name, slot.velocity.as_ref()?)));
        velocities.map(|(name, velocity)| (format!("{name}.velocity"), velocity)).collect()
    }

    fn updates(&self) -> u64 {
        self.updates
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::model::parameters::Init;

    fn parameters(dtype: DType, values: &[f32]) -> Parameters {
        let mut parameters = Parameters::new(&Device::Cpu, dtype, 1);
        parameters.create("p", &[values.len()], Init::Constant(0.0)).unwrap();
        let values = Tensor::from_slice(values, values.len(), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        parameters.get("p").unwrap().set(&values).unwrap();
        parameters
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.to_dtype(DType::F32).unwrap().to_vec1().unwrap()
    }

    #[test]
    fn five_updates_with_momentum_equal_those_of_pytorch() {
        // torch 2.11, torch.optim.SGD([p], lr=0.1, momentum=0.9) of ((p*p*p)*0.05 + c*p.sin()).sum()
        const PARAMETER: [[f32; 4]; 5] = [
            [0.957_984_86, -1.997_578, 0.584_008_3, 2.889_749_8],
            [0.877_646_74, -1.993_161_4, 0.737_925_65, 2.689_476_3],
            [0.761_840_34, -1.987_289_1, 0.942_269_8, 2.423_219],
            [0.612_730_2, -1.980_560_4, 1.171_656_8, 2.114_329_3],
            [0.431_995_48, -1.973_585, 1.396_376, 1.782_202],
        ];
        const VELOCITY: [f32; 4] = [1.807_347_3, -0.069_754_526, -2.247_192, 3.321_273_3];
        let parameters = parameters(DType::F32, &[1.0, -2.0, 0.5, 3.0]);
        let factor = Tensor::new(&[0.5_f32, 1.5, -1.0, 0.25], &Device::Cpu).unwrap();
        let mut optimizer = Sgd::new(&parameters, 0.1, 0.9).unwrap();
        let close = |found: &[f32], expected: &[f32]| {
            found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6)
        };
        for expected in PARAMETER {
            let p = parameters.get("p").unwrap().as_tensor();
            let cube = ((p * p).unwrap() * p).unwrap();
            let loss = ((cube * 0.05).unwrap() + (&factor * p.sin().unwrap()).unwrap()).unwrap().sum_all().unwrap();
            let mut gradients = Gradients::default();
            gradients.add(&parameters, loss.backward().unwrap()).unwrap();
            optimizer.step(&gradients).unwrap();
            let found = values(parameters.get("p").unwrap());
            assert!(close(&found, &expected), "{found:?} against {expected:?}");
        }
        let state = optimizer.state();
        assert_eq!(state[0].0, "p.velocity");
        assert!(close(&values(state[0].1), &VELOCITY), "{:?}", values(state[0].1));
    }

    #[test]
    fn there_is_state_only_with_momentum_and_in_f32_for_f16() {
        for (dtype, expected) in [(DType::BF16, DType::BF16), (DType::F16, DType::F32)] {
            let parameters = parameters(dtype, &[1.0, 2.0]);
            assert!(Sgd::new(&parameters, 0.1, 0.0).unwrap().state().is_empty());
            let optimizer = Sgd::new(&parameters, 0.1, 0.5).unwrap();
            assert_eq!(optimizer.state().iter().map(|(_, state)| state.dtype()).collect::<Vec<_>>(), [expected]);
        }
    }

    #[test]
    fn a_parameter_in_f16_is_updated_in_f32() {
        let parameters = parameters(DType::F16, &[1.0, 2.0]);
        let mut optimizer = Sgd::new(&parameters, 0.5, 0.9).unwrap();
        for _ in 0..2 {
            let mut gradients = Gradients::default();
            let loss = parameters.get("p").unwrap().sum_all().unwrap();
            gradients.add(&parameters, loss.backward().unwrap()).unwrap();
            optimizer.step(&gradients).unwrap();
        }
        let found = values(parameters.get("p").unwrap());
        // 1 − 0.5 · 1 − 0.5 · 1.9
        assert!((found[0] + 0.45).abs() < 1e-3 && (found[1] - 0.55).abs() < 1e-3, "{found:?}");
    }
}
