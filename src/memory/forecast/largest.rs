//! The largest batch size that fits.
//!
//! Fitting is not monotonic in the batch: another batch packs differently, and 41 samples may fit where 40 do not. So
//! a plain bisection could end anywhere. What *is* monotonic is the most bytes asked for at once (all `a, b ≥ 0`),
//! which no allocator can do with less of. It gives a bound above which nothing fits, for the price of a pass without
//! an allocator. From there the sizes are tried downwards: most allocators waste little, so the answer lies within a
//! few of the bound and is then certain. Only where sizes are many is the rest bisected between a size that fits and
//! one that does not, and the neighbours above the answer are tried until [`NEIGHBOURS`] in a row fail. Such an answer
//! fits for certain; that nothing between it and the bound fits is then likely, not proved.

use super::run::MIN_BATCH_SIZE;

/// No larger batch is looked for.
pub const MAX_BATCH_SIZE: usize = 1 << 20;
/// Sizes tried one by one below the bound.
const NEAR_THE_BOUND: usize = 16;
/// Sizes above a bisected answer that must fail.
const NEIGHBOURS: usize = 4;

/// The questions the search asks.
pub(super) trait Sizes {
    /// Whether the bytes asked for alone stay under the limit; if not, neither does any larger batch.
    fn may_fit(&self, batch_size: usize) -> bool;
    /// Whether the run fits.
    fn fits(&self, batch_size: usize) -> bool;
}

/// The largest batch size that fits, from 2 up.
pub(super) fn largest_batch_size(sizes: &dyn Sizes) -> Option<usize> {
    let bound = last_true(MIN_BATCH_SIZE, MAX_BATCH_SIZE, |batch_size| sizes.may_fit(batch_size))?;
    let near = bound.saturating_sub(NEAR_THE_BOUND).max(MIN_BATCH_SIZE - 1);
    if let Some(found) = (near + 1..=bound).rev().find(|batch_size| sizes.fits(*batch_size)) {
        return Some(found);
    }
    let mut found = last_true(MIN_BATCH_SIZE, near, |batch_size| sizes.fits(batch_size))?;
    while let Some(above) = (found + 1..=(found + NEIGHBOURS).min(near)).rev().find(|size| sizes.fits(*size)) {
        found = above;
    }
    Some(found)
}

/// A number for which `holds`, and whose successor (if it is in the range) does not: the only one where `holds` is
/// monotonic. `None` if it does not hold for `low`.
fn last_true(low: usize, high: usize, holds: impl Fn(usize) -> bool) -> Option<usize> {
    if low > high || !holds(low) {
        return None;
    }
    if holds(high) {
        return Some(high);
    }
    let (mut good, mut bad) = (low, high);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if holds(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Some(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fits up to `largest`, but for the `holes`; the bytes alone fit up to `bound`.
    struct Made {
        bound: usize,
        largest: usize,
        holes: Vec<usize>,
    }

    impl Sizes for Made {
        fn may_fit(&self, batch_size: usize) -> bool {
            batch_size <= self.bound
        }
        fn fits(&self, batch_size: usize) -> bool {
            batch_size <= self.largest && !self.holes.contains(&batch_size)
        }
    }

    fn found(bound: usize, largest: usize, holes: &[usize]) -> Option<usize> {
        largest_batch_size(&Made { bound, largest, holes: holes.to_vec() })
    }

    #[test]
    fn the_largest_size_is_found_wherever_it_is() {
        for largest in [2, 3, 40, 44, 999, 1000] {
            assert_eq!(found(1000, largest, &[]), Some(largest));
        }
        assert_eq!(found(MAX_BATCH_SIZE + 5, usize::MAX, &[]), Some(MAX_BATCH_SIZE));
    }

    #[test]
    fn a_hole_near_the_bound_does_not_hide_the_answer() {
        assert_eq!(found(46, 44, &[40, 41, 42, 43]), Some(44));
        assert_eq!(found(10, 10, &[3, 4, 5, 6, 7, 8, 9]), Some(10));
    }

    #[test]
    fn a_hole_below_a_bisected_answer_is_stepped_over() {
        for hole in 300..499 {
            assert_eq!(found(1000, 500, &[hole, hole + 1]), Some(500), "{hole}");
        }
    }

    #[test]
    fn nothing_is_found_where_two_do_not_fit() {
        assert_eq!(found(1, 1, &[]), None);
        assert_eq!(found(1000, 1, &[]), None);
        assert_eq!(found(2, 2, &[]), Some(2));
    }
}
