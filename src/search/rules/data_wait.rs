//! The step hardly ever waits for the loader.
//!
//! A starved step costs speed and not safety, and the loader's stage of the search settles it as well as this machine
//! can: what is left is worth knowing, so the rule warns and never fails.

use super::{Finding, Level, Rule};
use crate::config::plan::SafetyPlan;
use crate::search::staged::DATA_WAIT_ALLOWED;
use crate::trial::TrialRecord;
use crate::units::Fraction;

/// The share of the time spent waiting for data is small.
#[derive(Debug)]
pub struct DataWait;

impl Rule for DataWait {
    fn name(&self) -> &'static str {
        "data_wait"
    }

    fn check(&self, trial: &TrialRecord, _safety: &SafetyPlan) -> Finding {
        let limit = Some(DATA_WAIT_ALLOWED);
        let share = trial.measurement.as_ref().map(|measurement| measurement.data_wait_fraction);
        let Some(share) = share.filter(|share| share.is_finite()) else {
            return Finding::none(limit, "no step was measured");
        };
        let (level, hint) = if share > DATA_WAIT_ALLOWED {
            (Level::Warning, " (hint: more `loader_workers`, a deeper `prefetch_depth`, or cheaper decoding)")
        } else {
            (Level::Passed, "")
        };
        let reason = format!(
            "{} of the time went into waiting for data, {} are allowed{hint}",
            Fraction(share),
            Fraction(DATA_WAIT_ALLOWED)
        );
        Finding { value: Some(share), limit, level, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{healthy, safety};
    use super::*;
    use crate::trial::Measurement;

    fn found(data_wait_fraction: f64) -> Finding {
        let trial = healthy();
        let measurement = trial.measurement.map(|measurement| Measurement { data_wait_fraction, ..measurement });
        DataWait.check(&TrialRecord { measurement, ..healthy() }, &safety())
    }

    #[test]
    fn two_percent_pass_and_more_warns() {
        assert_eq!(found(0.0).level, Level::Passed);
        assert_eq!(found(0.02).level, Level::Passed);
        let finding = found(0.25);
        assert_eq!((finding.value, finding.level), (Some(0.25), Level::Warning));
        assert!(finding.reason.starts_with("25% of the time went into waiting for data, 2% are allowed (hint"));
    }

    #[test]
    fn waiting_all_the_time_still_never_fails() {
        assert_eq!(found(1.0).level, Level::Warning);
    }

    #[test]
    fn a_trial_that_measured_nothing_has_nothing_to_read() {
        let finding = DataWait.check(&TrialRecord { measurement: None, ..healthy() }, &safety());
        assert_eq!((finding.value, finding.level), (None, Level::Passed));
        assert_eq!(found(f64::NAN).value, None);
    }
}
