//! A report's figures in our terms.

use super::report::{SampleLine, StepLine};
use crate::memory::{MemorySample, PoolState};
use crate::trial::outcome::StepTimes;

/// Times of a report may be rounded by this much.
const ROUNDING_MS: f64 = 1.0;

/// A step's times.
pub(super) fn times(line: &StepLine) -> StepTimes {
    StepTimes {
        // Both are rounded, and one may be by the other's digit.
        data_wait_ms: if line.data_wait_ms <= line.total_ms + ROUNDING_MS {
            line.data_wait_ms.min(line.total_ms)
        } else {
            line.data_wait_ms
        },
        load_ms: line.load_ms,
        forward_ms: line.forward_ms,
        backward_ms: line.backward_ms,
        optimizer_ms: line.optimizer_ms,
        total_ms: line.total_ms,
    }
}

/// Whether no step takes such times.
pub(super) fn cannot_be(times: &StepTimes) -> bool {
    let StepTimes { data_wait_ms, load_ms, forward_ms, backward_ms, optimizer_ms, total_ms } = *times;
    let figures = [data_wait_ms, load_ms, forward_ms, backward_ms, optimizer_ms, total_ms];
    let is_no_time = |milliseconds: &f64| !milliseconds.is_finite() || *milliseconds < 0.0;
    figures.iter().any(is_no_time) || total_ms <= 0.0 || data_wait_ms > total_ms
}

/// A sample under C, whatever higher limit the program holds itself to. L is the larger of the largest free block and
/// what could be had after a release.
pub(super) fn sample(line: &SampleLine, limit_bytes: u64) -> MemorySample {
    let allocated_bytes = line.allocated_bytes;
    let reserved_bytes = line.reserved_bytes.max(allocated_bytes);
    let unreleasable_bytes = line.unreleasable_bytes.unwrap_or(0);
    let after_release = limit_bytes.saturating_sub(allocated_bytes).saturating_sub(unreleasable_bytes);
    let largest_free_bytes = line.largest_free_bytes.unwrap_or(0);
    let state = PoolState {
        allocated_bytes,
        requested_bytes: line.requested_bytes.unwrap_or(allocated_bytes),
        reserved_bytes,
        limit_bytes,
        peak_allocated_bytes: line.peak_allocated_bytes.unwrap_or(allocated_bytes).max(allocated_bytes),
        peak_reserved_bytes: line
            .peak_reserved_bytes
            .unwrap_or(reserved_bytes)
            .max(reserved_bytes)
            .max(line.peak_allocated_bytes.unwrap_or(0)),
        largest_free_bytes,
        largest_satisfiable_bytes: largest_free_bytes.max(after_release),
        unreleasable_bytes,
        allocated_blocks: line.allocated_blocks.unwrap_or(0),
        ..PoolState::default()
    };
    MemorySample {
        largest_satisfiable_estimated: line.unreleasable_bytes.is_none(),
        largest_request_bytes: line.largest_request_bytes.unwrap_or(0),
        host_bytes: line.host_bytes,
        ..MemorySample::of(line.step, &state)
    }
}
