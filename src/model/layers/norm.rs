//! Normalisation of each token, in f32 whatever the activations' type.

use candle_core::{Result, Tensor};

use crate::model::parameters::{Init, Parameters};

/// What is added to the variance before its root, as in GPT-2.
const EPSILON: f32 = 1e-5;

/// Layer normalisation over the last dimension (Ba, Kiros and Hinton, 2016).
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    epsilon: f32,
}

impl LayerNorm {
    /// Creates `<name>.weight` as ones and `<name>.bias` as zeros.
    pub fn create(parameters: &mut Parameters, name: &str, width: usize) -> Result<Self> {
        Ok(Self {
            weight: parameters.create(&format!("{name}.weight"), &[width], Init::Constant(1.0))?, // [D]
            bias: parameters.create(&format!("{name}.bias"), &[width], Init::Constant(0.0))?,     // [D]
            epsilon: EPSILON,
        })
    }

    /// The same with something else than 1e-5 added to the variance.
    pub fn with_epsilon(self, epsilon: f32) -> Self {
        Self { epsilon, ..self }
    }

    /// Normalises each row of `x`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (weight, bias) = (self.weight.to_dtype(x.dtype())?, self.bias.to_dtype(x.dtype())?); // [D], [D]
        candle_nn::ops::layer_norm_slow(x, &weight, &bias, self.epsilon) // [.., D]
    }

    /// The same layer without a graph, over the same storage.
    pub fn detached(&self) -> Self {
        Self { weight: self.weight.detach(), bias: self.bias.detach(), epsilon: self.epsilon }
    }
}

/// Normalisation by the root mean square over the last dimension (Zhang and Sennrich, 2019).
#[derive(Clone, Debug)]
pub struct RmsNorm {
    weight: Tensor,
    epsilon: f32,
}

impl RmsNorm {
    /// Creates `<name>.weight` as ones. `epsilon` is added to the mean square.
    pub fn create(parameters: &mut Parameters, name: &str, width: usize, epsilon: f32) -> Result<Self> {
        let weight = parameters.create(&format!("{name}.weight"), &[width], Init::Constant(1.0))?; // [D]
        Ok(Self { weight, epsilon })
    }

    /// Normalises each row of `x`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        candle_nn::ops::rms_norm_slow(x, &self.weight.to_dtype(x.dtype())?, self.epsilon) // [.., D]
    }

    /// The same layer without a graph, over the same storage.
    pub fn detached(&self) -> Self {
        Self { weight: self.weight.detach(), epsilon: self.epsilon }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    fn input() -> Tensor {
        let values: Vec<f32> = (0..8).map(|index| ((index * 37 % 23) as f32 - 11.0) / 11.0).collect();
        Tensor::from_vec(values, (1, 1, 8), &Device::Cpu).unwrap()
    }

    #[test]
    fn layer_normalisation_has_mean_zero_and_variance_one() {
        let mut parameters = Parameters::new(&Device::Cpu, DType::F32, 0);
        let norm = LayerNorm::create(&mut parameters, "ln", 8).unwrap();
        let y: Vec<f32> = norm.forward(&input()).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        let mean = y.iter().sum::<f32>() / 8.0;
        let variance = y.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / 8.0;
        assert!(mean.abs() < 1e-6 && (variance - 1.0).abs() < 1e-3);
    }

    #[test]
    fn root_mean_square_normalisation_has_a_mean_square_of_one_and_keeps_the_mean() {
        let mut parameters = Parameters::new(&Device::Cpu, DType::F32, 0);
        let norm = RmsNorm::create(&mut parameters, "norm", 8, 1e-6).unwrap();
        let y: Vec<f32> = norm.forward(&input()).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        let square = y.iter().map(|value| value.powi(2)).sum::<f32>() / 8.0;
        assert!((square - 1.0).abs() < 1e-3, "{square}");
        assert!(y.iter().sum::<f32>().abs() > 0.1);
    }
}
