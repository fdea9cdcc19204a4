//! The fragmentation rate stays under its threshold in the steady state.
//!
//! A rate is a share of what the allocator holds, and a caching allocator holds at least a segment. Where the bytes
//! behind the rate are under 1 % of the limit they cannot decide whether a run fits, so the rate is shown and does not
//! gate: a model of 1 MiB in a segment of 2 MiB is half empty and perfectly safe. (The rate `external` is silent under
//! the same share, see [`crate::memory::fragmentation`].)
//!
//! The rate `peak` of a sample is of its own window, and a window may need less than one before it: with varying lengths
//! a few short batches follow a long one, and what the long one needed is kept for the next. That is cache that will be
//! used, not memory in pieces: GPT-2 medium with lengths of 64 to 512 read up to 32 % by windows while the pool held
//! 0.1 % more than its highest need, step after step (H200, 200 steps). So what gates is a window's reserved memory
//! against the highest need up to it. Where all steps are alike, that is the window's own rate.

use super::{Finding, Level, Rule, is_steady};
use crate::config::plan::SafetyPlan;
use crate::memory::fragmentation::against_need;
use crate::memory::{FragmentationSource, MemorySample, Rates};
use crate::trial::TrialRecord;
use crate::units::Fraction;

/// From this share of the threshold on the rule warns: from 20 % with the default of 30 %.
const WARNING_SHARE: f64 = 2.0 / 3.0;

/// Bytes under this share of the limit do not gate.
const NEGLIGIBLE_DIVISOR: u64 = 100;

/// The highest fragmentation rate is under the threshold.
#[derive(Debug)]
pub struct FragmentationRate;

impl Rule for FragmentationRate {
    fn name(&self) -> &'static str {
        "fragmentation"
    }

    fn check(&self, trial: &TrialRecord, safety: &SafetyPlan) -> Finding {
        let threshold = safety.fragmentation_threshold.0;
        if trial.completed() && !trial.is_observed() {
            return Finding::none(
                Some(threshold),
                "fragmentation was not observed, since the program reports no allocator figures",
            );
        }
        let rated = || rates(&trial.samples, safety);
        let highest = |a: &(MemorySample, f64), b: &(MemorySample, f64)| a.1.total_cmp(&b.1);
        let gating = rated().filter(|(sample, rate)| !is_negligible(sample, *rate)).max_by(highest);
        if gating.is_none()
            && let Some((sample, rate)) = rated().max_by(highest)
        {
            let unused = crate::units::Bytes(unused_bytes(&sample, rate));
            let reason = format!("{unused} fragmented at most, under 1% of the limit");
            return Finding { value: Some(rate), limit: Some(threshold), level: Level::Passed, reason };
        }
        let Some((sample, rate)) = gating else {
            return Finding::none(Some(threshold), "no sample after the warm-up has a rate");
        };
        let (level, judgement) = if rate > threshold {
            (Level::Failed, "above")
        } else if rate >= threshold * WARNING_SHARE {
            (Level::Warning, "close to")
        } else {
            (Level::Passed, "under")
        };
        let reason = format!(
            "{} of memory fragmented at step {}, {judgement} the threshold of {}",
            Fraction(rate),
            sample.step,
            Fraction(threshold)
        );
        Finding { value: Some(rate), limit: Some(threshold), level, reason }
    }
}

/// The bytes behind a rate, taken from what the allocator held at the window's peak.
fn unused_bytes(sample: &MemorySample, rate: f64) -> u64 {
    Fraction(rate).of(sample.peak_reserved_bytes)
}

fn is_negligible(sample: &MemorySample, rate: f64) -> bool {
    unused_bytes(sample, rate) < sample.limit_bytes / NEGLIGIBLE_DIVISOR
}

/// The steady samples, rated [against the need](against_need), with the rate that the plan asked for, of the allocator it
/// asked for; never NaN or infinite.
pub fn rates<'a>(
    samples: &'a [MemorySample],
    safety: &'a SafetyPlan,
) -> impl Iterator<Item = (MemorySample, f64)> + 'a {
    let rated = against_need(samples).filter_map(|sample| Some((sample, rate(&sample, safety)?)));
    rated.filter(|(sample, _)| is_steady(sample))
}

fn rate(sample: &MemorySample, safety: &SafetyPlan) -> Option<f64> {
    let finite = |rates: Rates| rates.get(safety.fragmentation_metric).filter(|rate| rate.is_finite());
    let (device, shadow) = (finite(sample.rates), sample.shadow.and_then(finite));
    match safety.fragmentation_source {
        FragmentationSource::Device => device,
        FragmentationSource::Shadow => shadow.or(device),
        FragmentationSource::Worst => match (device, shadow) {
            (Some(device), Some(shadow)) => Some(device.max(shadow)),
            (one, other) => one.or(other),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{completed, point, safety, sample};
    use super::*;
    use crate::memory::fragmentation::peak_rate;
    use crate::units::MIB;

    fn with_rate(step: u32, peak: f64) -> MemorySample {
        MemorySample { rates: Rates { peak: Some(peak), ..Rates::default() }, ..sample(step) }
    }

    #[test]
    fn a_rate_above_the_threshold_fails_and_names_the_step() {
        let trial = completed(point(8), vec![with_rate(4, 0.1), with_rate(20, 0.41), with_rate(22, 0.2)]);
        let finding = FragmentationRate.check(&trial, &safety());
        assert_eq!((finding.value, finding.level), (Some(0.41), Level::Failed));
        assert!(finding.reason.contains("41% of memory fragmented at step 20"), "{}", finding.reason);
    }

    #[test]
    fn what_an_earlier_step_needed_is_no_fragmentation_of_a_shorter_one() {
        let window = |step, allocated: u64, reserved: u64| {
            let rates = Rates { peak: peak_rate(allocated, reserved), ..Rates::default() };
            MemorySample {
                peak_allocated_bytes: allocated * MIB,
                peak_reserved_bytes: reserved * MIB,
                rates,
                shadow: Some(Rates { peak: peak_rate(allocated, reserved + 100), ..Rates::default() }),
                ..sample(step)
            }
        };
        // Long, short, short; and then memory that no step ever needed.
        let samples = vec![window(2, 990, 1000), window(4, 500, 1000), window(6, 660, 1000), window(8, 500, 2000)];
        let of = |fragmentation_source| {
            let safety = SafetyPlan { fragmentation_source, ..safety() };
            rates(&samples, &safety).map(|(sample, rate)| (sample.step, rate)).collect::<Vec<_>>()
        };
        let close = |found: &[(u32, f64)], expected: &[(u32, f64)]| {
            let pairs = found.iter().zip(expected);
            found.len() == expected.len() && pairs.into_iter().all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-9)
        };
        assert!(close(&of(FragmentationSource::Device), &[(4, 0.01), (6, 0.01), (8, 0.505)]));
        let shadow = [(4, 0.1), (6, 0.1), (8, 1.0 - 990.0 / 2100.0)];
        assert!(close(&of(FragmentationSource::Shadow), &shadow), "{:?}", of(FragmentationSource::Shadow));
        assert_eq!(FragmentationRate.check(&completed(point(8), samples), &safety()).level, Level::Failed);
    }

    #[test]
    fn a_high_rate_of_next_to_nothing_is_shown_and_passes() {
        let tiny = MemorySample { peak_reserved_bytes: 2 << 20, ..with_rate(4, 0.62) };
        let finding = FragmentationRate.check(&completed(point(8), vec![tiny]), &safety());
        assert_eq!((finding.value, finding.level), (Some(0.62), Level::Passed));
        assert_eq!(finding.reason, "1.2 MiB fragmented at most, under 1% of the limit");
    }

    #[test]
    fn the_first_two_steps_are_left_out() {
        let trial = completed(point(8), vec![with_rate(2, 0.9), with_rate(4, 0.1)]);
        assert_eq!(FragmentationRate.check(&trial, &safety()).level, Level::Passed);
    }

    #[test]
    fn a_rate_from_20_percent_on_warns_and_one_above_30_percent_fails() {
        let level = |rate| FragmentationRate.check(&completed(point(8), vec![with_rate(4, rate)]), &safety()).level;
        assert_eq!(level(0.199_999), Level::Passed);
        assert_eq!(level(0.2), Level::Warning);
        assert_eq!(level(0.3), Level::Warning);
        assert_eq!(level(0.300_001), Level::Failed);
    }

    #[test]
    fn without_a_rate_there_is_nothing_to_read() {
        let without = MemorySample { rates: Rates::default(), ..sample(4) };
        for samples in [vec![], vec![with_rate(2, 0.9)], vec![without], vec![with_rate(4, f64::NAN)]] {
            let finding = FragmentationRate.check(&completed(point(8), samples), &safety());
            assert_eq!((finding.value, finding.level), (None, Level::Passed));
        }
    }

    #[test]
    fn the_worse_of_device_and_shadow_decides_unless_told_otherwise() {
        let shadowed =
            MemorySample { shadow: Some(Rates { peak: Some(0.5), ..Rates::default() }), ..with_rate(4, 0.1) };
        let device_only = SafetyPlan { fragmentation_source: FragmentationSource::Device, ..safety() };
        assert_eq!(rate(&shadowed, &safety()), Some(0.5));
        assert_eq!(rate(&shadowed, &device_only), Some(0.1));
    }
}
