//! The search room: which trial to run next, and what to recommend.
//!
//! A [`Strategy`] is asked for the next trial and sees the [`History`] of finished ones and the [`Knowledge`] that the
//! probes among them gave; it does no I/O, reads no clock and is deterministic, so a study resumes by replaying its
//! journal. The safety rules ([`rules`]) turn a
//! finished trial into a [`Verdict`]. The [`driver`] owns the loop: ask, run, journal, judge, tell, emit. It is the
//! only one here that touches the outside.
//!
//! On several devices trials run side by side, and strategies see nothing of it: what was run ahead of its turn is told
//! when its turn comes ([`driver`]). [`Strategy::ask_while`] names what is worth running ahead.
//!
//! # To add a strategy
//! Create `search/<name>.rs` with a type that implements [`Strategy`], one variant in [`StrategyKind`] and one line
//! in [`strategy`]; the laws in `search/contract.rs` run over it.

use serde::{Deserialize, Serialize};

use crate::data::SampleSize;
use crate::trial::remedies::RunRemedies;
use crate::trial::{Outlook, Point, Purpose, TrialRecord, TrialSpec, TunedRun};

pub mod allocator_reason;
pub mod driver;
pub mod grid;
pub mod knowledge;
pub mod recommend;
pub mod rules;
pub mod shape_probes;
pub mod space;
pub mod staged;
pub mod step_time;

pub use knowledge::Knowledge;
pub use rules::{Check, Verdict};
pub use space::Space;

/// Which strategy searches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StrategyKind {
    /// Stage by stage: probes, ladder, accumulation, loader, soak.
    #[default]
    Staged,
    /// Every point.
    Grid,
}

/// A finished trial with its verdict, as strategies see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JudgedTrial {
    /// What happened.
    pub record: TrialRecord,
    /// What the safety rules say of it.
    pub verdict: Verdict,
}

impl JudgedTrial {
    /// Whether it completed and every rule passed.
    pub fn is_safe(&self) -> bool {
        self.record.completed() && self.verdict.passed()
    }

    /// Ranks of it that nobody saw: what it shows does not hold for them.
    pub fn unseen_ranks(&self) -> &[usize] {
        self.record.measurement.as_ref().map_or(&[], |measurement| &measurement.unseen_ranks)
    }

    /// Whether what it shows holds for the whole point: every rank was seen, and something shows that the program took the
    /// point's batch size.
    pub fn is_fully_seen(&self) -> bool {
        self.record.is_fully_seen()
    }

    /// Measured samples per second, if it completed.
    pub fn samples_per_second(&self) -> Option<f64> {
        self.record.measurement.as_ref().map(|measurement| measurement.samples_per_second)
    }
}

/// All finished trials, in the order in which they ran, and the runs that were played beside them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    trials: Vec<JudgedTrial>,
    outlooks: Vec<(Point, Outlook)>,
    remedies: Vec<(Point, RunRemedies)>,
    tuned: Vec<(Point, TunedRun)>,
}

impl History {
    /// Tells of a finished trial.
    pub fn tell(&mut self, trial: JudgedTrial) {
        self.trials.push(trial);
    }

    /// The trials in order.
    pub fn trials(&self) -> &[JudgedTrial] {
        &self.trials
    }

    /// The measuring trial of a point (not its soak, nor a probe, nor its loader alone), the last one if there were several.
    pub fn measured(&self, point: &Point) -> Option<&JudgedTrial> {
        self.find(point, TrialSpec::is_measuring)
    }

    /// Tells what is forecast of a point's whole run.
    pub fn foretell(&mut self, point: Point, outlook: Outlook) {
        self.outlooks.retain(|(known, _)| *known != point);
        self.outlooks.push((point, outlook));
    }

    /// What is forecast of a point's whole run, once it was played.
    pub fn outlook(&self, point: &Point) -> Option<&Outlook> {
        self.outlooks.iter().find(|(known, _)| known == point).map(|(_, outlook)| outlook)
    }

    /// Tells what other ways would do to a point's whole run.
    pub fn remedy(&mut self, point: Point, found: RunRemedies) {
        self.remedies.retain(|(known, _)| *known != point);
        self.remedies.push((point, found));
    }

    /// What other ways would do to a point's whole run, once they were played.
    pub fn remedies(&self, point: &Point) -> Option<&RunRemedies> {
        self.remedies.iter().find(|(known, _)| known == point).map(|(_, found)| found)
    }

    /// The points of which other ways were played, in order.
    pub fn remedied(&self) -> impl Iterator<Item = (&Point, &RunRemedies)> {
        self.remedies.iter().map(|(point, found)| (point, found))
    }

    /// Tells what a search for settings of the allocator over a point's whole run came to.
    pub fn tell_tuned(&mut self, point: Point, found: TunedRun) {
        self.tuned.retain(|(known, _)| *known != point);
        self.tuned.push((point, found));
    }

    /// What such a search came to, once it was made.
    pub fn tuned(&self, point: &Point) -> Option<&TunedRun> {
        self.tuned.iter().find(|(known, _)| known == point).map(|(_, found)| found)
    }

    /// Whether the forecast of a point's whole run rules it out.
    pub fn is_ruled_out(&self, point: &Point) -> bool {
        self.outlook(point).is_some_and(|outlook| outlook.breach.is_some())
    }

    /// The probe at a point, with samples as the data gives them.
    pub fn probed(&self, point: &Point) -> Option<&JudgedTrial> {
        self.find(point, |spec| spec.is_probe() && spec.sample_size.is_none())
    }

    /// The probe at a point and a size of all samples.
    pub fn shape_probed(&self, point: &Point, sample_size: SampleSize) -> Option<&JudgedTrial> {
        self.find(point, |spec| spec.is_probe() && spec.sample_size == Some(sample_size))
    }

    fn find(&self, point: &Point, is_meant: impl Fn(&TrialSpec) -> bool) -> Option<&JudgedTrial> {
        self.trials.iter().rev().find(|trial| trial.record.spec.point == *point && is_meant(&trial.record.spec))
    }

    /// The trial of a point's loader alone.
    pub fn throughput(&self, point: &Point) -> Option<&JudgedTrial> {
        self.find(point, TrialSpec::is_throughput)
    }

    /// The soak of a point.
    pub fn soaked(&self, point: &Point) -> Option<&JudgedTrial> {
        self.find(point, TrialSpec::is_soak)
    }
}

/// What a strategy wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// Run this.
    Run {
        /// The point.
        point: Point,
        /// Why.
        purpose: Purpose,
    },
    /// Record a tiny batch whose samples all have one size.
    ProbeShape {
        /// The point.
        point: Point,
        /// The size.
        sample_size: SampleSize,
    },
    /// Play the whole run of this point to the model of the allocator, and tell what came of it.
    Play {
        /// The point.
        point: Point,
    },
    /// Search for settings of the allocator by playing the whole run of this point, which has the program's own, under one
    /// after another, and tell what came of it.
    TuneAllocator {
        /// The point.
        point: Point,
    },
    /// Nothing more: the search is over.
    Finished(Conclusion),
}

/// How a search ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Conclusion {
    /// This point passed its soak.
    Safe(Point),
    /// Every candidate broke a rule.
    NoSafePoint,
    /// The smallest trial failed for a reason that no batch size cures.
    WorkloadFails,
}

/// A point that a strategy ruled out without running it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Skip {
    /// Which.
    pub point: Point,
    /// Why, for people.
    pub reason: String,
}

/// Decides which trial runs next.
///
/// [`ask`](Strategy::ask) is called again after every finished trial with the grown history, and must give the same
/// answer for the same history and knowledge.
pub trait Strategy {
    /// The next trial, or the conclusion.
    fn ask(&mut self, history: &History, knowledge: &dyn Knowledge) -> Ask;

    /// What else is worth running now that these trials, which this strategy has asked for or will, have begun and are not
    /// told yet; `None` where everything depends on how they end.
    ///
    /// It is a hint and decides nothing: a study is told the trials that [`ask`](Strategy::ask) asks for, in that order.
    /// So it may only name what `ask` is going to ask for, however the others end, or else a trial is wasted. Like `ask`
    /// it gives the same answer for the same arguments, and unlike `ask` it rules nothing out.
    fn ask_while(&mut self, _history: &History, _knowledge: &dyn Knowledge, _under_way: &[Ask]) -> Option<Ask> {
        None
    }

    /// The points ruled out since the last call.
    fn skipped(&mut self) -> Vec<Skip> {
        Vec::new()
    }
}

/// The registry: the strategy of a plan, for a process that may run on so many processors.
pub fn strategy(plan: &crate::config::Plan, cpus: usize) -> Box<dyn Strategy> {
    let space = Space::new(plan).on(cpus);
    match plan.search.strategy {
        StrategyKind::Staged => Box::new(staged::Staged::new(space)),
        StrategyKind::Grid => Box::new(grid::Grid::new(space)),
    }
}

#[cfg(test)]
mod contract;
#[cfg(test)]
pub(crate) mod machine;
#[cfg(test)]
pub(crate) mod scripted;
