//! The series of a long run: a bounded number of points, and where its rates rose to new heights.

use serde::{Deserialize, Serialize};

use super::rates;
use crate::memory::fragmentation::{Rates, peak_rate};
use crate::memory::policy::PoolState;
use crate::memory::spec::FragmentationMetric;
use crate::units::MIB;

/// The most points of a series.
pub const MAX_POINTS: usize = 1024;

/// The finest rise of a rate that is kept apart from the one before it.
const HEIGHTS_A_WHOLE: f64 = 1000.0;

/// Where the bytes behind a rate are under this share of the limit they do not gate, as in the rule `fragmentation`.
const NEGLIGIBLE_DIVISOR: f64 = 100.0;
/// What does not gate where there is no limit.
const NEGLIGIBLE_BYTES: u64 = 64 * MIB;

/// The figures of some steps in a row: the worst of each.
///
/// Peaks are of the whole step, with what came after it before the next; L, U and the rates `external` and `reserved` are
/// taken at its end, where a trial takes its samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LongRunPoint {
    /// The first of the steps, counted from 0.
    pub step: u32,
    /// The highest A in them.
    pub peak_allocated_bytes: u64,
    /// The highest V in them.
    pub peak_reserved_bytes: u64,
    /// The least A at the end of a step: what no batch needs any more.
    #[serde(default)]
    pub live_bytes: u64,
    /// The fewest live allocations at the end of a step. Of a healthy run they do not grow, whatever the lengths are.
    #[serde(default)]
    pub live_blocks: u64,
    /// L: the least of what one request could have had.
    pub largest_satisfiable_bytes: u64,
    /// U: the most free bytes that releasing the cache could not have given back.
    pub unreleasable_bytes: u64,
    /// The highest rates. `external` is `None` without a limit.
    pub rates: Rates,
    /// 1 − the highest A of the run / the highest V in the step: the rate that decides. A soak can hold V against the highest
    /// need so far only (see [`against_need`](crate::memory::fragmentation::against_need)); a forecast knows what is to come,
    /// and what the longest batch will need is not wasted on the short ones before it.
    pub against_need: Option<f64>,
}

impl LongRunPoint {
    /// The point of one step, before the need of the run is known.
    pub(super) fn of(step: u32, state: &PoolState) -> Self {
        Self {
            step,
            peak_allocated_bytes: state.peak_allocated_bytes,
            peak_reserved_bytes: state.peak_reserved_bytes,
            live_bytes: state.allocated_bytes,
            live_blocks: state.allocated_blocks,
            largest_satisfiable_bytes: state.largest_satisfiable_bytes,
            unreleasable_bytes: state.unreleasable_bytes,
            rates: rates(state),
            against_need: None,
        }
    }

    fn joined(self, next: Self) -> Self {
        Self {
            step: self.step,
            peak_allocated_bytes: self.peak_allocated_bytes.max(next.peak_allocated_bytes),
            peak_reserved_bytes: self.peak_reserved_bytes.max(next.peak_reserved_bytes),
            live_bytes: self.live_bytes.min(next.live_bytes),
            live_blocks: self.live_blocks.min(next.live_blocks),
            largest_satisfiable_bytes: self.largest_satisfiable_bytes.min(next.largest_satisfiable_bytes),
            unreleasable_bytes: self.unreleasable_bytes.max(next.unreleasable_bytes),
            rates: self.rates.highest(next.rates),
            against_need: None,
        }
    }
}

/// Points, thinned out as they come.
#[derive(Debug)]
pub(super) struct Series {
    points: Vec<LongRunPoint>,
    /// Steps of a point.
    stride: u32,
    /// Steps of the last point so far.
    filled: u32,
}

impl Default for Series {
    fn default() -> Self {
        Self { points: Vec::new(), stride: 1, filled: 1 }
    }
}

impl Series {
    pub(super) fn push(&mut self, point: LongRunPoint) {
        if self.filled < self.stride
            && let Some(last) = self.points.last_mut()
        {
            *last = last.joined(point);
            self.filled += 1;
            return;
        }
        if self.points.len() == MAX_POINTS {
            let pairs = self.points.chunks(2);
            self.points = pairs.filter_map(|pair| pair.iter().copied().reduce(LongRunPoint::joined)).collect();
            self.stride = self.stride.saturating_mul(2);
        }
        self.points.push(point);
        self.filled = 1;
    }

    /// The points of a run that needed so much.
    pub(super) fn into_points(self, need_bytes: u64) -> Vec<LongRunPoint> {
        let rated = |point: LongRunPoint| LongRunPoint {
            against_need: peak_rate(need_bytes, point.peak_reserved_bytes),
            ..point
        };
        self.points.into_iter().map(rated).collect()
    }
}

/// A rate that was higher than all before it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Height {
    step: u32,
    rate: f64,
}

/// V higher than in all steps before.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ReservedHeight {
    step: u32,
    bytes: u64,
}

/// The steps after the first ones in which V or a rate rose to a new height, so that the first step over any threshold is
/// known although the series is thinned. Bytes under 1 % of the limit, or 64 MiB without one, are left out. Bounded: heights that differ by less
/// than a thousandth count as one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heights {
    limit_bytes: u64,
    need_bytes: u64,
    peak: Vec<ReservedHeight>,
    external: Vec<Height>,
    reserved: Vec<Height>,
}

impl Heights {
    /// Takes a step under a limit.
    pub(super) fn take(&mut self, point: &LongRunPoint, limit_bytes: u64) {
        self.limit_bytes = limit_bytes;
        self.need_bytes = self.need_bytes.max(point.peak_allocated_bytes);
        let (step, bytes) = (point.step, point.peak_reserved_bytes);
        if self.peak.last().is_none_or(|last| bytes as f64 > last.bytes as f64 * (1.0 + 1.0 / HEIGHTS_A_WHOLE)) {
            self.peak.push(ReservedHeight { step, bytes });
        }
        let negligible_bytes = negligible_bytes(limit_bytes);
        let rates = [(&mut self.external, point.rates.external), (&mut self.reserved, point.rates.reserved)];
        for (heights, rate) in rates {
            let Some(rate) = rate.filter(|rate| rate.is_finite()) else { continue };
            if rate * (bytes as f64) < negligible_bytes {
                continue;
            }
            let level = |rate: f64| (rate * HEIGHTS_A_WHOLE).ceil();
            if heights.last().is_none_or(|last| level(rate) > level(last.rate)) {
                heights.push(Height { step, rate });
            }
        }
    }

    /// The first step in which a rate was above a threshold, with the rate. `peak` is V against the need of the whole run.
    pub fn first_above(&self, metric: FragmentationMetric, threshold: f64) -> Option<(u32, f64)> {
        let heights = match metric {
            FragmentationMetric::Peak => return self.first_beyond_the_need(threshold),
            FragmentationMetric::External => &self.external,
            FragmentationMetric::Reserved => &self.reserved,
        };
        heights.iter().find(|height| height.rate > threshold).map(|height| (height.step, height.rate))
    }

    fn first_beyond_the_need(&self, threshold: f64) -> Option<(u32, f64)> {
        let negligible_bytes = negligible_bytes(self.limit_bytes);
        let rated = self.peak.iter().filter_map(|height| {
            let rate = peak_rate(self.need_bytes, height.bytes)?;
            (rate * height.bytes as f64 >= negligible_bytes).then_some((height.step, rate))
        });
        rated.into_iter().find(|(_, rate)| *rate > threshold)
    }
}

/// The bytes that do not count.
fn negligible_bytes(limit_bytes: u64) -> f64 {
    if limit_bytes == u64::MAX { NEGLIGIBLE_BYTES as f64 } else { limit_bytes as f64 / NEGLIGIBLE_DIVISOR }
}
