//! What a journal says of its study, in the form that the figures take it.
//!
//! The plan in a journal is a JSON value and may be another version's, so a key that is not there is no error: the
//! figure that needs it does without.

use serde_json::Value;

use super::impossible::{Impossible, of_curve, of_point, of_remedies, of_run, of_search, of_trial, of_unfinished};
use crate::device::DeviceFacts;
use crate::memory::FragmentationMetric;
use crate::memory::blocks::BlockMap;
use crate::memory::forecast::curve::Curve;
use crate::report::Recommendation;
use crate::report::recommendation::Recommended;
use crate::search::JudgedTrial;
use crate::trial::journal::{Contents, Entry, Header};
use crate::trial::outlook::PlayedRun;
use crate::trial::remedies::RunRemedies;
use crate::trial::tuned_run::{TriedSetting, TunedRun};
use crate::trial::{Outlook, Point, TrialRecord, TrialSpec, UnfinishedPlay};

/// A study.
pub(super) struct Study<'a> {
    pub(super) header: &'a Header,
    pub(super) facts: Option<&'a DeviceFacts>,
    /// How often the device was opened: once, and again for each resumption.
    pub(super) starts: usize,
    pub(super) trials: Vec<JudgedTrial>,
    /// Trials that began and have no end.
    pub(super) unfinished: Vec<&'a TrialSpec>,
    pub(super) skips: Vec<(&'a Point, &'a str)>,
    pub(super) recommendation: Option<Recommendation>,
    /// Whether the last recommendation is one that this version cannot read.
    pub(super) is_unreadable: bool,
    pub(super) conclusion: Option<&'a str>,
    pub(super) curve: Option<&'a Curve>,
    pub(super) map: Option<(&'a Point, &'a BlockMap)>,
    /// Whole runs that were forecast, in order.
    pub(super) whole_runs: Vec<(&'a Point, &'a Outlook, &'a [PlayedRun])>,
    /// What other shapes would do to them, in order.
    pub(super) remedies: Vec<(&'a Point, &'a RunRemedies)>,
    /// Searches for settings of the allocator over such a run, in order.
    pub(super) tuned: Vec<(&'a Point, &'a TunedRun, &'a [TriedSetting])>,
    /// Plays of such a run that were left in the middle, and have no result.
    pub(super) unfinished_plays: Vec<&'a UnfinishedPlay>,
    pub(super) unknown_entries: usize,
    /// What the journal says and cannot be, each in a sentence.
    pub(super) left_out: Vec<String>,
}

/// Whether an entry says what can be.
fn check(entry: &Entry) -> Result<(), Impossible> {
    match entry {
        Entry::TrialStarted { spec } => of_point(&spec.point),
        Entry::TrialEnded { record, .. } => of_trial(record),
        Entry::Skipped { point, .. } | Entry::BlockMap { point, .. } => of_point(point),
        Entry::WholeRun { point, outlook, runs } => of_run(point, outlook, runs),
        Entry::Remedies { point, remedies } => of_remedies(point, remedies),
        Entry::AllocatorTuned { point, found, .. } => of_search(point, found),
        Entry::PlayUnfinished(left) => of_unfinished(left),
        Entry::Forecast { curve } => of_curve(curve),
        Entry::Device { .. } | Entry::Recommended { .. } | Entry::Concluded { .. } => Ok(()),
    }
}

impl<'a> Study<'a> {
    pub(super) fn new(contents: &'a Contents) -> Self {
        let mut study = Self {
            header: &contents.header,
            facts: None,
            starts: 0,
            trials: Vec::new(),
            unfinished: Vec::new(),
            skips: Vec::new(),
            recommendation: None,
            is_unreadable: false,
            conclusion: None,
            curve: None,
            map: None,
            whole_runs: Vec::new(),
            remedies: Vec::new(),
            tuned: Vec::new(),
            unfinished_plays: contents.unfinished_plays(),
            unknown_entries: contents.unknown_entries,
            left_out: Vec::new(),
        };
        for entry in &contents.entries {
            match check(entry) {
                Ok(()) => study.read(entry),
                Err(why) => study.leave_out(entry, &why),
            }
        }
        study
    }

    fn read(&mut self, entry: &'a Entry) {
        match entry {
            Entry::Device { facts } => {
                self.facts = Some(facts);
                self.starts += 1;
            }
            Entry::TrialStarted { spec } => {
                // Whatever was concluded before, the study goes on.
                self.conclusion = None;
                self.unfinished.push(spec);
            }
            Entry::TrialEnded { record, verdict } => {
                self.unfinished.retain(|spec| spec.id != record.spec.id);
                let verdict = serde_json::from_value(verdict.clone()).unwrap_or_default();
                self.trials.push(JudgedTrial { record: record.clone(), verdict });
            }
            // A resumed study says again what it ruled out.
            Entry::Skipped { point, reason } => {
                if !self.skips.contains(&(point, reason.as_str())) {
                    self.skips.push((point, reason));
                }
            }
            Entry::Recommended { recommendation } => {
                let read = serde_json::from_value::<Recommendation>(recommendation.clone());
                self.is_unreadable = read.is_err();
                self.recommendation = read.ok();
                if let Some(Err(why)) = self.recommendation.as_ref().map(Recommendation::validate) {
                    self.left_out.push(format!("a recommendation: {why}"));
                    self.recommendation = None;
                }
            }
            Entry::Forecast { curve } => self.curve = Some(curve),
            Entry::BlockMap { point, map } => self.map = Some((point, map)),
            // The soak's check says what came of it.
            // A point that was played again is known by its last play.
            Entry::WholeRun { point, outlook, runs } => {
                self.whole_runs.retain(|(known, ..)| *known != point);
                self.whole_runs.push((point, outlook, runs));
            }
            Entry::Remedies { point, remedies } => {
                self.remedies.retain(|(known, _)| *known != point);
                self.remedies.push((point, remedies));
            }
            Entry::AllocatorTuned { point, found, tried } => {
                self.tuned.retain(|(known, ..)| *known != point);
                self.tuned.push((point, found, tried));
            }
            // Known by then, since what comes later ends it.
            Entry::PlayUnfinished(_) => {}
            Entry::Concluded { status } => self.conclusion = Some(status),
        }
    }

    fn leave_out(&mut self, entry: &Entry, why: &Impossible) {
        if let Entry::TrialEnded { record, .. } = entry {
            self.unfinished.retain(|spec| spec.id != record.spec.id);
        }
        let what = match entry {
            Entry::TrialStarted { spec } | Entry::TrialEnded { record: TrialRecord { spec, .. }, .. } => {
                format!("trial {}", spec.id)
            }
            Entry::Forecast { .. } => "the forecast".to_owned(),
            Entry::BlockMap { .. } => "the map of the blocks".to_owned(),
            Entry::WholeRun { .. } => "a whole run".to_owned(),
            Entry::Remedies { .. } => "other ways to make a run".to_owned(),
            Entry::AllocatorTuned { .. } => "a search for settings of the allocator".to_owned(),
            Entry::PlayUnfinished(left) => {
                self.unfinished_plays.retain(|known| *known != left);
                "a play that was left".to_owned()
            }
            _ => "a point that was skipped".to_owned(),
        };
        let remark = format!("{what}: {why}");
        // A trial begins and ends.
        if !self.left_out.contains(&remark) {
            self.left_out.push(remark);
        }
    }

    /// A value of the plan.
    pub(super) fn plan(&self, pointer: &str) -> Option<&'a Value> {
        self.header.plan.pointer(pointer).filter(|value| !value.is_null())
    }

    pub(super) fn name(&self) -> &'a str {
        self.plan("/name").and_then(Value::as_str).unwrap_or("a study without a name")
    }

    pub(super) fn recommended(&self) -> Option<&Recommended> {
        self.recommendation.as_ref()?.recommended.as_ref()
    }

    /// C.
    pub(super) fn limit_bytes(&self) -> Option<u64> {
        self.facts.map(|facts| facts.limit_bytes).filter(|limit| *limit > 0)
    }

    /// The highest rate that is allowed, and of which metric.
    pub(super) fn threshold(&self) -> Option<f64> {
        self.plan("/safety/fragmentation_threshold").and_then(Value::as_f64)
    }

    pub(super) fn metric(&self) -> FragmentationMetric {
        let metric = self.plan("/safety/fragmentation_metric");
        metric.and_then(|metric| serde_json::from_value(metric.clone()).ok()).unwrap_or_default()
    }

    pub(super) fn metric_name(&self) -> &'static str {
        match self.metric() {
            FragmentationMetric::Peak => "peak",
            FragmentationMetric::External => "external",
            FragmentationMetric::Reserved => "reserved",
        }
    }

    /// Whether a point is the answer.
    pub(super) fn is_answer(&self, point: &Point) -> bool {
        let own = self.facts.and_then(|facts| facts.alloc_conf.as_ref());
        self.recommended().is_some_and(|answer| {
            (point.batch_size, point.accumulation_steps, point.loader_workers)
                == (answer.batch_size, answer.accumulation_steps, answer.loader_workers)
                && (point.prefetch_depth, point.device_prefetch) == (answer.prefetch_depth, answer.device_prefetch)
                && point.alloc_conf.as_ref().or(own) == answer.allocator.conf.as_ref()
        })
    }

    /// The run that speaks for the answer: its soak, else its measuring trial; without an answer the longest series there
    /// is.
    pub(super) fn main_trial(&self) -> Option<&JudgedTrial> {
        let of_answer = || self.trials.iter().rev().filter(|trial| self.is_answer(&trial.record.spec.point));
        let soak = of_answer().find(|trial| trial.record.spec.is_soak());
        let measured = || of_answer().find(|trial| trial.record.spec.is_measuring());
        let longest = || self.trials.iter().max_by_key(|trial| trial.record.samples.len());
        soak.or_else(measured).or_else(longest)
    }

    /// Everything that warns, each once, in the order in which it came up.
    pub(super) fn warnings(&self) -> Vec<&str> {
        let mut warnings: Vec<&str> = Vec::new();
        for warning in self.trials.iter().flat_map(|trial| &trial.record.warnings) {
            if !warnings.contains(&warning.as_str()) {
                warnings.push(warning);
            }
        }
        warnings
    }
}
