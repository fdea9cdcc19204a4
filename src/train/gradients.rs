//! Gradients summed over the micro-batches of one update.
//!
//! Only the gradients of the parameters are kept. candle's `GradStore` also holds one for everything that was ever
//! combined with a tracked tensor (masks, inputs), under an id that is new in every pass: joining stores by
//! `GradStore::extend` therefore grows with every micro-batch. Here they are taken out in name order and the store is
//! dropped at once, so what lives between two micro-batches is one tensor per parameter, however many there were.

use std::collections::BTreeMap;

use candle_core::backprop::GradStore;
use candle_core::{DType, Result, Tensor};

use crate::model::Parameters;

/// The sum of the gradients since the last update, by the parameters' names.
#[derive(Debug)]
pub struct Gradients {
    sums: BTreeMap<String, Tensor>,
    micro_batches: u32,
    loss_scale: f64,
}

impl Default for Gradients {
    fn default() -> Self {
        Self { sums: BTreeMap::new(), micro_batches: 0, loss_scale: 1.0 }
    }
}

impl Gradients {
    /// Adds the gradients of one micro-batch. Parameters that it did not reach keep their sum.
    pub fn add(&mut self, parameters: &Parameters, store: GradStore) -> Result<()> {
        self.take(parameters, store)?;
        self.end_micro_batch();
        Ok(())
    }

    /// Adds a part of the gradients of one micro-batch. Gives the names of the parameters that have one in it, in order.
    pub(super) fn take<'a>(&mut self, parameters: &'a Parameters, mut store: GradStore) -> Result<Vec<&'a str>> {
        // candle leaves the operations that made a parameter's gradient attached to it, and they hold activations.
        // All are detached, and the rest of the store is dropped, before the first sum asks for memory.
        let taken: Vec<(&'a str, Tensor)> = parameters
            .iter()
            .filter_map(|(name, variable)| store.remove(variable).map(|gradient| (name, gradient.detach())))
            .collect();
        drop_in_order(store);
        let names = taken.iter().map(|(name, _)| *name).collect();
        for (name, gradient) in taken {
            let sum = match self.sums.remove(name) {
                Some(sum) => (sum + gradient)?,
                None => gradient,
            };
            self.sums.insert(name.to_owned(), sum);
        }
        Ok(names)
    }

    /// The sums, for replicas to average them.
    pub(super) fn sums_mut(&mut self) -> &mut BTreeMap<String, Tensor> {
        &mut self.sums
    }

    /// Counts the micro-batch whose gradients were taken.
    pub(super) fn end_micro_batch(&mut self) {
        self.micro_batches += 1;
    }

    /// The loss to go backward from: in f32, and times what the gradients are scaled by.
    pub(super) fn scaled(&self, loss: &Tensor) -> Result<Tensor> {
        if self.is_scaled() { loss.to_dtype(DType::F32)?.affine(self.loss_scale, 0.0) } else { Ok(loss.clone()) }
    }

    fn is_scaled(&self) -> bool {
        self.loss_scale.to_bits() != 1.0_f64.to_bits()
    }

    /// Scales the losses of the micro-batches from now on; only while no gradients are held.
    pub(super) fn scale_losses_by(&mut self, loss_scale: f64) {
        self.loss_scale = loss_scale;
    }

    /// Whether every gradient is finite. One number is read from the device, whatever the number of parameters: a sum
    /// in f32 is not finite if any of its terms is not.
    pub fn are_finite(&self) -> Result<bool> {
        let mut total: Option<Tensor> = None;
        for sum in self.sums.values() {
            let sum = sum.to_dtype(DType::F32)?.sum_all()?; // []
            total = Some(match total {
                Some(total) => (total + sum)?,
                None => sum,
            });
        }
        total.map_or(Ok(true), |total| Ok(total.to_scalar::<f32>()?.is_finite()))
    }

    /// Micro-batches summed.
    pub fn micro_batches(&self) -> u32 {
        self.micro_batches
    }

    /// The mean over the micro-batches of one parameter's gradient. Each micro-batch's loss is a mean over its
    /// samples, so with micro-batches of one size this is the gradient of the whole batch's mean loss.
    ///
    /// Without the loss scale. A gradient in f16 comes out in f32: what the scale kept from vanishing would vanish now.
    pub fn mean(&self, name: &str) -> Result<Option<Tensor>> {
        let Some(sum) = self.sums.get(name) else { return Ok(None) };
        let sum = if sum.dtype() == DType::F16 { sum.to_dtype(DType::F32)? } else { sum.clone() };
        if self.micro_batches > 1 || self.is_scaled() {
            return Ok(Some((sum * (1.0 / (f64::from(self.micro_batches) * self.loss_scale)))?));
        }
        Ok(Some(sum))
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

/// Drops what is left of a store in the order in which its tensors were made: by itself it goes in hash order, which is
/// another one in every process, and a trace would have its frees where they happened to fall.
fn drop_in_order(store: GradStore) {
    let mut left: Vec<(String, Tensor)> = store
        .get_ids()
        // A number that nothing but its text gives away.
        .filter_map(|id| Some((format!("{id:?}"), store.get_id(*id)?.clone())))
        .collect();
    drop(store);
    left.sort_by(|(a, _), (b, _)| (a.len(), a).cmp(&(b.len(), b)));
    left.into_iter().for_each(drop);
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

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
    fn the_loss_scale_is_gone_from_the_mean_and_found_where_it_overflows() {
        let parameters = parameters();
        let mut plain = Gradients::default();
        plain.add(&parameters, backward(&parameters, 1.0)).unwrap();
        let mut scaled = Gradients::default();
        scaled.scale_losses_by(1024.0);
        for _ in 0..2 {
            scaled.add(&parameters, backward(&parameters, 1024.0)).unwrap();
        }
        let of = |gradients: &Gradients| values(&gradients.mean("a").unwrap().unwrap());
        // A power of two changes no digit.
        assert_eq!(of(&plain), of(&scaled));
        assert!(scaled.are_finite().unwrap() && Gradients::default().are_finite().unwrap());
        scaled.add(&parameters, backward(&parameters, f64::INFINITY)).unwrap();
        assert!(!scaled.are_finite().unwrap());
    }

    #[test]
    fn a_gradient_in_f16_is_unscaled_in_f32() {
        let mut parameters = Parameters::new(&Device::Cpu, DType::F16, 1);
        let variable = parameters.create("a", &[4], Init::Constant(1.0)).unwrap();
        let mut gradients = Gradients::default();
        gradients.scale_losses_by(65536.0);
        let loss = variable.to_dtype(DType::F32).unwrap().affine(1e-7, 0.0).unwrap().sum_all().unwrap();
        let loss = gradients.scaled(&loss).unwrap();
        gradients.add(&parameters, loss.backward().unwrap()).unwrap();
        let mean = gradients.mean("a").unwrap().unwrap();
        assert_eq!(mean.dtype(), DType::F32);
        // f16 has 6e-8 and 1.2e-7 and nothing between.
        assert!(values(&mean).iter().all(|value| (value - 1e-7).abs() < 1e-10), "{mean}");
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
