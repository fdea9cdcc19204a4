//! The trial ran to its end: no out of memory, no crash, no hang.

use super::{Finding, Level, Rule};
use crate::config::plan::SafetyPlan;
use crate::trial::{Outcome, TrialRecord};

/// The trial completed.
#[derive(Debug)]
pub struct Completion;

impl Rule for Completion {
    fn name(&self) -> &'static str {
        "completion"
    }

    fn check(&self, trial: &TrialRecord, _safety: &SafetyPlan) -> Finding {
        let (level, reason) = match &trial.outcome {
            Outcome::Completed => {
                let steps = crate::units::plural(trial.spec.total_steps() as usize, "step");
                (Level::Passed, format!("all {steps} ran"))
            }
            outcome => (Level::Failed, outcome.to_string()),
        };
        Finding { value: None, limit: None, level, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{healthy, safety};
    use super::*;

    #[test]
    fn a_trial_that_ran_out_of_memory_fails_with_its_figures() {
        let outcome = Outcome::OutOfMemory {
            requested_bytes: Some(1 << 30),
            allocated_bytes: None,
            reserved_bytes: None,
            limit_bytes: Some(2 << 30),
            step: Some(3),
            phase: None,
        };
        let finding = Completion.check(&TrialRecord { outcome, ..healthy() }, &safety());
        assert_eq!(finding.level, Level::Failed);
        assert_eq!(finding.reason, "out of memory at step 3 (1.0 GiB requested, limit 2.0 GiB)");
    }
}
