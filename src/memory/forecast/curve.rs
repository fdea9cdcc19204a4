//! A forecast of many batch sizes as a journal keeps it: peaks alone, a few points, one allocator.

use serde::{Deserialize, Serialize};

use super::Method;

/// The most points of a curve.
pub const MOST_POINTS: usize = 16;

/// Peaks by batch size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// How it was made.
    pub method: Method,
    /// Why so.
    pub reason: String,
    /// C.
    pub limit_bytes: u64,
    /// Micro-batches per optimizer step in the forecast run.
    pub accumulation_steps: usize,
    /// In ascending order of batch size.
    pub points: Vec<CurvePoint>,
}

/// One batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Samples in a micro-batch.
    pub batch_size: usize,
    /// The highest A.
    pub peak_allocated_bytes: u64,
    /// The highest V.
    pub peak_reserved_bytes: u64,
    /// Whether every request is met under C.
    pub fits: bool,
}

/// At most [`MOST_POINTS`] batch sizes from `least` to `largest`, the ends among them.
pub fn batch_sizes(least: usize, largest: usize) -> Vec<usize> {
    let range = largest.saturating_sub(least);
    let steps = range.clamp(1, MOST_POINTS - 1);
    let mut sizes: Vec<usize> =
        (0..=steps).map(|step| least.saturating_add(range / steps * step + range % steps * step / steps)).collect();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_few_and_reach_both_ends() {
        assert_eq!(batch_sizes(2, 2), [2]);
        assert_eq!(batch_sizes(2, 5), [2, 3, 4, 5]);
        let sizes = batch_sizes(2, 1000);
        assert_eq!((sizes.len(), sizes.first(), sizes.last()), (MOST_POINTS, Some(&2), Some(&1000)));
        assert_eq!(batch_sizes(9, 2), [9]);
        assert_eq!(batch_sizes(2, usize::MAX).last(), Some(&usize::MAX));
    }
}
