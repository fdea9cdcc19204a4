//! Buckets: many gradients as one tensor, since many small exchanges would each cost their latency.

use candle_core::{DType, Result, Shape, Tensor};

/// A bucket is filled up to this: the size that PyTorch's `DistributedDataParallel` found best (`bucket_cap_mb`).
pub const BUCKET_BYTES: usize = 25 << 20;

/// A gradient's place in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) name: String,
    pub(super) shape: Shape,
    pub(super) dtype: DType,
}

impl Slot {
    pub(super) fn of((name, gradient): (&String, &Tensor)) -> Self {
        Self { name: name.clone(), shape: gradient.shape().clone(), dtype: gradient.dtype() }
    }

    fn bytes(&self) -> usize {
        self.shape.elem_count().saturating_mul(self.dtype.size_in_bytes())
    }
}

/// Gradients in buckets: in their order, of one type, up to so many bytes or one that is larger.
pub(super) fn pack(slots: impl IntoIterator<Item = Slot>, most_bytes: usize) -> Vec<Vec<Slot>> {
    let mut buckets: Vec<Vec<Slot>> = Vec::new();
    let (mut filled_bytes, mut dtype) = (usize::MAX, None);
    for slot in slots {
        let bytes = slot.bytes();
        filled_bytes = filled_bytes.saturating_add(bytes);
        match buckets.last_mut() {
            Some(bucket) if filled_bytes <= most_bytes && dtype == Some(slot.dtype) => bucket.push(slot),
            _ => {
                (filled_bytes, dtype) = (bytes, Some(slot.dtype));
                buckets.push(vec![slot]);
            }
        }
    }
    buckets
}

/// A bucket of gradients, which are dropped.
pub(super) fn fill(gradients: Vec<Tensor>) -> Result<Tensor> {
    let flat: Vec<Tensor> = gradients.iter().map(Tensor::flatten_all).collect::<Result<_>>()?; // [N]
    drop(gradients);
    match flat.as_slice() {
        // One gradient may share its memory with another: what is changed in place is always a copy.
        [only] => only.force_contiguous(),  // [N]
        several => Tensor::cat(several, 0), // [sum of N]
    }
}

/// The gradients that a bucket holds, as views of it.
pub(super) fn views<'a>(bucket: &'a Tensor, slots: &'a [Slot]) -> impl Iterator<Item = Result<Tensor>> + 'a {
    let mut start = 0;
    slots.iter().map(move |slot| {
        let count = slot.shape.elem_count();
        let view = bucket.narrow(0, start, count)?.reshape(&slot.shape);
        start += count;
        view
    })
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn names(slots: &[Slot], most_bytes: usize) -> Vec<Vec<String>> {
        let buckets = pack(slots.iter().cloned(), most_bytes);
        buckets.into_iter().map(|bucket| bucket.into_iter().map(|slot| slot.name).collect()).collect()
    }

    #[test]
    fn a_bucket_holds_gradients_of_one_type_up_to_its_size() {
        let slot = |(name, mebibytes): (&str, usize)| Slot {
            name: name.to_owned(),
            shape: Shape::from(mebibytes << 18),
            dtype: DType::F32,
        };
        let mut slots: Vec<Slot> = [("c", 12), ("b", 12), ("a", 2), ("d", 60), ("e", 1)].map(slot).to_vec();
        assert_eq!(names(&slots, BUCKET_BYTES), [vec!["c", "b"], vec!["a"], vec!["d"], vec!["e"]]);
        slots[1].dtype = DType::BF16;
        assert_eq!(names(&slots, BUCKET_BYTES), [vec!["c"], vec!["b"], vec!["a"], vec!["d"], vec!["e"]]);
        assert!(names(&[], BUCKET_BYTES).is_empty());
    }

    #[test]
    fn what_is_put_into_a_bucket_is_found_in_it_and_is_a_copy() {
        let tensor = |from: f32, shape: (usize, usize)| {
            Tensor::arange(from, from + (shape.0 * shape.1) as f32, &Device::Cpu).unwrap().reshape(shape).unwrap()
        };
        let names = ["a".to_owned(), "b".to_owned()];
        for count in [1, 2] {
            let gradients: Vec<Tensor> = [tensor(0.0, (2, 3)), tensor(9.0, (4, 1))].into_iter().take(count).collect();
            let slots: Vec<Slot> = names.iter().zip(&gradients).map(Slot::of).collect();
            let bucket = fill(gradients.clone()).unwrap();
            for (view, gradient) in views(&bucket, &slots).zip(&gradients) {
                assert_eq!(view.unwrap().to_vec2::<f32>().unwrap(), gradient.to_vec2::<f32>().unwrap());
            }
            bucket.zero_set().unwrap();
            assert!(gradients[0].sum_all().unwrap().to_scalar::<f32>().unwrap() > 0.0);
        }
    }
}
