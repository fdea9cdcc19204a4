//! The loss is a number: a configuration that diverges is no configuration.

use super::{Finding, Level, Rule};
use crate::config::plan::SafetyPlan;
use crate::trial::{Outcome, TrialRecord};

/// The loss stayed finite.
#[derive(Debug)]
pub struct FiniteLoss;

impl Rule for FiniteLoss {
    fn name(&self) -> &'static str {
        "finite_loss"
    }

    fn check(&self, trial: &TrialRecord, _safety: &SafetyPlan) -> Finding {
        if let Outcome::Diverged { step } = trial.outcome {
            let reason = format!("the loss is not finite at step {step}");
            return Finding { value: None, limit: None, level: Level::Failed, reason };
        }
        let Some(measurement) = &trial.measurement else { return Finding::none(None, "no loss was measured") };
        let (Some(first), Some(last)) = (measurement.first_loss, measurement.last_loss) else {
            return Finding::none(None, "no loss was told");
        };
        let (level, reason) = if first.is_finite() && last.is_finite() {
            (Level::Passed, format!("the loss went from {first:.3} to {last:.3}"))
        } else {
            (Level::Failed, "the loss is not finite".to_owned())
        };
        Finding { value: Some(last), limit: None, level, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{healthy, safety};
    use super::*;

    #[test]
    fn a_diverged_trial_fails_and_names_the_step() {
        let trial = TrialRecord { outcome: Outcome::Diverged { step: 7 }, measurement: None, ..healthy() };
        let finding = FiniteLoss.check(&trial, &safety());
        assert_eq!(finding.level, Level::Failed);
        assert!(finding.reason.contains("step 7"));
    }

    #[test]
    fn a_finite_loss_passes() {
        assert_eq!(FiniteLoss.check(&healthy(), &safety()).level, Level::Passed);
    }
}
