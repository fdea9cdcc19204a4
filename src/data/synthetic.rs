//! Synthetic (to come).

use super::{DataError, Dataset, InputSpec, Sample};

/// To come.
#[derive(Debug)]
pub struct Synthetic;
impl Synthetic {
    /// New.
    pub fn new(_input: InputSpec, _seed: u64) -> Self {
        Self
    }
}
impl Dataset for Synthetic {
    fn len(&self) -> usize {
        1
    }
    fn sample(&self, _index: usize) -> Result<Sample, DataError> {
        unimplemented!()
    }
    fn input_shape(&self) -> Vec<usize> {
        vec![]
    }
    fn target_shape(&self) -> Vec<usize> {
        vec![]
    }
}
