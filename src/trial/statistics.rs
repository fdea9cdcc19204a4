//! Statistics that say when they may be believed: pure functions over series of measured values.
//!
//! Step times on a shared machine are skewed (a preempted step is late, none is early), so the figures here are
//! medians and order statistics, which a few outliers cannot move, and never assume a normal distribution.
//!
//! - [`quantile`]: linear between order statistics (type 7 of Hyndman and Fan, "Sample quantiles in statistical
//!   packages", The American Statistician 50(4), 1996).
//! - [`SampleSet::median_interval`]: distribution-free, from two order statistics whose ranks come from the binomial
//!   distribution (David and Nagaraja, "Order Statistics", 3rd ed., 2003, §7.1). The number of values below the true
//!   median is binomial(n, 1/2) whatever the distribution is.
//! - [`SampleSet::trust`]: whether the median may be believed, and if not, why.
//! - [`theil_sen`]: a line through a series, with an interval for its slope.

use serde::{Deserialize, Serialize};

pub mod theil_sen;

/// The chance with which an interval covers what it estimates.
pub const CONFIDENCE: f64 = 0.95;
/// The number of standard errors that [`CONFIDENCE`] stands for in a normal distribution.
const NORMAL_DEVIATIONS: f64 = 1.959_964;
/// Below this count no pair of order statistics covers the median with 95 % chance: 1 − 2·(1/2)^5 is 93.75 %.
pub const FEWEST_SAMPLES: usize = 6;
/// Up to this count the binomial ranks are computed exactly; beyond, (1/2)^n leaves the range of `f64`.
const EXACT_RANKS_UP_TO: usize = 1_000;
/// An interval whose half width is under this share of the median tells sizes apart that differ by a rung.
const WIDE_SHARE: f64 = 0.05;
/// Medians of the two halves that differ by more than this are a trend: caches fill, clocks fall, a loader starves.
const DRIFT_SHARE: f64 = 0.05;

/// The value below which the share `fraction` of `sorted` lies; `None` when it is empty.
pub fn quantile(sorted: &[f64], fraction: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = fraction.clamp(0.0, 1.0) * last as f64;
    let below = position.floor() as usize;
    let lower = *sorted.get(below)?;
    let upper = sorted.get(below + 1).copied().unwrap_or(lower);
    Some(lower + (upper - lower) * (position - below as f64))
}

/// The median of values in any order; `None` when there is none.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    SampleSet::new(values).median()
}

/// The arithmetic mean; `None` when there is no value.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Half of the 95 % confidence interval of the mean, by its standard error; 0 for fewer than two values.
///
/// For waits and other bursty figures whose mean is what counts. Bursts that follow one another make the true interval
/// wider than this.
pub fn mean_half_width(values: &[f64]) -> f64 {
    let (Some(mean), true) = (mean(values), values.len() > 1) else { return 0.0 };
    let count = values.len() as f64;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    NORMAL_DEVIATIONS * (variance / count).sqrt()
}

/// Whether a median may be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// Fewer than [`FEWEST_SAMPLES`] values: there is no 95 % interval.
    TooFew,
    /// The second half of the series differs from the first: it had not settled.
    Drifting,
    /// The interval is wide against the median.
    Wide,
    /// None of these.
    Reliable,
}

/// A series of values that knows how far its median can be trusted. Values that are not finite are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleSet {
    in_order: Vec<f64>,
    sorted: Vec<f64>,
}

impl SampleSet {
    /// The set of a series, in the order in which it was measured.
    pub fn new(values: impl IntoIterator<Item = f64>) -> Self {
        let in_order: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        let mut sorted = in_order.clone();
        sorted.sort_by(f64::total_cmp);
        Self { in_order, sorted }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// The median.
    pub fn median(&self) -> Option<f64> {
        self.quantile(0.5)
    }

    /// The value below which the share `fraction` lies.
    pub fn quantile(&self, fraction: f64) -> Option<f64> {
        quantile(&self.sorted, fraction)
    }

    /// The value with `rank` others below it, from 0.
    pub fn at_rank(&self, rank: usize) -> Option<f64> {
        self.sorted.get(rank).copied()
    }

    /// The 95 % confidence interval of the median. With fewer than [`FEWEST_SAMPLES`] values it is the whole range,
    /// which covers the median with a chance of 1 − 2^(1−n) only.
    pub fn median_interval(&self) -> Option<(f64, f64)> {
        let rank = median_rank(self.len());
        let last = self.len().checked_sub(1)?;
        Some((*self.sorted.get(rank)?, *self.sorted.get(last - rank)?))
    }

    /// Whether the median may be believed.
    pub fn trust(&self) -> Trust {
        let (Some(median), Some((low, high))) = (self.median(), self.median_interval()) else { return Trust::TooFew };
        if self.len() < FEWEST_SAMPLES {
            return Trust::TooFew;
        }
        if self.drifts(median) {
            Trust::Drifting
        } else if (high - low) / 2.0 > WIDE_SHARE * median.abs() {
            Trust::Wide
        } else {
            Trust::Reliable
        }
    }

    /// Whether the two halves of the series disagree: medians apart by more than [`DRIFT_SHARE`], and intervals that do
    /// not even touch, so that noise alone is not taken for a trend.
    fn drifts(&self, median: f64) -> bool {
        let (first, second) = self.in_order.split_at(self.len() / 2);
        let (first, second) = (Self::new(first.iter().copied()), Self::new(second.iter().copied()));
        let medians = first.median().zip(second.median());
        let intervals = first.median_interval().zip(second.median_interval());
        medians.is_some_and(|(a, b)| (a - b).abs() > DRIFT_SHARE * median.abs())
            && intervals.is_some_and(|(a, b)| a.1 < b.0 || b.1 < a.0)
    }
}

/// The largest rank r (from 0) for which the r-th smallest and the r-th largest of `count` values enclose the median
/// with 95 % chance or more; 0 where there is none.
fn median_rank(count: usize) -> usize {
    let tail = (1.0 - CONFIDENCE) / 2.0;
    if count > EXACT_RANKS_UP_TO {
        // The normal approximation of the same binomial, with its continuity correction; off by at most one rank.
        let half = count as f64 / 2.0;
        return (half - 0.5 - NORMAL_DEVIATIONS * half.sqrt() / std::f64::consts::SQRT_2).floor().max(0.0) as usize;
    }
    // The r-th smallest (from 0) is above the median when at most r values are below it: P(binomial(n, 1/2) ≤ r).
    let mut probability = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut cumulative = probability;
    let mut rank = 0;
    loop {
        probability *= count.saturating_sub(rank) as f64 / (rank + 1) as f64;
        cumulative += probability;
        if cumulative > tail || rank >= count {
            break;
        }
        rank += 1;
    }
    rank.min(count.saturating_sub(1) / 2)
}

/// `value` with at most 12 significant decimal digits.
///
/// Measured figures pass through JSON on their way (worker, journal), and `serde_json` reads a number of up to 15
/// digits back exactly, longer ones only to the last bit. Twelve digits are more than any clock has, and with them a
/// record that was read back equals the one that was written, so that a resumed search decides as the first one did.
pub fn round_for_json(value: f64) -> f64 {
    if !value.is_finite() {
        return value;
    }
    // Decimal exponents beyond −22 are not exact either, so what is below 1e-9 keeps 20 decimals.
    let text = if value.abs() < 1e-9 { format!("{value:.20}") } else { format!("{value:.11e}") };
    text.parse().unwrap_or(value)
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the expected values are exact")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_lie_between_order_statistics() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[3.0], 0.95), Some(3.0));
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.5), Some(2.5));
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 1.0), Some(5.0));
        assert_eq!(median([5.0, 1.0, f64::NAN, 3.0]), Some(3.0));
    }

    #[test]
    fn the_ranks_of_the_median_interval_are_those_of_published_tables() {
        // Conover, "Practical Nonparametric Statistics": ranks from 1 are 1 (n=6), 2 (n=9), 2 (n=10), 6 (n=20),
        // 18 (n=50) and 40 (n=100).
        for (count, rank) in [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (10, 1), (20, 5), (50, 17), (100, 39)] {
            assert_eq!(median_rank(count), rank, "of {count} values");
        }
    }

    #[test]
    fn exact_and_approximate_ranks_agree_where_they_meet() {
        let exact = median_rank(EXACT_RANKS_UP_TO);
        let approximate = median_rank(EXACT_RANKS_UP_TO + 1);
        assert!(exact.abs_diff(approximate) <= 1, "{exact} and {approximate}");
    }

    #[test]
    fn an_outlier_moves_neither_the_median_nor_its_interval() {
        let calm: Vec<f64> = (0..20).map(|i| 100.0 + f64::from(i % 5)).collect();
        let mut disturbed = calm.clone();
        disturbed[7] = 10_000.0;
        let (calm, disturbed) = (SampleSet::new(calm), SampleSet::new(disturbed));
        assert_eq!(calm.median(), disturbed.median());
        assert!(disturbed.median_interval().unwrap().1 < 105.0);
        assert_eq!(disturbed.trust(), Trust::Reliable);
    }

    #[test]
    fn a_set_says_why_it_may_not_be_believed() {
        assert_eq!(SampleSet::new([1.0; 5]).trust(), Trust::TooFew);
        assert_eq!(SampleSet::new([1.0; 6]).trust(), Trust::Reliable);
        assert_eq!(SampleSet::new((0..20).map(|i| if i < 10 { 1.0 } else { 1.2 })).trust(), Trust::Drifting);
        assert_eq!(SampleSet::new((0..20).map(|i| f64::from(1 + i % 4))).trust(), Trust::Wide);
        assert_eq!(SampleSet::default().trust(), Trust::TooFew);
    }

    #[test]
    fn the_mean_of_equal_waits_is_certain() {
        assert_eq!(mean_half_width(&[2.0; 9]), 0.0);
        assert_eq!(mean_half_width(&[2.0]), 0.0);
        assert!((mean_half_width(&[1.0, 3.0]) - NORMAL_DEVIATIONS).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn rounded_values_survive_json_to_the_last_bit(digits in -1.0..1.0_f64, exponent in -25..25_i32) {
            let value = digits * 10.0_f64.powi(exponent);
            let rounded = round_for_json(value);
            if value.abs() < 1e30 {
                let text = serde_json::to_string(&rounded).unwrap();
                let back: f64 = serde_json::from_str(&text).unwrap();
                prop_assert_eq!(back.to_bits(), rounded.to_bits());
                prop_assert!((rounded - value).abs() <= 1e-11 * value.abs().max(1e-9));
            }
        }

        #[test]
        fn an_interval_encloses_its_median(values in prop::collection::vec(0.0..1e6_f64, 1..200)) {
            let set = SampleSet::new(values);
            let (low, high) = set.median_interval().unwrap();
            let median = set.median().unwrap();
            prop_assert!(low <= median && median <= high);
        }
    }
}
