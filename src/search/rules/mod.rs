//! Safety rules: what makes a finished trial safe. One file a rule.
//!
//! A rule reads recorded series only, so it is tested with hand-made ones.

use serde::{Deserialize, Serialize};

/// One rule's finding on a trial: a row of `checks` in the recommendation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The rule's name.
    pub rule: String,
    /// What was found; `None` where the rule had nothing to read.
    pub value: Option<f64>,
    /// What is allowed.
    pub limit: Option<f64>,
    /// Whether it passed.
    pub passed: bool,
    /// A sentence for people.
    pub reason: String,
}

/// All rules' findings on a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// In the order of the rules.
    pub checks: Vec<Check>,
}

impl Verdict {
    /// Whether every rule passed.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|check| check.passed)
    }

    /// The first rule that did not pass.
    pub fn breach(&self) -> Option<&Check> {
        self.checks.iter().find(|check| !check.passed)
    }
}
