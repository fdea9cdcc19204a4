//! Whether memory climbs steadily: a line through the second half of the time.
//!
//! A line of Theil and Sen ([`Trend`]) that climbs with 95 % confidence is not enough. Growth that ends also tilts one, and
//! so does the tooth of a saw. So the climb must go on in every third of the time, and reach a height not seen before.

use crate::trial::statistics::median;
use crate::trial::statistics::theil_sen::Trend;

/// The fewest points of a line.
pub(super) const LINE_POINTS: usize = 10;
/// The points that a line is put through at most, each the median of a block: growth within a step is noise to it.
const LINE_BLOCKS: usize = 60;
/// The shortest time that a line is believed over while the watch goes on. At its end there is nothing to wait for.
const LINE_SECONDS: f64 = 60.0;
/// What each third of a steady climb has of it at least; an even one has a half from median to median.
const THIRD_OF_CLIMB: f64 = 0.2;

/// A steady climb over the second half of the time.
pub(super) struct Climb {
    /// Bytes a second.
    pub(super) slope: f64,
    /// The lower end of its 95 % interval.
    pub(super) least_slope: f64,
    /// The time it is seen over.
    pub(super) seconds: f64,
    /// By how much memory climbed in it.
    pub(super) rise_bytes: f64,
}

/// Whether more of a line is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Span {
    /// It is.
    GoesOn,
    /// It is not.
    Ended,
}

impl Climb {
    /// The climb of a line of (seconds, bytes), if it is one. While the watch goes on it must have lasted a while.
    pub(super) fn of(line: &[(f64, f64)], span: Span) -> Option<Self> {
        let (first, last) = (line.first()?.0, line.last()?.0);
        let middle = f64::midpoint(first, last);
        let (earlier, later) = line.split_at(line.partition_point(|(at, _)| *at < middle));
        let blocks = blocks(later);
        let seconds = last - middle;
        if blocks.len() < LINE_POINTS || (span == Span::GoesOn && seconds < LINE_SECONDS) {
            return None;
        }
        let trend = Trend::of(&blocks)?;
        let least_slope = trend.slope_interval?.0;
        let third = |index: usize| {
            let size = blocks.len() / 3;
            median(blocks.iter().skip(index * size).take(size).map(|(_, bytes)| *bytes))
        };
        let (begin, middle, end) = (third(0)?, third(1)?, third(2)?);
        let least_rise = THIRD_OF_CLIMB * (end - begin);
        let is_steady = end > begin && middle - begin >= least_rise && end - middle >= least_rise;
        let height_before = earlier.iter().map(|(_, bytes)| *bytes).fold(0.0, f64::max);
        let rise_bytes = trend.slope * seconds;
        let is_new = end > height_before;
        (least_slope > 0.0 && is_steady && is_new).then_some(Self {
            slope: trend.slope,
            least_slope,
            seconds,
            rise_bytes,
        })
    }
}

/// A line in at most [`LINE_BLOCKS`] points, each the medians of a block.
fn blocks(line: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let size = line.len().div_ceil(LINE_BLOCKS).max(1);
    let block = |points: &[(f64, f64)]| {
        Some((median(points.iter().map(|(at, _)| *at))?, median(points.iter().map(|(_, bytes)| *bytes))?))
    };
    line.chunks(size).filter_map(block).collect()
}
