//! Training and held-out parts of a dataset.

use std::ops::Range;
use std::sync::Arc;

use crate::data::{DataError, Dataset, Place, Sample};

/// One sample in so many is held out for evaluation, as in nanoGPT.
const HELD_OUT: usize = 10;

/// A run of consecutive samples of a dataset.
pub(super) struct Part {
    whole: Arc<dyn Dataset>,
    samples: Range<usize>,
}

impl Part {
    /// The part to train on and the part to evaluate on, which are the same if there is only one sample.
    pub(super) fn split(whole: &Arc<dyn Dataset>) -> (Arc<dyn Dataset>, Arc<dyn Dataset>) {
        let samples = whole.len();
        let held_out = (samples / HELD_OUT).max(1);
        let border = if samples > 1 { samples - held_out } else { samples };
        let evaluation = if samples > 1 { border..samples } else { 0..samples };
        let part = |samples| Arc::new(Self { whole: Arc::clone(whole), samples }) as Arc<dyn Dataset>;
        (part(0..border), part(evaluation))
    }
}

impl Dataset for Part {
    fn len(&self) -> usize {
        self.samples.len()
    }

    fn sample(&self, index: usize) -> Result<Sample, DataError> {
        self.whole.sample(self.samples.start + index)
    }

    fn sample_at(&self, place: Place) -> Result<Sample, DataError> {
        self.whole.sample_at(Place { index: self.samples.start + place.index, ..place })
    }

    fn sample_of_side(&self, place: Place, side: usize) -> Result<Sample, DataError> {
        self.whole.sample_of_side(Place { index: self.samples.start + place.index, ..place }, side)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::HostValues;

    struct Numbers(usize);

    impl Dataset for Numbers {
        fn len(&self) -> usize {
            self.0
        }
        fn sample(&self, index: usize) -> Result<Sample, DataError> {
            let value = HostValues::U32(vec![index as u32]);
            Ok(Sample { input: value.clone(), target: value })
        }
        fn input_shape(&self) -> Vec<usize> {
            vec![1]
        }
        fn target_shape(&self) -> Vec<usize> {
            vec![1]
        }
    }

    fn first_and_length(part: &Arc<dyn Dataset>) -> (HostValues, usize) {
        (part.sample(0).unwrap().input, part.len())
    }

    #[test]
    fn parts_are_disjoint_and_never_empty() {
        for (samples, train, held_out) in [(1, (0, 1), (0, 1)), (2, (0, 1), (1, 1)), (105, (0, 95), (95, 10))] {
            let (training, evaluation) = Part::split(&(Arc::new(Numbers(samples)) as Arc<dyn Dataset>));
            let expected = |(first, length): (u32, usize)| (HostValues::U32(vec![first]), length);
            assert_eq!(first_and_length(&training), expected(train));
            assert_eq!(first_and_length(&evaluation), expected(held_out));
        }
    }
}
