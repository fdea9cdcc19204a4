//! The trial ran to its end: no out of memory, no crash, no hang.

use super::{Finding, Level, Rule};
use crate::config::plan::SafetyPlan;
use crate::trial::{Outcome, TrialRecord};
use crate::units::plural;

/// Of the last line of a log, what a reason shows.
const LAST_WORDS_CHARS: usize = 160;

/// The trial completed.
#[derive(Debug)]
pub struct Completion;

impl Rule for Completion {
    fn name(&self) -> &'static str {
        "completion"
    }

    fn check(&self, trial: &TrialRecord, _safety: &SafetyPlan) -> Finding {
        let (level, reason) = match &trial.outcome {
            Outcome::Completed if !trial.is_observed() => (Level::Passed, "it ran, and nothing failed".to_owned()),
            Outcome::Completed => (Level::Passed, format!("all {} ran", plural(steps_run(trial) as usize, "step"))),
            _ => (Level::Failed, with_last_words(trial)),
        };
        Finding { value: None, limit: None, level, reason }
    }
}

/// An outcome, and the last line of what the worker or its launcher said, where that is all there is to go by.
fn with_last_words(trial: &TrialRecord) -> String {
    let last = match &trial.outcome {
        Outcome::Crashed { log, .. } => log.lines().next_back().unwrap_or_default(),
        _ => "",
    };
    let ending = trial.ending();
    if last.is_empty() {
        return ending;
    }
    let shown: String = last.chars().take(LAST_WORDS_CHARS).collect();
    let more = if shown.len() < last.len() { "…" } else { "" };
    format!("{ending}; its last words: {shown}{more}")
}

/// The steps of a completed trial: those asked for, and more where it went on.
fn steps_run(trial: &TrialRecord) -> u32 {
    let measured = trial.measurement.as_ref().map_or(0, |measurement| measurement.steps);
    trial.spec.total_steps().max(trial.spec.warmup_steps.saturating_add(measured))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{healthy, safety};
    use super::*;
    use crate::trial::Measurement;

    #[test]
    fn a_trial_that_went_on_says_how_many_steps_ran() {
        let reason = |steps| {
            let trial = healthy();
            let measurement = trial.measurement.map(|measurement| Measurement { steps, ..measurement });
            Completion.check(&TrialRecord { measurement, ..trial }, &safety()).reason
        };
        assert_eq!((reason(10), reason(24)), ("all 12 steps ran".to_owned(), "all 26 steps ran".to_owned()));
    }

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
