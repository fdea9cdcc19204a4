//! Safety rules: what makes a finished trial safe. One file a rule.
//!
//! A rule reads the recorded series of a trial and nothing else, so it is tested with hand-made series. Every rule
//! gives a [`Check`]: a value, what is allowed, and a sentence that says what it means.
//!
//! # To add a rule
//! Create `search/rules/<name>.rs` with a type that implements [`Rule`] and add one line to [`all`].

use serde::{Deserialize, Serialize};

use crate::config::plan::SafetyPlan;
use crate::memory::MemorySample;
use crate::trial::TrialRecord;

pub mod completion;
pub mod finite_loss;
pub mod fragmentation;
pub mod headroom;
pub mod largest_block;

/// Steps whose samples no rule reads: the first ones fill the cache and allocate what stays.
pub const WARM_UP_STEPS: u32 = 2;

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

/// A safety rule.
pub trait Rule {
    /// Its name in `checks`.
    fn name(&self) -> &'static str;

    /// What it finds on a trial.
    fn check(&self, trial: &TrialRecord, safety: &SafetyPlan) -> Finding;
}

/// What a rule found, before its name is put to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// What was found.
    pub value: Option<f64>,
    /// What is allowed.
    pub limit: Option<f64>,
    /// Whether it passed.
    pub passed: bool,
    /// A sentence for people.
    pub reason: String,
}

/// The registry: every rule, in the order in which breaches are reported.
pub fn all() -> [&'static dyn Rule; 5] {
    [
        &completion::Completion,
        &finite_loss::FiniteLoss,
        &fragmentation::FragmentationRate,
        &largest_block::LargestBlock,
        &headroom::Headroom,
    ]
}

/// Judges a finished trial by every rule.
pub fn judge(trial: &TrialRecord, safety: &SafetyPlan) -> Verdict {
    let check = |rule: &&dyn Rule| {
        let Finding { value, limit, passed, reason } = rule.check(trial, safety);
        Check { rule: rule.name().to_owned(), value, limit, passed, reason }
    };
    Verdict { checks: all().iter().map(check).collect() }
}

/// The samples that rules read: those after the warm-up.
fn steady(samples: &[MemorySample]) -> impl Iterator<Item = &MemorySample> {
    samples.iter().filter(|sample| sample.step > WARM_UP_STEPS)
}

#[cfg(test)]
pub(crate) mod testing {
    //! Hand-made trials.

    use super::*;
    use crate::config::plan::SafetyPlan;
    use crate::memory::{FragmentationMetric, FragmentationSource, Rates, Trim};
    use crate::train::GradientCheckpointing;
    use crate::trial::{Measurement, Outcome, Point, Purpose, TrialId, TrialSpec};
    use crate::units::{Fraction, MIB};

    /// The defaults of DESIGN §5.
    pub(crate) fn safety() -> SafetyPlan {
        SafetyPlan {
            fragmentation_threshold: Fraction(0.3),
            fragmentation_metric: FragmentationMetric::Peak,
            fragmentation_source: FragmentationSource::Worst,
            sample_every: 2,
            largest_block_factor: 1.5,
            headroom: Fraction(0.05),
        }
    }

    /// A point of `batch_size` samples without accumulation or workers.
    pub(crate) fn point(batch_size: usize) -> Point {
        Point {
            batch_size,
            accumulation_steps: 1,
            loader_workers: 0,
            prefetch_depth: 0,
            device_prefetch: 0,
            pin_memory: false,
            gradient_checkpointing: GradientCheckpointing::None,
            trim: Trim::Never,
        }
    }

    /// A healthy sample after `step` steps: 1000 MiB limit, 500 MiB at the peak.
    pub(crate) fn sample(step: u32) -> MemorySample {
        MemorySample {
            step,
            allocated_bytes: 100 * MIB,
            reserved_bytes: 510 * MIB,
            limit_bytes: 1000 * MIB,
            peak_allocated_bytes: 500 * MIB,
            peak_reserved_bytes: 510 * MIB,
            largest_satisfiable_bytes: 890 * MIB,
            largest_satisfiable_estimated: false,
            largest_request_bytes: 40 * MIB,
            unreleasable_bytes: MIB,
            allocated_blocks: 100,
            rates: Rates { peak: Some(0.02), external: Some(0.01), reserved: Some(0.8) },
            shadow: None,
        }
    }

    /// A completed trial with these samples.
    pub(crate) fn completed(point: Point, samples: Vec<MemorySample>) -> TrialRecord {
        let peak = |of: fn(&MemorySample) -> u64| samples.iter().map(of).max().unwrap_or(0);
        let measurement = Measurement {
            steps: 10,
            samples_per_second: 100.0,
            peak_allocated_bytes: peak(|sample| sample.peak_allocated_bytes),
            peak_reserved_bytes: peak(|sample| sample.peak_reserved_bytes),
            largest_request_bytes: peak(|sample| sample.largest_request_bytes),
            first_loss: 4.0,
            last_loss: 3.0,
            ..Measurement::default()
        };
        TrialRecord {
            spec: TrialSpec {
                id: TrialId(1),
                purpose: Purpose::Ladder,
                point,
                warmup_steps: 2,
                steps: 10,
                sample_every: 2,
            },
            outcome: Outcome::Completed,
            measurement: Some(measurement),
            samples,
            warnings: Vec::new(),
            seconds: 1.0,
        }
    }

    /// Ten steps of healthy samples.
    pub(crate) fn healthy() -> TrialRecord {
        completed(point(8), (1..=5).map(|pair| sample(pair * 2)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_healthy_trial_passes_every_rule_and_every_rule_says_why() {
        let verdict = judge(&testing::healthy(), &testing::safety());
        assert!(verdict.passed(), "{verdict:#?}");
        assert!(verdict.checks.iter().all(|check| !check.reason.is_empty()));
    }

    #[test]
    fn rule_names_are_unique() {
        let mut names: Vec<&str> = all().iter().map(|rule| rule.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().len());
    }
}
