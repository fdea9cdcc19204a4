//! Safety rules: what makes a finished trial safe. One file a rule.
//!
//! A rule reads the record of a trial and nothing else, so it is tested with hand-made series. What is no series in it is
//! what the search forecast of the whole run and put into the soak's record, for the rule on that. Every rule
//! gives a [`Check`]: a value, what is allowed, and a sentence that says what it means. A rule that has nothing to read
//! passes and says so, with no value: absence of evidence is no breach.
//!
//! A finding has one of three [`Level`]s. Only `failed` keeps a point from being recommended; `warning` is said aloud
//! and decides nothing.
//!
//! | rule | fails | warns |
//! |---|---|---|
//! | [`completion`] | the trial did not run to its end | |
//! | [`finite_loss`] | the loss is not a number | |
//! | [`fragmentation`] | the rate is above its threshold | from two thirds of it on |
//! | [`largest_block`] | L is under 1.5 × the largest request | under 2 × |
//! | [`largest_block_drop`] | L fell by more than 30 % | |
//! | [`headroom`] | too few bytes stay free at the peak | |
//! | [`growth`] | V grows and reaches C within 10,000 steps | it grows and reaches C later |
//! | [`whole_run`] | the coming run breaks by forecast | its forecast may err, or could not be made |
//! | [`host_memory`] | the worker has more than 80 % of what it can have | |
//! | [`allocated_blocks`] | | over 5,000 live allocations |
//! | [`data_wait`] | | the step waits more than 2 % of the time |
//!
//! # To add a rule
//! Create `search/rules/<name>.rs` with a type that implements [`Rule`] and add one line to [`all`]; the laws at the foot
//! of this file then run over it.

use serde::{Deserialize, Serialize};

use crate::config::plan::SafetyPlan;
use crate::memory::MemorySample;
use crate::trial::TrialRecord;
use crate::trial::statistics::round_for_json;

pub mod allocated_blocks;
pub mod completion;
pub mod data_wait;
pub mod finite_loss;
pub mod fragmentation;
pub mod growth;
pub mod headroom;
pub mod host_memory;
pub mod largest_block;
pub mod largest_block_drop;
pub mod whole_run;

/// Steps whose samples no rule reads: the first ones fill the cache and allocate what stays.
pub const WARM_UP_STEPS: u32 = 2;

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// As it should be.
    Passed,
    /// Allowed, and worth knowing.
    Warning,
    /// A breach.
    Failed,
}

impl Level {
    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Warning => "warning",
            Self::Failed => "failed",
        }
    }
}

/// How the reason of a rule begins that had nothing to judge by. `passed` is true of it, since nothing is against the
/// trial; people are told the difference.
const NOT_JUDGED: &str = "not judged: ";

/// One rule's finding on a trial: a row of `checks` in the recommendation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The rule's name.
    pub rule: String,
    /// What was found; `None` where the rule had nothing to read.
    pub value: Option<f64>,
    /// What is allowed.
    pub limit: Option<f64>,
    /// Whether it passed; a warning passes too.
    pub passed: bool,
    /// Whether it passed with a warning.
    #[serde(default)]
    pub warning: bool,
    /// A sentence for people.
    pub reason: String,
}

impl Check {
    fn new(rule: &dyn Rule, finding: Finding) -> Self {
        let Finding { value, limit, level, reason } = finding;
        // JSON has no NaN and no infinity: a figure that is neither is none.
        let figure = |value: Option<f64>| value.filter(|value| value.is_finite()).map(round_for_json);
        Self {
            rule: rule.name().to_owned(),
            value: figure(value),
            limit: figure(limit),
            passed: level != Level::Failed,
            warning: level == Level::Warning,
            reason,
        }
    }

    /// What it comes to, for people: what could not be judged has not failed, and is not said to have passed.
    pub fn outcome(&self) -> &'static str {
        match self.level() {
            Level::Passed if self.reason.starts_with(NOT_JUDGED) => "-",
            level => level.name(),
        }
    }

    /// How serious it is.
    pub fn level(&self) -> Level {
        match (self.passed, self.warning) {
            (false, _) => Level::Failed,
            (true, true) => Level::Warning,
            (true, false) => Level::Passed,
        }
    }
}

/// All rules' findings on a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// In the order of the rules.
    pub checks: Vec<Check>,
}

impl Verdict {
    /// Whether every rule passed, with or without a warning.
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
    /// How serious it is.
    pub level: Level,
    /// A sentence for people.
    pub reason: String,
}

impl Finding {
    /// Nothing to read, and why.
    fn none(limit: Option<f64>, why: &str) -> Self {
        Self { value: None, limit, level: Level::Passed, reason: format!("{NOT_JUDGED}{why}") }
    }
}

/// The registry: every rule, in the order in which breaches are reported.
pub fn all() -> [&'static dyn Rule; 11] {
    [
        &completion::Completion,
        &finite_loss::FiniteLoss,
        &fragmentation::FragmentationRate,
        &largest_block::LargestBlock,
        &largest_block_drop::LargestBlockDrop,
        &headroom::Headroom,
        &growth::Growth,
        &whole_run::WholeRun,
        &host_memory::HostMemoryShare,
        &allocated_blocks::AllocatedBlocks,
        &data_wait::DataWait,
    ]
}

/// Judges a finished trial by every rule.
pub fn judge(trial: &TrialRecord, safety: &SafetyPlan) -> Verdict {
    Verdict { checks: all().into_iter().map(|rule| Check::new(rule, rule.check(trial, safety))).collect() }
}

/// The samples that rules read: those after the warm-up.
fn steady(samples: &[MemorySample]) -> impl Iterator<Item = &MemorySample> {
    samples.iter().filter(|sample| is_steady(sample))
}

fn is_steady(sample: &MemorySample) -> bool {
    sample.step > WARM_UP_STEPS
}

#[cfg(test)]
pub(crate) mod testing {
    //! Hand-made trials.

    use super::*;
    use crate::config::plan::{DEFAULT_HORIZON_STEPS, SafetyPlan};
    use crate::memory::{FragmentationMetric, FragmentationSource, Rates};
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
            horizon_steps: DEFAULT_HORIZON_STEPS,
        }
    }

    /// A point of `batch_size` samples without accumulation or workers.
    pub(crate) fn point(batch_size: usize) -> Point {
        Point::plain(batch_size)
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
            host_bytes: Some(300 * MIB),
            host_available_bytes: Some(2700 * MIB),
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
            first_loss: Some(4.0),
            last_loss: Some(3.0),
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
                sample_size: None,
            },
            outcome: Outcome::Completed,
            rank: None,
            measurement: Some(measurement),
            samples,
            warnings: Vec::new(),
            outlook: None,
            seconds: 1.0,
            worker: None,
            ranks: Vec::new(),
        }
    }

    /// A soak with these samples.
    pub(crate) fn soak(samples: Vec<MemorySample>) -> TrialRecord {
        let trial = completed(point(8), samples);
        TrialRecord { spec: TrialSpec { purpose: Purpose::Soak, ..trial.spec }, ..trial }
    }

    /// Ten steps of healthy samples.
    pub(crate) fn healthy() -> TrialRecord {
        completed(point(8), (1..=5).map(|pair| sample(pair * 2)).collect())
    }
}

#[cfg(test)]
mod tests;
