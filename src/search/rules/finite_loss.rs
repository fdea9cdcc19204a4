//! The loss is a number: a configuration that diverges is no configuration.

use super::{Finding, Rule};
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
            return Finding { value: None, limit: None, passed: false, reason };
        }
        match &trial.measurement {
            None => Finding { value: None, limit: None, passed: true, reason: "no loss was measured".to_owned() },
            Some(measurement) => {
                let (first, last) = (measurement.first_loss, measurement.last_loss);
                let passed = first.is_finite() && last.is_finite();
                let reason = if passed {
                    format!("the loss went from {first:.3} to {last:.3}")
                } else {
                    "the loss is not finite".to_owned()
                };
                Finding { value: Some(last).filter(|loss| loss.is_finite()), limit: None, passed, reason }
            }
        }
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
        assert!(!finding.passed);
        assert!(finding.reason.contains("step 7"));
    }

    #[test]
    fn a_finite_loss_passes() {
        assert!(FiniteLoss.check(&healthy(), &safety()).passed);
    }
}
