//! Gradients summed over the micro-batches of one update.
//!
//! Only the gradients of the parameters are kept. candle's `GradStore` also holds one for everything that was ever
//! combined with a tracked tensor (masks, inputs), under an id that is new in every pass: joining stores by
//! `GradStore::extend` therefore grows with every micro-batch. Here they are taken out in name order and the store is
//! dropped at once, so what lives between two micro-batches is one tensor per parameter, however many there were.

use std::collections::BTreeMap;

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor};

use crate::model::Parameters;

/// The sum of the gradients since the last update, by the parameters' names.
#[derive(Debug, Default)]
pub struct Gradients {
    sums: BTreeMap<String, Tensor>,
    micro_batches: u32,
}

impl Gradients {
    /// Adds the gradients of one micro-batch. Parameters that it did not reach keep their sum.
    pub fn add(&mut self, parameters: &Parameters, mut store: GradStore) -> Result<()> {
        // candle leaves the operations that made a parameter's gradient attached to it, and they hold activations.
        // All are detached, and the rest of the store is dropped, before the first sum asks for memory.
        let taken: Vec<(&str, Tensor)> = parameters
            .iter()
            .filter_map(|(name, variable)| store.remove(variable).map(|gradient| (name, gradient.detach())))
            .collect();
        drop(store);
        for (name, gradient) in taken {
            let sum = match self.sums.remove(name) {
                Some(sum) => (sum + gradient)?,
                None => gradient,
            };
            self.sums.insert(name.to_owned(), sum);
        }
        self.micro_batches += 1;
        Ok(())
    }

    /// Micro-batches summed.
    pub fn micro_batches(&self) -> u32 {
        self.micro_batches
    }

    /// The mean over the micro-batches of one parameter's gradient. Each micro-batch's loss is a mean over its
    /// samples, so with micro-batches of one size this is the gradient of the whole batch's mean loss.
    pub fn mean(&self, name: &str) -> Result<Option<Tensor>> {
        match self.sums.get(name) {
            Some(sum) if self.micro_batches > 1 => Ok(Some((sum * (1.0 / f64::from(self.micro_batches)))?)),
            sum => Ok(sum.cloned()),
        }
    }

    /// Names of the parameters without a gradient, in order.
    pub fn unreached(&self, parameters: &Parameters) -> Vec<String> {
        parameters
            .iter()
            .map(|(name, _)| name)
            .filter(|name| !self.sums.contains_key(*name))
            .map(str::to_owned)
            .collect()
    }

    /// Drops all sums in name order, so that traces do not depend on the order of a hash map.
    pub fn clear(&mut self) {
        while let Some((_, sum)) = self.sums.pop_first() {
            drop(sum);
        }
        self.micro_batches = 0;
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::model::parameters::Init;

    fn parameters() -> Parameters {
        let mut parameters = Parameters::new(&Device::Cpu, DType::F32, 1);
        for name in ["b", "a", "unused"] {
            parameters.create(name, &[4], Init::Normal(1.0)).unwrap();
        }
        parameters
    }

    /// A loss whose graph also has an input and a mask, which candle computes gradients for.
    fn backward(parameters: &Parameters, scale: f64) -> GradStore {
        let variable = |name| parameters.get(name).unwrap().as_tensor().clone();
        let input = Tensor::new(&[1.0_f32, 2.0, 3.0, 4.0], &Device::Cpu).unwrap();
        let mask = Tensor::new(&[0.0_f32, 0.0, 1.0, 1.0], &Device::Cpu).unwrap();
        let x = ((variable("a") * input).unwrap() + mask).unwrap();
        let loss = ((x * variable("b")).unwrap() * scale).unwrap().sum_all().unwrap();
        loss.backward().unwrap()
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.to_vec1().unwrap()
    }

    #[test]
    fn the_mean_of_two_micro_batches_is_that_of_their_gradients() {
        let parameters = parameters();
        let mut gradients = Gradients::default();
        gradients.add(&parameters, backward(&parameters, 1.0)).unwrap();
        let one = values(&gradients.mean("a").unwrap().unwrap());
        gradients.add(&parameters, backward(&parameters, 3.0)).unwrap();
        let mean = values(&gradients.mean("a").unwrap().unwrap());
        for (mean, one) in mean.iter().zip(one) {
            assert!((mean - 2.0 * one).abs() < 1e-5, "{mean} against {one}");
        }
    }

    #[test]
    fn what_is_kept_does_not_grow_with_the_micro_batches() {
        let parameters = parameters();
        let mut gradients = Gradients::default();
        for micro_batch in 1..=5 {
            let store = backward(&parameters, 1.0);
            assert!(store.get_ids().count() > 2, "candle keeps gradients of the input and the mask");
            gradients.add(&parameters, store).unwrap();
            assert_eq!(gradients.sums.len(), 2);
            assert_eq!(gradients.micro_batches(), micro_batch);
            assert!(gradients.sums.values().all(|sum| !sum.track_op()), "a graph is attached to a sum");
        }
    }

    #[test]
    fn unreached_parameters_are_named() {
        let parameters = parameters();
        let mut gradients = Gradients::default();
        assert_eq!(gradients.unreached(&parameters), ["a", "b", "unused"]);
        gradients.add(&parameters, backward(&parameters, 1.0)).unwrap();
        assert_eq!(gradients.unreached(&parameters), ["unused"]);
        assert!(gradients.mean("unused").unwrap().is_none());
    }

    #[test]
    fn clearing_starts_a_new_sum() {
        let parameters = parameters();
        let mut gradients = Gradients::default();
        gradients.add(&parameters, backward(&parameters, 5.0)).unwrap();
        gradients.clear();
        assert!(gradients.mean("a").unwrap().is_none());
        gradients.add(&parameters, backward(&parameters, 1.0)).unwrap();
        assert_eq!(gradients.micro_batches(), 1);
        let b = values(&gradients.mean("b").unwrap().unwrap());
        let a = values(parameters.get("a").unwrap());
        assert!((b[0] - a[0]).abs() < 1e-6);
    }
}
