//! The points of a watch in bounded memory, and the falls and rises within them.

/// The most points that are kept; a watch may run for weeks.
const MOST_POINTS: usize = 4096;

/// One sample as the conclusions need it, or several where a watch was long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// When it ended.
    pub at_seconds: f64,
    /// In use then.
    pub used_bytes: u64,
    /// The least in use.
    pub low_bytes: u64,
    /// The most.
    pub high_bytes: u64,
    /// What the watched process holds, where that is known.
    pub watched_bytes: Option<u64>,
}

/// Points in the order of time, thinned evenly where there are too many.
#[derive(Clone, Debug, Default)]
pub(super) struct Series {
    points: Vec<Point>,
    /// Samples that one point stands for.
    stride: u32,
    /// Samples that the last point stands for so far.
    filled: u32,
}

impl Series {
    /// Adds a point; `false` where its time is not after that of the last one.
    pub(super) fn push(&mut self, point: Point) -> bool {
        self.stride = self.stride.max(1);
        let last = self.points.last_mut();
        if last.as_ref().is_some_and(|last| point.at_seconds <= last.at_seconds) || !point.at_seconds.is_finite() {
            return false;
        }
        match last {
            Some(last) if self.filled < self.stride => {
                *last = joined(*last, point);
                self.filled += 1;
            }
            _ => {
                self.points.push(point);
                self.filled = 1;
            }
        }
        if self.points.len() >= MOST_POINTS && self.filled == self.stride {
            self.thin();
        }
        true
    }

    fn thin(&mut self) {
        self.points = self.points.chunks(2).filter_map(|pair| pair.iter().copied().reduce(joined)).collect();
        self.stride = self.stride.saturating_mul(2);
        self.filled = self.stride;
    }

    pub(super) fn points(&self) -> &[Point] {
        &self.points
    }
}

/// Two neighbours as one: the later state, and the extremes of both.
fn joined(first: Point, second: Point) -> Point {
    Point {
        low_bytes: first.low_bytes.min(second.low_bytes),
        high_bytes: first.high_bytes.max(second.high_bytes),
        watched_bytes: second.watched_bytes.or(first.watched_bytes),
        ..second
    }
}

/// A way from one turning point of the memory in use to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leg {
    pub(super) from_bytes: u64,
    pub(super) to_bytes: u64,
}

impl Leg {
    pub(super) fn falls(self) -> bool {
        self.to_bytes < self.from_bytes
    }

    fn of_at_least(self, least_bytes: u64) -> Option<Self> {
        (self.from_bytes.abs_diff(self.to_bytes) >= least_bytes).then_some(self)
    }

    pub(super) fn bottom_bytes(self) -> u64 {
        self.from_bytes.min(self.to_bytes)
    }

    pub(super) fn top_bytes(self) -> u64 {
        self.from_bytes.max(self.to_bytes)
    }
}

/// The legs of at least `least_bytes`, smaller ones being noise. What happened across a hole in the points, where nobody
/// looked, is no leg.
pub(super) fn legs(points: &[Point], least_bytes: u64) -> Vec<Leg> {
    let hole_seconds = hole_seconds(points);
    let mut legs = Vec::new();
    let mut walk = Walk::default();
    let mut before: Option<f64> = None;
    for point in points {
        if before.is_some_and(|before| point.at_seconds - before > hole_seconds) {
            legs.extend(walk.end(least_bytes));
            walk = Walk::default();
        }
        before = Some(point.at_seconds);
        // In which order the extremes came is not known: the nearer to the interval's end is taken to be the later.
        let low_was_last = point.used_bytes.abs_diff(point.low_bytes) < point.used_bytes.abs_diff(point.high_bytes);
        let [first, second] =
            if low_was_last { [point.high_bytes, point.low_bytes] } else { [point.low_bytes, point.high_bytes] };
        for bytes in [first, second, point.used_bytes] {
            legs.extend(walk.step(bytes, least_bytes));
        }
    }
    legs.extend(walk.end(least_bytes));
    legs
}

/// More than ten times the usual distance of two points is a hole.
fn hole_seconds(points: &[Point]) -> f64 {
    let distances = points.iter().zip(points.iter().skip(1)).map(|(a, b)| b.at_seconds - a.at_seconds);
    10.0 * crate::trial::statistics::median(distances).unwrap_or(f64::INFINITY)
}

/// Follows a value and its turning points.
#[derive(Clone, Copy, Debug, Default)]
struct Walk {
    /// Where the current leg began, and the farthest it has come.
    leg: Option<(u64, u64)>,
}

impl Walk {
    /// Takes the next value; the leg that it ends, if any.
    fn step(&mut self, bytes: u64, least_bytes: u64) -> Option<Leg> {
        let Some((from_bytes, to_bytes)) = self.leg else {
            self.leg = Some((bytes, bytes));
            return None;
        };
        let leg = Leg { from_bytes, to_bytes };
        let goes_on = if leg.falls() { bytes <= to_bytes } else { bytes >= to_bytes };
        if goes_on {
            self.leg = Some((from_bytes, bytes));
            return None;
        }
        if bytes.abs_diff(to_bytes) < least_bytes {
            return None;
        }
        self.leg = Some((to_bytes, bytes));
        leg.of_at_least(least_bytes)
    }

    fn end(&self, least_bytes: u64) -> Option<Leg> {
        let (from_bytes, to_bytes) = self.leg?;
        Leg { from_bytes, to_bytes }.of_at_least(least_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(at_seconds: f64, used_bytes: u64) -> Point {
        Point { at_seconds, used_bytes, low_bytes: used_bytes, high_bytes: used_bytes, watched_bytes: None }
    }

    fn points(values: &[u64]) -> Vec<Point> {
        values.iter().enumerate().map(|(index, value)| point(index as f64, *value)).collect()
    }

    fn ends(legs: &[Leg]) -> Vec<(u64, u64)> {
        legs.iter().map(|leg| (leg.from_bytes, leg.to_bytes)).collect()
    }

    #[test]
    fn legs_go_from_turn_to_turn_and_noise_is_none() {
        let seen = legs(&points(&[0, 50, 49, 100, 40, 41, 40, 90]), 10);
        assert_eq!(ends(&seen), [(0, 100), (100, 40), (40, 90)]);
        assert_eq!(legs(&points(&[50, 55, 50, 55]), 10), []);
        assert_eq!(legs(&[], 10), []);
    }

    #[test]
    fn a_fall_within_one_interval_counts() {
        let mut within = points(&[100, 100, 100]);
        within[1].low_bytes = 20;
        assert_eq!(ends(&legs(&within, 10)), [(100, 20), (20, 100)]);
    }

    #[test]
    fn what_happened_while_nobody_looked_is_no_leg() {
        let mut holed = points(&[100, 100, 100, 10, 10]);
        for (late, point) in holed[3..].iter_mut().enumerate() {
            point.at_seconds = 500.0 + late as f64;
        }
        assert_eq!(legs(&holed, 10), []);
    }

    #[test]
    fn weeks_fit_and_keep_their_extremes() {
        let mut series = Series::default();
        for second in 0..100_000_u32 {
            let used = if second == 50_001 { 7 } else { 100 };
            assert!(series.push(point(f64::from(second), used)));
        }
        let kept = series.points();
        assert!((MOST_POINTS / 4..=MOST_POINTS).contains(&kept.len()), "{}", kept.len());
        assert_eq!(kept.iter().map(|point| point.low_bytes).min(), Some(7));
        assert!(kept.windows(2).all(|pair| pair[0].at_seconds < pair[1].at_seconds));
        assert!((kept.last().unwrap().at_seconds - 99_999.0).abs() < 1e-9);
    }

    #[test]
    fn time_that_does_not_go_on_is_refused() {
        let mut series = Series::default();
        assert!(series.push(point(5.0, 1)));
        for at in [5.0, 4.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(!series.push(point(at, 1)), "{at}");
        }
        assert_eq!(series.points().len(), 1);
    }
}
