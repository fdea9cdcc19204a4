//! The size of one allocation as a function of the batch, solved in integers.
//!
//! A tensor is constant in the batch (a weight), proportional to it (an activation) or, rarely, a sum of both, so its
//! size is `a + b·B` with whole `a, b ≥ 0`. Two samples give `a` and `b`; each of the conditions can fail and then
//! shows that something else is going on (padding, a workspace chosen by an algorithm, variables in another order).
//!
//! Two samples can also lie on such a line by chance: sizes padded to a multiple of 64 bytes may be 256 at B=2 and 320
//! at B=3, which reads as 128 + 64·B and is wrong at B=4. An allocation is *doubtful*, and worth a third probe, when
//! padding could have made it look affine:
//!
//! - it has both a constant and a growing part, and both sizes are multiples of 16 bytes (the smallest padding in use); or
//! - it is proportional, both batch sizes are even, and a sample's bytes are no multiple of 512 (the largest padding
//!   that is usual): then an odd number of samples may be padded where an even one is not.

/// The smallest padding that anybody uses: 8 elements of 16 bits.
const MIN_PADDING_BYTES: u64 = 16;
/// The largest usual padding. Tensors of a multiple of it per sample are never padded.
const MAX_PADDING_BYTES: u64 = 512;

/// One probe's size of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The probe's batch size.
    pub batch_size: usize,
    /// The bytes asked for.
    pub bytes: u64,
}

/// The size of an allocation at any batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// `constant + per_sample · B`.
    Affine {
        /// a.
        constant: u64,
        /// b.
        per_sample: u64,
    },
    /// No whole numbers fit. The line through two samples, rounded up, stands in; the larger sample where it falls.
    Extrapolated {
        /// The sample at the smaller batch size.
        low: Sample,
        /// The sample at the larger batch size.
        high: Sample,
    },
}

impl Size {
    /// The bytes at a batch size. Sizes beyond `u64` stay there: nothing can hold them.
    pub fn at(self, batch_size: usize) -> u64 {
        match self {
            Self::Affine { constant, per_sample } => {
                constant.saturating_add(per_sample.saturating_mul(batch_size as u64))
            }
            Self::Extrapolated { low, high } => extrapolate(low, high, batch_size),
        }
    }
}

/// The line through two samples at a batch size, rounded up.
fn extrapolate(low: Sample, high: Sample, batch_size: usize) -> u64 {
    let Some(rise) = high.bytes.checked_sub(low.bytes) else { return low.bytes };
    let run = (high.batch_size as i128 - low.batch_size as i128).max(1);
    let distance = batch_size as i128 - low.batch_size as i128;
    // At most 2^64 · 2^64: where even an i128 is too small, so is a u64.
    let Some(product) = i128::from(rise).checked_mul(distance) else { return u64::MAX };
    let change = product.div_euclid(run) + i128::from(product.rem_euclid(run) != 0);
    u64::try_from((i128::from(low.bytes) + change).max(0)).unwrap_or(u64::MAX)
}

/// How an allocation's samples fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Whole numbers fit, and nothing but a line explains it.
    Sound(Size),
    /// Whole numbers fit, but padding would look the same.
    Doubtful(Size),
    /// No whole numbers fit.
    Off(Size, Misfit),
}

/// Why no whole numbers fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// b < 0.
    #[error("it shrinks as the batch grows")]
    Shrinks,
    /// b is no whole number.
    #[error("it grows by no whole number of bytes a sample")]
    NotWhole,
    /// a < 0.
    #[error("it grows faster than the batch")]
    NegativeConstant,
    /// A third probe is not on the line through the first two.
    #[error("a third probe is not on the line through the first two")]
    OffTheLine,
}

/// Fits the samples of one allocation, at least two in ascending order of their batch sizes.
pub fn fit(samples: &[Sample]) -> Option<Fit> {
    let (&[low, high], rest) = samples.split_first_chunk()?;
    // What does not fit is continued from where the samples are nearest to the sizes asked for.
    let stand_in = match samples {
        [.., low, high] => Size::Extrapolated { low: *low, high: *high },
        _ => return None,
    };
    let size = match solve(low, high) {
        Ok(size) => size,
        Err(misfit) => return Some(Fit::Off(stand_in, misfit)),
    };
    if rest.iter().any(|sample| size.at(sample.batch_size) != sample.bytes) {
        return Some(Fit::Off(stand_in, Misfit::OffTheLine));
    }
    let is_checked = !rest.is_empty();
    Some(if !is_checked && is_doubtful(size, low, high) { Fit::Doubtful(size) } else { Fit::Sound(size) })
}

/// The whole numbers a and b of two samples.
fn solve(low: Sample, high: Sample) -> Result<Size, Misfit> {
    let rise = high.bytes.checked_sub(low.bytes).ok_or(Misfit::Shrinks)?;
    let run = (high.batch_size.saturating_sub(low.batch_size) as u64).max(1);
    if !rise.is_multiple_of(run) {
        return Err(Misfit::NotWhole);
    }
    let per_sample = rise / run;
    let growing = per_sample.checked_mul(low.batch_size as u64).ok_or(Misfit::NegativeConstant)?;
    let constant = low.bytes.checked_sub(growing).ok_or(Misfit::NegativeConstant)?;
    Ok(Size::Affine { constant, per_sample })
}

fn is_doubtful(size: Size, low: Sample, high: Sample) -> bool {
    let Size::Affine { constant, per_sample } = size else { return true };
    if per_sample == 0 {
        return false;
    }
    let is_multiple = |padding| low.bytes.is_multiple_of(padding) && high.bytes.is_multiple_of(padding);
    if constant > 0 {
        return is_multiple(MIN_PADDING_BYTES);
    }
    let both_even = low.batch_size.is_multiple_of(2) && high.batch_size.is_multiple_of(2);
    both_even && is_multiple(MIN_PADDING_BYTES) && !per_sample.is_multiple_of(MAX_PADDING_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[(usize, u64)]) -> Vec<Sample> {
        values.iter().map(|&(batch_size, bytes)| Sample { batch_size, bytes }).collect()
    }

    fn fitted(values: &[(usize, u64)]) -> Fit {
        fit(&samples(values)).unwrap()
    }

    fn misfit(values: &[(usize, u64)]) -> Option<Misfit> {
        match fitted(values) {
            Fit::Off(_, misfit) => Some(misfit),
            _ => None,
        }
    }

    #[test]
    fn weights_and_activations_are_sound() {
        assert_eq!(fitted(&[(2, 4096), (3, 4096)]), Fit::Sound(Size::Affine { constant: 4096, per_sample: 0 }));
        assert_eq!(fitted(&[(2, 400), (3, 600)]), Fit::Sound(Size::Affine { constant: 0, per_sample: 200 }));
        assert_eq!(fitted(&[(2, 0), (3, 0)]), Fit::Sound(Size::Affine { constant: 0, per_sample: 0 }));
    }

    #[test]
    fn sizes_that_padding_could_have_made_are_doubtful() {
        // Rounded up to 64: 200 → 256, 300 → 320.
        assert!(matches!(fitted(&[(2, 256), (3, 320)]), Fit::Doubtful(_)));
        // 32 bytes a sample rounded up to 64 are proportional at even batches alone.
        assert!(matches!(fitted(&[(2, 64), (4, 128)]), Fit::Doubtful(_)));
        assert!(matches!(fitted(&[(2, 2048), (4, 4096)]), Fit::Sound(_)));
        // 3 + 4·B bytes are no multiple of any padding.
        assert!(matches!(fitted(&[(2, 11), (3, 15)]), Fit::Sound(_)));
    }

    #[test]
    fn a_third_probe_ends_doubt_either_way() {
        assert_eq!(misfit(&[(2, 256), (3, 320), (4, 448)]), Some(Misfit::OffTheLine));
        assert!(matches!(fitted(&[(2, 256), (3, 320), (4, 384)]), Fit::Sound(_)));
    }

    #[test]
    fn what_does_not_fit_says_why() {
        assert_eq!(misfit(&[(2, 512), (3, 256)]), Some(Misfit::Shrinks));
        assert_eq!(misfit(&[(2, 512), (4, 513)]), Some(Misfit::NotWhole));
        assert_eq!(misfit(&[(2, 4), (3, 9)]), Some(Misfit::NegativeConstant));
        assert_eq!(misfit(&[(2, 0), (3, u64::MAX)]), Some(Misfit::NegativeConstant));
        assert_eq!(fit(&samples(&[(2, 4)])), None);
    }

    #[test]
    fn sizes_never_overflow() {
        let huge = Size::Affine { constant: u64::MAX, per_sample: u64::MAX };
        assert_eq!(huge.at(usize::MAX), u64::MAX);
        let low = Sample { batch_size: 2, bytes: 0 };
        let steep = Size::Extrapolated { low, high: Sample { batch_size: 3, bytes: u64::MAX } };
        assert_eq!((steep.at(usize::MAX), steep.at(0)), (u64::MAX, 0));
    }

    #[test]
    fn a_stand_in_is_rounded_up_and_never_falls() {
        let size = |low, high| Size::Extrapolated {
            low: Sample { batch_size: 2, bytes: low },
            high: Sample { batch_size: 4, bytes: high },
        };
        assert_eq!([size(10, 13).at(4), size(10, 13).at(5), size(10, 13).at(3)], [13, 15, 12]);
        assert_eq!(size(10, 6).at(100), 10);
    }
}
