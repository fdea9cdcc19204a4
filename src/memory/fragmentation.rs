//! Fragmentation rates: pure formulas over a pool's figures.
//!
//! | rate | formula | reads as |
//! |---|---|---|
//! | `peak` | 1 − peak allocated / peak reserved | memory taken from the device and not needed at the worst moment (GMLake, ASPLOS'24, and `STAlloc` call 1 − peak the utilisation) |
//! | `external` | 1 − L / (C − A) | the share of the free bytes that a single request cannot have |
//! | `reserved` | 1 − A / V | cache at the instant; near 1 after every backward pass, so never a gate by default |
//!
//! A rate is `None` where it would be 0/0, and `external` also where the free total is too small to mean anything
//! (under max(64 MiB, 1 % of C)): a perfectly packed device with 4 MiB left in two pieces would read 50 %.

use serde::{Deserialize, Serialize};

use super::policy::PoolState;
use super::spec::FragmentationMetric;
use crate::units::MIB;

/// The free total below which `external` misleads, whatever the limit.
const EXTERNAL_FLOOR_BYTES: u64 = 64 * MIB;
/// The same as a divisor of the limit.
const EXTERNAL_FLOOR_DIVISOR: u64 = 100;

/// The three rates at one moment; `None` where a rate is undefined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// 1 − peak allocated / peak reserved, over the window since the last sample.
    pub peak: Option<f64>,
    /// 1 − L / (C − A).
    pub external: Option<f64>,
    /// 1 − A / V.
    pub reserved: Option<f64>,
}

impl Rates {
    /// The rates of a pool's state.
    pub fn of(state: &PoolState) -> Self {
        Self {
            peak: peak_rate(state.peak_allocated_bytes, state.peak_reserved_bytes),
            external: external_rate(state.largest_satisfiable_bytes, state.allocated_bytes, state.limit_bytes),
            reserved: reserved_rate(state.allocated_bytes, state.reserved_bytes),
        }
    }

    /// The higher of each rate, where one of the two is defined.
    #[must_use]
    pub fn highest(self, other: Self) -> Self {
        let higher = |one: Option<f64>, other: Option<f64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.max(other)),
            (one, other) => one.or(other),
        };
        Self {
            peak: higher(self.peak, other.peak),
            external: higher(self.external, other.external),
            reserved: higher(self.reserved, other.reserved),
        }
    }

    /// The rate that a safety rule asked for.
    pub fn get(&self, metric: FragmentationMetric) -> Option<f64> {
        match metric {
            FragmentationMetric::Peak => self.peak,
            FragmentationMetric::External => self.external,
            FragmentationMetric::Reserved => self.reserved,
        }
    }
}

/// 1 − peak allocated / peak reserved.
pub fn peak_rate(peak_allocated_bytes: u64, peak_reserved_bytes: u64) -> Option<f64> {
    share_missing(peak_allocated_bytes, peak_reserved_bytes)
}

/// 1 − A / V.
pub fn reserved_rate(allocated_bytes: u64, reserved_bytes: u64) -> Option<f64> {
    share_missing(allocated_bytes, reserved_bytes)
}

/// 1 − L / (C − A), where the free total is large enough to mean something.
pub fn external_rate(largest_satisfiable_bytes: u64, allocated_bytes: u64, limit_bytes: u64) -> Option<f64> {
    let free = limit_bytes.saturating_sub(allocated_bytes);
    if free < EXTERNAL_FLOOR_BYTES.max(limit_bytes / EXTERNAL_FLOOR_DIVISOR) {
        return None;
    }
    share_missing(largest_satisfiable_bytes, free)
}

/// The samples with their rate `peak` held against the highest need up to each: 1 − the highest peak allocated so far / the
/// window's peak reserved.
///
/// A window may need less than one before it. What a long batch needed and a short one does not is kept for the next long
/// one: cache that will be used, and no memory in pieces. Where all steps are alike, this is the window's own rate.
pub fn against_need(samples: &[MemorySample]) -> impl Iterator<Item = MemorySample> {
    samples.iter().scan(0, |need_bytes: &mut u64, sample| {
        *need_bytes = (*need_bytes).max(sample.peak_allocated_bytes);
        let raised = *need_bytes as f64 / sample.peak_allocated_bytes as f64;
        let against = |rates: Rates| match rates.peak {
            // 1 − rate is the window's need over what was reserved. A window without any need says nothing.
            Some(peak) if raised > 1.0 && raised.is_finite() => {
                Rates { peak: Some((1.0 - (1.0 - peak) * raised).max(0.0)).filter(|_| peak.is_finite()), ..rates }
            }
            _ => rates,
        };
        Some(MemorySample { rates: against(sample.rates), shadow: sample.shadow.map(against), ..*sample })
    })
}

fn share_missing(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| (1.0 - part as f64 / whole as f64).max(0.0))
}

/// The memory figures at one sample point, between two steps.
///
/// Each rate stands beside the bytes it was computed from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemorySample {
    /// The number of steps finished before the sample.
    pub step: u32,
    /// A: live tensor bytes.
    pub allocated_bytes: u64,
    /// V: bytes held from the device.
    pub reserved_bytes: u64,
    /// C: what tensors may use.
    pub limit_bytes: u64,
    /// The highest A since the last sample.
    pub peak_allocated_bytes: u64,
    /// The highest V since the last sample.
    pub peak_reserved_bytes: u64,
    /// L: the largest single request that would succeed.
    pub largest_satisfiable_bytes: u64,
    /// Whether L is C − A (an upper bound) and was not probed.
    pub largest_satisfiable_estimated: bool,
    /// The largest single request since the last sample.
    pub largest_request_bytes: u64,
    /// U: free bytes that releasing the cache could not give back.
    pub unreleasable_bytes: u64,
    /// Live allocations.
    pub allocated_blocks: u64,
    /// Rates of the device's own allocator.
    pub rates: Rates,
    /// Rates of the same events under the planned run's allocator, where that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Rates>,
    /// Bytes of host memory that the worker holds and the kernel cannot drop; `None` where it does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_bytes: Option<u64>,
    /// Bytes of host memory that the worker could have beside them; `None` where the kernel does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_available_bytes: Option<u64>,
}

impl MemorySample {
    /// The figures of a pool after `step` steps: what a device's own allocator says, the rates included. What only the
    /// device knows (the largest request, how L was found, a shadow, the host's memory) is filled in by the caller.
    pub fn of(step: u32, state: &PoolState) -> Self {
        Self {
            step,
            allocated_bytes: state.allocated_bytes,
            reserved_bytes: state.reserved_bytes,
            limit_bytes: state.limit_bytes,
            peak_allocated_bytes: state.peak_allocated_bytes,
            peak_reserved_bytes: state.peak_reserved_bytes,
            largest_satisfiable_bytes: state.largest_satisfiable_bytes,
            unreleasable_bytes: state.unreleasable_bytes,
            allocated_blocks: state.allocated_blocks,
            rates: Rates::of(state),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::GIB;

    #[test]
    fn an_empty_pool_has_no_rates_and_no_nan() {
        let rates = Rates::of(&PoolState::default());
        assert_eq!(rates, Rates { peak: None, external: None, reserved: None });
    }

    #[test]
    fn external_is_silent_when_almost_nothing_is_free() {
        // allocators.md §4.2: 20 006 MiB of which 4.3 MiB are free in two pieces.
        let limit = 20_006 * MIB;
        assert_eq!(external_rate(2 * MIB, limit - 4 * MIB, limit), None);
        assert_eq!(external_rate(GIB, 0, 2 * GIB), Some(0.5));
    }

    #[test]
    fn peak_rate_is_the_share_of_reserved_memory_that_was_not_needed() {
        assert_eq!(peak_rate(70, 100), Some(1.0 - 0.7));
        assert_eq!(peak_rate(100, 100), Some(0.0));
    }
}
