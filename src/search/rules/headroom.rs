//! Enough memory stays free at the peak, in bytes.
//!
//! Headroom is counted in reserved bytes at the high-water mark, not in samples: that is what the device runs out of.

use super::{Finding, Level, Rule};
use crate::config::plan::SafetyPlan;
use crate::trial::TrialRecord;
use crate::units::Bytes;

/// C − peak V is at least a share of C and at least the largest request.
#[derive(Debug)]
pub struct Headroom;

impl Rule for Headroom {
    fn name(&self) -> &'static str {
        "headroom"
    }

    fn check(&self, trial: &TrialRecord, safety: &SafetyPlan) -> Finding {
        let limit_bytes = trial.samples.iter().map(|sample| sample.limit_bytes).max();
        let (Some(limit_bytes), Some(measurement)) = (limit_bytes, &trial.measurement) else {
            return Finding::none(None, "no memory was sampled");
        };
        let free = limit_bytes.saturating_sub(measurement.peak_reserved_bytes);
        let needed = safety.headroom.of(limit_bytes).max(measurement.largest_request_bytes);
        let (level, stay) = if free >= needed { (Level::Passed, "stay") } else { (Level::Failed, "only stay") };
        let reason = format!("{} {stay} free at the peak, {} are asked for", Bytes(free), Bytes(needed));
        Finding { value: Some(free as f64), limit: Some(needed as f64), level, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{completed, point, safety, sample};
    use super::*;
    use crate::memory::MemorySample;
    use crate::units::MIB;

    #[test]
    fn a_peak_within_five_percent_of_the_limit_fails() {
        let tight = MemorySample { peak_reserved_bytes: 960 * MIB, ..sample(4) };
        let finding = Headroom.check(&completed(point(8), vec![tight]), &safety());
        assert_eq!(finding.level, Level::Failed);
        assert_eq!(finding.value, Some((40 * MIB) as f64));
    }

    #[test]
    fn exactly_five_percent_passes_and_a_byte_less_does_not() {
        let level = |reserved| {
            let sample = MemorySample { peak_reserved_bytes: reserved, ..sample(4) };
            Headroom.check(&completed(point(8), vec![sample]), &safety()).level
        };
        assert_eq!(level(950 * MIB), Level::Passed);
        assert_eq!(level(950 * MIB + 1), Level::Failed);
    }

    #[test]
    fn without_samples_there_is_nothing_to_read() {
        let finding = Headroom.check(&completed(point(8), vec![]), &safety());
        assert_eq!((finding.value, finding.level), (None, Level::Passed));
    }

    #[test]
    fn a_request_larger_than_the_share_raises_the_need() {
        let large = MemorySample { peak_reserved_bytes: 900 * MIB, largest_request_bytes: 120 * MIB, ..sample(4) };
        let finding = Headroom.check(&completed(point(8), vec![large]), &safety());
        assert_eq!(finding.level, Level::Failed);
        assert_eq!(finding.limit, Some((120 * MIB) as f64));
    }
}
