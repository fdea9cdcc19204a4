//! The samples that training never sees, as a dataset of their own.

use std::sync::Arc;

use super::{DataError, Dataset, Place, Sample};

/// The held-out part of another dataset.
struct HeldOut {
    whole: Arc<dyn Dataset>,
}

impl Dataset for HeldOut {
    fn len(&self) -> usize {
        self.whole.held_out_len()
    }

    fn sample(&self, index: usize) -> Result<Sample, DataError> {
        self.whole.sample(self.whole.len().saturating_add(index))
    }

    fn sample_at(&self, place: Place) -> Result<Sample, DataError> {
        self.whole.sample_at(Place { index: self.whole.len().saturating_add(place.index), ..place })
    }

    fn sample_of_side(&self, place: Place, side: usize) -> Result<Sample, DataError> {
        self.whole.sample_of_side(Place { index: self.whole.len().saturating_add(place.index), ..place }, side)
    }

    fn input_shape(&self) -> Vec<usize> {
        self.whole.input_shape()
    }

    fn target_shape(&self) -> Vec<usize> {
        self.whole.target_shape()
    }

    fn target_padding(&self) -> u32 {
        self.whole.target_padding()
    }

    fn ballast_bytes(&self) -> u64 {
        self.whole.ballast_bytes()
    }
}

/// The held-out samples of `dataset`; `None` where it keeps none back (a text of a single window).
pub fn split(dataset: &Arc<dyn Dataset>) -> Option<Arc<dyn Dataset>> {
    (dataset.held_out_len() > 0).then(|| Arc::new(HeldOut { whole: Arc::clone(dataset) }) as Arc<dyn Dataset>)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::InputSpec;
    use crate::data::synthetic::Synthetic;

    #[test]
    fn held_out_samples_follow_those_of_training() {
        let input = InputSpec::Tokens { vocabulary_size: 10, sequence_length: 4 };
        let whole: Arc<dyn Dataset> = Arc::new(Synthetic::new(&input, 1).unwrap());
        let part = split(&whole).unwrap();
        assert_eq!(part.len(), whole.held_out_len());
        assert_eq!(part.sample(2).unwrap(), whole.sample(whole.len() + 2).unwrap());
        assert_eq!(part.input_shape(), [4]);
        assert!(split(&part).is_none());
    }
}
