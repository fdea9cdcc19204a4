//! Where the probes do not align: lines through their peaks.
//!
//! Each probe is replayed as it was recorded, and every figure is continued along the line through the two largest
//! batches. That is a rough guess (the peak moves to another moment of the step as the batch grows: 8-14 % off for
//! transformers at eight times the batch, up to 3 % for ResNet-50), so it never passes for exact.

use super::recording::Recording;
use super::replay::{Replay, replay};
use super::run::{RunEvents, RunShape, Window, script};
use super::size::{Sample, Size};
use super::{MakePolicy, Probed};
use crate::memory::fragmentation::{Rates, peak_rate};

/// A replay's figures that are continued, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Peaks {
    pub(super) allocated: u64,
    pub(super) reserved: u64,
    pub(super) largest_request: u64,
    rated_allocated: u64,
    rated_reserved: u64,
}

impl Peaks {
    pub(super) fn of(replay: &Replay) -> Self {
        let rated = [Window::SteadyStep, Window::FirstStep].into_iter().find_map(|window| replay.window(window));
        Self {
            allocated: replay.peak_allocated_bytes,
            reserved: replay.peak_reserved_bytes,
            largest_request: replay.largest_request_bytes,
            rated_allocated: rated.map_or(replay.peak_allocated_bytes, |figures| figures.peak_allocated_bytes),
            rated_reserved: rated.map_or(replay.peak_reserved_bytes, |figures| figures.peak_reserved_bytes),
        }
    }

    /// The rate that peaks alone allow to say.
    pub(super) fn rates(&self) -> Rates {
        // Beyond 64 bits both are the same number.
        let peak = peak_rate(self.rated_allocated, self.rated_reserved).filter(|_| self.rated_reserved < u64::MAX);
        Rates { peak, external: None, reserved: None }
    }

    /// How far these are from what was measured, in percent of the measured: the worse of allocated and reserved.
    pub(super) fn error_percent(&self, measured: &Self) -> f64 {
        let off = |forecast: u64, measured: u64| {
            if measured == 0 { 0.0 } else { forecast.abs_diff(measured) as f64 / measured as f64 * 100.0 }
        };
        off(self.allocated, measured.allocated).max(off(self.reserved, measured.reserved))
    }
}

/// The peaks of a recording as it is, without a limit.
pub(super) fn measured(batch_size: usize, recording: &Recording, make_policy: MakePolicy<'_>) -> Peaks {
    let script = script(recording, RunShape::recorded(batch_size)).unwrap_or_default();
    Peaks::of(&replay(RunEvents::new(recording, None, script), make_policy(u64::MAX)))
}

/// The peaks of all probes under one policy, by batch size.
pub(super) struct PeakLines(Vec<(usize, Peaks)>);

impl PeakLines {
    pub(super) fn of(probes: &[Probed], make_policy: MakePolicy<'_>) -> Self {
        let peaks = |probe: &Probed| (probe.batch_size, measured(probe.batch_size, &probe.recording, make_policy));
        Self(probes.iter().map(peaks).collect())
    }

    /// Whether a larger batch took more. Where it did not (recordings named in the wrong order, say), lines through the
    /// peaks lead to no largest batch.
    pub(super) fn grow(&self) -> bool {
        let [.., (_, low), (_, high)] = self.0.as_slice() else { return false };
        high.allocated > low.allocated && high.reserved >= low.reserved
    }

    /// The peaks at a batch size, on the lines through the two largest probes.
    pub(super) fn at(&self, batch_size: usize) -> Peaks {
        continued(&self.0, batch_size)
    }

    /// How far the lines through the other probes would have been off at the largest. It is the error of an
    /// extrapolation, as the forecast itself is one. `None` with two probes.
    pub(super) fn error_percent(&self) -> Option<f64> {
        let ((batch_size, measured), others) = self.0.split_last()?;
        (others.len() >= 2).then(|| continued(others, *batch_size).error_percent(measured))
    }
}

fn continued(peaks: &[(usize, Peaks)], batch_size: usize) -> Peaks {
    let [.., low, high] = peaks else { return peaks.last().map(|(_, peaks)| *peaks).unwrap_or_default() };
    let line = |get: fn(&Peaks) -> u64| {
        let sample = |(batch_size, peaks): &(usize, Peaks)| Sample { batch_size: *batch_size, bytes: get(peaks) };
        Size::Extrapolated { low: sample(low), high: sample(high) }.at(batch_size)
    };
    let (allocated, rated_allocated) = (line(|peaks| peaks.allocated), line(|peaks| peaks.rated_allocated));
    Peaks {
        allocated,
        // Lines through tiny peaks may cross: segments have a least size. What is held is never less than what lives.
        reserved: line(|peaks| peaks.reserved).max(allocated),
        largest_request: line(|peaks| peaks.largest_request),
        rated_allocated,
        rated_reserved: line(|peaks| peaks.rated_reserved).max(rated_allocated),
    }
}
