//! A line through points that outliers cannot tilt, with an interval for its slope: pure functions.
//!
//! The slope is the median of the slopes between all pairs of points (Theil, "A rank-invariant method of linear and
//! polynomial regression analysis", 1950; Sen, "Estimates of the regression coefficient based on Kendall's tau",
//! Journal of the American Statistical Association 63, 1968). It stands as long as less than 29 % of the points are
//! wrong, and needs no distribution.
//!
//! The interval lies between two of the ordered slopes. How far they are from the middle comes from the variance of
//! Kendall's S, the number of pairs that rise less the number that fall, when there is no trend (Sen 1968, §6). With
//! n points, ties of t equal values and ties of u equal places (Kendall, "Rank correlation methods", 4th ed., 1975,
//! ch. 4):
//!
//! ```text
//! var S = [n(n−1)(2n+5) − Σ t(t−1)(2t+5) − Σ u(u−1)(2u+5)] / 18
//!       + Σ t(t−1)(t−2) · Σ u(u−1)(u−2) / [9 n(n−1)(n−2)]
//!       + Σ t(t−1) · Σ u(u−1) / [2 n(n−1)]
//! ```
//!
//! The normal approximation of S holds from about ten points on. Ranks are rounded outwards, so that the interval is
//! rather too wide. It supposes that the scatter about the line is independent from point to point: a series that
//! stays where it once jumped to has a narrower interval than it deserves. One jump alone never reads as a trend, as the
//! pairs on either side of it are all flat.

use super::{NORMAL_DEVIATIONS, SampleSet};

/// Longer series are thinned evenly to at most this many points: pairs grow with the square.
const MOST_POINTS: usize = 512;

/// A line fitted by Theil and Sen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// The median of the slopes between all pairs of points.
    pub slope: f64,
    /// The median of what the slope leaves: the line's value at 0.
    pub intercept: f64,
    /// The 95 % confidence interval of the slope; `None` where there are too few points for one.
    pub slope_interval: Option<(f64, f64)>,
}

impl Trend {
    /// The line through `points`, pairs of place and value in any order. Points that are not finite are left out.
    /// `None` where fewer than two places differ.
    pub fn of(points: &[(f64, f64)]) -> Option<Self> {
        let finite = points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite());
        let stride = points.len().div_ceil(MOST_POINTS).max(1);
        let points: Vec<(f64, f64)> = finite.step_by(stride).collect();
        let slopes = pair_slopes(&points);
        let slope = slopes.median()?;
        let intercept = super::median(points.iter().map(|(x, y)| y - slope * x))?;
        let slope_interval = interval(&slopes, kendall_variance(&points), NORMAL_DEVIATIONS);
        Some(Self { slope, intercept, slope_interval })
    }

    /// The line's value at `place`.
    pub fn at(&self, place: f64) -> f64 {
        self.intercept + self.slope * place
    }

    /// Where the line has `value`; `None` where it is level.
    pub fn reaches(&self, value: f64) -> Option<f64> {
        Some((value - self.intercept) / self.slope).filter(|place| place.is_finite())
    }
}

/// The slopes between all pairs of points. Two points at one place have none that is finite, and the set leaves it out.
fn pair_slopes(points: &[(f64, f64)]) -> SampleSet {
    let pairs = points.iter().enumerate().flat_map(|(index, first)| {
        points.iter().skip(index + 1).map(move |second| (second.1 - first.1) / (second.0 - first.0))
    });
    SampleSet::new(pairs)
}

/// The ordered slopes that enclose the true one with the chance that `deviations` standard errors stand for.
fn interval(slopes: &SampleSet, variance: f64, deviations: f64) -> Option<(f64, f64)> {
    let outside = (slopes.len() as f64 - deviations * variance.sqrt()) / 2.0;
    // Ranks from 1: the M-th smallest and the M-th largest. With fewer than one outside, no pair of slopes will do.
    let rank = (outside.floor().max(0.0) as usize).checked_sub(1)?;
    slopes.at_rank(rank).zip(slopes.at_rank(slopes.len().checked_sub(rank + 1)?))
}

/// The variance of Kendall's S where there is no trend.
fn kendall_variance(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let values = Ties::of(points.iter().map(|point| point.1));
    let places = Ties::of(points.iter().map(|point| point.0));
    let untied = n * (n - 1.0) * (2.0 * n + 5.0);
    let mut variance = (untied - values.weighted - places.weighted) / 18.0;
    if n > 2.0 {
        variance += values.triples * places.triples / (9.0 * n * (n - 1.0) * (n - 2.0));
    }
    if n > 1.0 {
        variance += values.pairs * places.pairs / (2.0 * n * (n - 1.0));
    }
    variance.max(0.0)
}

/// Sums over the groups of equal numbers, t the size of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Ties {
    /// Σ t(t−1).
    pairs: f64,
    /// Σ t(t−1)(t−2).
    triples: f64,
    /// Σ t(t−1)(2t+5).
    weighted: f64,
}

impl Ties {
    fn of(numbers: impl Iterator<Item = f64>) -> Self {
        // Adding 0 makes one number of the two zeros.
        let mut sorted: Vec<f64> = numbers.map(|number| number + 0.0).collect();
        sorted.sort_by(f64::total_cmp);
        sorted.chunk_by(|a, b| a.total_cmp(b).is_eq()).fold(Self::default(), |sums, group| {
            let t = group.len() as f64;
            let pairs = t * (t - 1.0);
            Self {
                pairs: sums.pairs + pairs,
                triples: sums.triples + pairs * (t - 2.0),
                weighted: sums.weighted + pairs * (2.0 * t + 5.0),
            }
        })
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the expected values are exact")]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    /// The values at places 0, 2, 4 and so on.
    fn series(values: impl IntoIterator<Item = f64>) -> Vec<(f64, f64)> {
        values.into_iter().enumerate().map(|(index, value)| (2.0 * index as f64, value)).collect()
    }

    #[test]
    fn sen_s_own_example_gives_sen_s_own_slope_and_its_corrected_interval() {
        // Sen 1968, §6. The paper's interval has a slip in its list of slopes; (26/7, 35/8) is the 93 % interval that R's
        // `deming::theilsen` and SciPy's `mstats.theilslopes` agree on.
        let places = [1.0, 2.0, 3.0, 4.0, 10.0, 12.0, 18.0];
        let points: Vec<(f64, f64)> = places.into_iter().zip([9.0, 15.0, 19.0, 20.0, 45.0, 55.0, 78.0]).collect();
        let trend = Trend::of(&points).unwrap();
        assert_eq!((trend.slope, trend.intercept), (4.0, 6.0));
        assert_eq!(trend.reaches(26.0), Some(5.0));
        let at_93_percent = interval(&pair_slopes(&points), kendall_variance(&points), 1.811_911);
        assert_eq!(at_93_percent, Some((26.0 / 7.0, 35.0 / 8.0)));
    }

    #[test]
    fn the_variance_without_ties_and_with_ties_on_both_sides_is_kendall_s() {
        let rising = series((0..7).map(f64::from));
        assert!((kendall_variance(&rising) - 7.0 * 6.0 * 19.0 / 18.0).abs() < 1e-12);
        // By hand: n = 4, values tied 2 and 2, places tied 3: (156 − 36 − 66)/18 + 0·6/216 + 4·6/24 = 4.
        let tied = [(1.0, 5.0), (1.0, 5.0), (1.0, 6.0), (2.0, 6.0)];
        assert!((kendall_variance(&tied) - 4.0).abs() < 1e-12);
    }

    #[test]
    fn a_constant_series_has_slope_0_for_certain() {
        let trend = Trend::of(&series([7e10; 13])).unwrap();
        assert_eq!((trend.slope, trend.intercept, trend.slope_interval), (0.0, 7e10, Some((0.0, 0.0))));
        assert_eq!(trend.reaches(8e10), None);
    }

    #[test]
    fn one_jump_is_no_trend_wherever_it_comes() {
        for jump in 0..=13 {
            let trend = Trend::of(&series((0..13).map(|index| if index < jump { 100.0 } else { 120.0 }))).unwrap();
            assert!(trend.slope_interval.unwrap().0 <= 0.0, "a jump before point {jump}");
        }
    }

    #[test]
    fn a_staircase_of_three_steps_is_a_trend() {
        let trend = Trend::of(&series((0..13).map(|index| 100.0 + f64::from(index / 4) * 20.0))).unwrap();
        assert!(trend.slope > 0.0 && trend.slope_interval.unwrap().0 > 0.0);
    }

    #[test]
    fn a_quarter_of_wild_points_does_not_tilt_the_line() {
        let wild = |index: u32| if index.is_multiple_of(4) { 1e9 } else { 100.0 + 3.0 * f64::from(index) };
        let trend = Trend::of(&series((0..40).map(wild))).unwrap();
        assert!((trend.slope - 1.5).abs() < 0.5, "{trend:?}");
    }

    #[test]
    fn too_few_points_have_no_interval_and_one_place_no_line() {
        assert_eq!(Trend::of(&[]), None);
        assert_eq!(Trend::of(&[(1.0, 2.0)]), None);
        assert_eq!(Trend::of(&[(1.0, 2.0), (1.0, 3.0)]), None);
        assert_eq!(Trend::of(&[(0.0, f64::NAN), (1.0, f64::INFINITY)]), None);
        let two = Trend::of(&[(0.0, 1.0), (2.0, 5.0)]).unwrap();
        assert_eq!((two.slope, two.intercept, two.slope_interval), (2.0, 1.0, None));
    }

    #[test]
    fn a_long_series_is_thinned_to_its_own_line() {
        let trend = Trend::of(&series((0..100_000).map(f64::from))).unwrap();
        assert_eq!((trend.slope, trend.intercept), (0.5, 0.0));
    }

    #[test]
    fn noise_without_a_trend_is_hardly_ever_taken_for_growth() {
        let mut random = StdRng::seed_from_u64(5);
        let trials = 1_000;
        let alarms = (0..trials)
            .filter(|_| {
                let trend = Trend::of(&series((0..13).map(|_| random.random_range(0.0..1.0)))).unwrap();
                trend.slope_interval.unwrap().0 > 0.0
            })
            .count();
        // One side of a 95 % interval: 2.5 % are due.
        assert!((5..=35).contains(&alarms), "{alarms} of {trials}");
    }

    proptest! {
        #[test]
        fn a_shift_and_a_stretch_carry_through(
            values in prop::collection::vec(0..1_u64 << 40, 2..40), shift in 0..1_u64 << 40, power in 0..8_i32,
        ) {
            let factor = 2.0_f64.powi(power);
            let plain = Trend::of(&series(values.iter().map(|value| *value as f64))).unwrap();
            let shifted = Trend::of(&series(values.iter().map(|value| (value + shift) as f64))).unwrap();
            let stretched = Trend::of(&series(values.iter().map(|value| *value as f64 * factor))).unwrap();
            prop_assert_eq!((shifted.slope, shifted.slope_interval), (plain.slope, plain.slope_interval));
            prop_assert_eq!(stretched.slope, plain.slope * factor);
            let both = plain.slope_interval.map(|(low, high)| (low * factor, high * factor));
            prop_assert_eq!(stretched.slope_interval, both);
        }

        #[test]
        fn a_series_turned_upside_down_falls_as_it_rose(values in prop::collection::vec(0..1_u64 << 40, 6..40)) {
            let rising = Trend::of(&series(values.iter().map(|value| *value as f64))).unwrap();
            let falling = Trend::of(&series(values.iter().map(|value| -(*value as f64)))).unwrap();
            let (low, high) = rising.slope_interval.unwrap();
            prop_assert_eq!(falling.slope_interval, Some((-high, -low)));
            // Between two middle slopes the median is rounded, from below either way.
            prop_assert!((falling.slope + rising.slope).abs() <= 1e-12 * rising.slope.abs());
            prop_assert!(low <= rising.slope && rising.slope <= high);
        }

        #[test]
        fn the_order_of_the_points_does_not_matter(values in prop::collection::vec(0..1_u64 << 40, 2..40)) {
            let points = series(values.iter().map(|value| *value as f64));
            let backwards: Vec<(f64, f64)> = points.iter().rev().copied().collect();
            prop_assert_eq!(Trend::of(&points), Trend::of(&backwards));
        }

        #[test]
        fn a_line_is_found_again_and_small_noise_stays_small(
            slope in -1_000_000..1_000_000_i32, noise in prop::collection::vec(-1.0..1.0_f64, 6..40),
        ) {
            let slope = f64::from(slope);
            let clean = Trend::of(&series((0..noise.len()).map(|index| 5.0 + slope * 2.0 * index as f64))).unwrap();
            prop_assert_eq!((clean.slope, clean.intercept), (slope, 5.0));
            let noisy = noise.iter().enumerate().map(|(index, noise)| 5.0 + slope * 2.0 * index as f64 + noise);
            prop_assert!((Trend::of(&series(noisy)).unwrap().slope - slope).abs() <= 1.0);
        }

        #[test]
        fn whatever_the_points_the_figures_are_finite(
            points in prop::collection::vec((any::<f64>(), any::<f64>()), 0..30),
        ) {
            if let Some(trend) = Trend::of(&points) {
                prop_assert!(trend.slope.is_finite() && trend.intercept.is_finite());
                prop_assert!(trend.slope_interval.is_none_or(|(low, high)| low.is_finite() && high.is_finite()));
            }
        }
    }
}
