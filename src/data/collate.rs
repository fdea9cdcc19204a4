//! Putting samples together to a batch.

use super::{DataError, Dataset, HostBatch, HostValues};

/// Loads the samples at `indices` and joins them row by row.
///
/// `stop` is asked before each sample; when it says so, loading ends with `None`.
pub(super) fn load(
    dataset: &dyn Dataset,
    indices: &[usize],
    stop: &dyn Fn() -> bool,
) -> Result<Option<HostBatch>, DataError> {
    let (input_shape, target_shape) = (dataset.input_shape(), dataset.target_shape());
    let mut input = Field::new(&input_shape);
    let mut target = Field::new(&target_shape);
    for &index in indices {
        if stop() {
            return Ok(None);
        }
        let sample = dataset.sample(index)?;
        input.push(index, sample.input, indices.len())?;
        target.push(index, sample.target, indices.len())?;
    }
    Ok(Some(HostBatch {
        input: input.values.unwrap_or(HostValues::U32(Vec::new())),
        input_shape: batched(indices.len(), input_shape),
        target: target.values.unwrap_or(HostValues::U32(Vec::new())),
        target_shape: batched(indices.len(), target_shape),
        samples: indices.len(),
    }))
}

fn batched(samples: usize, shape: Vec<usize>) -> Vec<usize> {
    std::iter::once(samples).chain(shape).collect()
}

/// One field of the batch while it grows.
struct Field {
    values: Option<HostValues>,
    per_sample: usize,
}

impl Field {
    fn new(shape: &[usize]) -> Self {
        Self { values: None, per_sample: shape.iter().fold(1, |count: usize, size| count.saturating_mul(*size)) }
    }

    /// Appends one sample's values; room for all `samples` is made at the first.
    fn push(&mut self, index: usize, values: HostValues, samples: usize) -> Result<(), DataError> {
        let found = (values.bytes() / 4) as usize;
        if found != self.per_sample {
            return Err(DataError::SampleShape { index, found, needed: self.per_sample });
        }
        match (&mut self.values, values) {
            (None, HostValues::U32(values)) => self.values = Some(HostValues::U32(with_room(&values, samples))),
            (None, HostValues::F32(values)) => self.values = Some(HostValues::F32(with_room(&values, samples))),
            (Some(HostValues::U32(joined)), HostValues::U32(values)) => joined.extend_from_slice(&values),
            (Some(HostValues::F32(joined)), HostValues::F32(values)) => joined.extend_from_slice(&values),
            (Some(_), _) => return Err(DataError::SampleType { index }),
        }
        Ok(())
    }
}

fn with_room<T: Copy>(first: &[T], samples: usize) -> Vec<T> {
    let mut joined = Vec::with_capacity(first.len().saturating_mul(samples));
    joined.extend_from_slice(first);
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Sample;

    /// Two features and a class per sample, spoiled at chosen indices.
    struct Spoiled;

    impl Dataset for Spoiled {
        fn len(&self) -> usize {
            10
        }
        fn sample(&self, index: usize) -> Result<Sample, DataError> {
            let value = index as f32;
            let input = match index {
                7 => HostValues::F32(vec![value]),
                8 => HostValues::U32(vec![8, 8]),
                _ => HostValues::F32(vec![value, -value]),
            };
            Ok(Sample { input, target: HostValues::U32(vec![index as u32]) })
        }
        fn input_shape(&self) -> Vec<usize> {
            vec![2]
        }
        fn target_shape(&self) -> Vec<usize> {
            Vec::new()
        }
    }

    #[test]
    fn samples_are_joined_row_by_row() {
        let batch = load(&Spoiled, &[3, 1], &|| false).unwrap().unwrap();
        assert_eq!(batch.input, HostValues::F32(vec![3.0, -3.0, 1.0, -1.0]));
        assert_eq!(batch.input_shape, [2, 2]);
        assert_eq!(batch.target, HostValues::U32(vec![3, 1]));
        assert_eq!(batch.target_shape, [2]);
        assert_eq!((batch.samples, batch.bytes()), (2, 24));
    }

    #[test]
    fn a_sample_of_another_shape_or_type_is_named() {
        let error = load(&Spoiled, &[1, 7], &|| false);
        assert!(matches!(error, Err(DataError::SampleShape { index: 7, found: 1, needed: 2 })));
        let error = load(&Spoiled, &[1, 8], &|| false);
        assert!(matches!(error, Err(DataError::SampleType { index: 8 })));
    }

    #[test]
    fn loading_stops_between_samples() {
        assert!(load(&Spoiled, &[1, 7], &|| true).unwrap().is_none());
    }
}
