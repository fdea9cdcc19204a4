//! Text (to come).

use super::{DataError, Dataset, InputSpec, Sample};
use std::path::Path;

/// To come.
#[derive(Debug)]
pub struct Text;
impl Text {
    /// Open.
    pub fn open(_path: Option<&Path>, _input: &InputSpec) -> Result<Self, DataError> {
        Ok(Self)
    }
}
impl Dataset for Text {
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
