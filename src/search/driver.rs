//! The driver: ask, run, journal, judge, tell, emit.
//!
//! It owns everything that a strategy must not touch: the executor, the journal, the clock, the recommendation file
//! and the reporter. A finished trial is in the journal before anything else is done with it, and the recommendation
//! is rewritten whenever a trial changes it, so that an interrupted study leaves a valid answer.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use super::knowledge::Knowledge;
use super::knowledge::probed::Probed;
use super::recommend::{Status, standing};
use super::{Ask, Conclusion, History, JudgedTrial, Skip, Space, Strategy, Verdict, rules, strategy};
use crate::config::Plan;
use crate::config::plan::TrialPlan;
use crate::device::DeviceFacts;
use crate::progress::{Event, Reporter};
use crate::report::Recommendation;
use crate::report::recommendation::ReportError;
use crate::text::with_causes;
use crate::trial::journal::{Entry, Journal, JournalError};
use crate::trial::spec::ProbeSchedule;
use crate::trial::statistics::FEWEST_SAMPLES;
use crate::trial::{
    Executor, ExecutorError, Interrupt, Observation, Outcome, Outlook, Point, Purpose, TrialId, TrialRecord, TrialSpec,
};

mod answer;
pub(super) mod probes;
mod whole_run;

/// Rounds of the loader alone that are measured at least.
const FEWEST_ROUNDS: u32 = 4;

/// Why a study could not go on.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// No trial can be run.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    /// The budget ended before the device was open.
    #[error("the budget ended before the device was open (hint: a larger `--budget`)")]
    BudgetEnded,
    /// The journal cannot be opened.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The recommendation cannot be written.
    #[error(transparent)]
    Report(#[from] ReportError),
}

/// How a study ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// A point passed its soak.
    Safe,
    /// Every candidate broke a rule.
    NoSafePoint,
    /// The smallest trial failed for a reason that no batch size cures; how, in a sentence.
    WorkloadFails(String),
    /// The budget ended first.
    BudgetEnded,
    /// The user asked to stop.
    Interrupted,
}

/// The result of a study.
#[derive(Debug)]
pub struct StudyResult {
    /// How it ended.
    pub end: End,
    /// The recommendation as it was written last.
    pub recommendation: Recommendation,
    /// Why it could not be written in the end, where it could not: what was found is worth showing all the same.
    pub unwritten: Option<ReportError>,
    /// Every finished trial.
    pub history: History,
}

/// What a study runs with.
pub struct Study<'a> {
    /// What to search.
    pub plan: &'a Plan,
    /// What runs the trials.
    pub executor: &'a mut dyn Executor,
    /// Where everything is recorded.
    pub journal: &'a mut Journal,
    /// Who follows.
    pub reporter: &'a mut dyn Reporter,
    /// The recommendation file.
    pub output: PathBuf,
    /// The user's wish to stop.
    pub interrupt: Interrupt,
    /// Trials that the journal already holds.
    pub finished: Vec<TrialRecord>,
    /// Runs whose play it holds.
    pub foretold: Vec<(Point, Outlook)>,
    /// When the study began, RFC 3339.
    pub started: String,
}

impl Study<'_> {
    /// Runs the study to its end.
    pub fn run(self) -> Result<StudyResult, DriverError> {
        // Before any trial is run for it.
        Recommendation::check_writable(&self.output)?;
        self.reporter.report(&Event::StudyStarted {
            name: self.plan.name.clone(),
            target_batch_size: self.plan.target.batch_size,
            strategy: format!("{:?}", self.plan.search.strategy).to_lowercase(),
            study: self.journal.path().display().to_string(),
            resumed_trials: self.finished.len(),
        });
        match self.executor.start() {
            Ok(facts) => Running::new(self, facts).run(),
            Err(ExecutorError::Cancelled) if !self.interrupt.requested() => Err(DriverError::BudgetEnded),
            Err(error) => Err(error.into()),
        }
    }
}

/// A study whose device is open.
struct Running<'a> {
    study: Study<'a>,
    facts: DeviceFacts,
    space: Space,
    strategy: Box<dyn Strategy>,
    history: History,
    knowledge: Probed,
    /// The highest number of a trial so far, in the journal too.
    last_id: u32,
    skipped: Vec<Skip>,
    clock: Instant,
    written: Option<(Status, Option<Point>)>,
    journal_failed: bool,
    /// Warnings that were shown: every trial of a workload gives the same ones.
    warned: BTreeSet<String>,
}

impl<'a> Running<'a> {
    fn new(mut study: Study<'a>, facts: DeviceFacts) -> Self {
        let finished = std::mem::take(&mut study.finished);
        let foretold = std::mem::take(&mut study.foretold);
        let mut running = Self {
            space: Space::new(study.plan),
            strategy: strategy(study.plan, facts.cpus),
            knowledge: probes::knowledge(study.plan, &facts),
            last_id: finished.iter().map(|record| record.spec.id.0).max().unwrap_or(0),
            facts,
            history: History::default(),
            skipped: Vec::new(),
            clock: Instant::now(),
            written: None,
            journal_failed: false,
            warned: BTreeSet::new(),
            study,
        };
        for (point, outlook) in foretold {
            running.foretold(point, outlook);
        }
        for record in finished {
            // A probe whose recording is lost has to run again.
            if running.learn(&record) {
                let verdict = running.judge(&record);
                running.history.tell(JudgedTrial { record, verdict });
            }
        }
        running.report_forecast();
        running
    }

    /// What the safety rules say of a trial, where they say anything.
    fn judge(&self, record: &TrialRecord) -> Verdict {
        if record.spec.is_judged() { rules::judge(record, &self.study.plan.safety) } else { Verdict::default() }
    }

    fn run(mut self) -> Result<StudyResult, DriverError> {
        self.note(&Entry::Device { facts: self.facts.clone() });
        self.study.reporter.report(&Event::DeviceReady { facts: self.facts.clone() });
        let end = loop {
            let ask = self.strategy.ask(&self.history, &self.knowledge as &dyn Knowledge);
            self.report_skips();
            match ask {
                Ask::Finished(conclusion) => break self.conclude(&conclusion),
                _ if self.study.interrupt.requested() => break End::Interrupted,
                _ if self.budget_is_spent() => break End::BudgetEnded,
                Ask::Play { point } => {
                    if let Some(end) = self.play(point) {
                        break end;
                    }
                }
                Ask::Run { point, purpose } => {
                    if let Some(end) = self.trial(self.spec(point, purpose, None))? {
                        break end;
                    }
                }
                Ask::ProbeLength { point, length } => {
                    if let Some(end) = self.trial(self.spec(point, Purpose::Probe, Some(length)))? {
                        break end;
                    }
                }
            }
        };
        Ok(self.finish(end))
    }

    /// Runs one trial. Gives the study's end if the trial was cut short.
    fn trial(&mut self, spec: TrialSpec) -> Result<Option<End>, DriverError> {
        self.last_id = spec.id.0;
        self.note(&Entry::TrialStarted { spec: spec.clone() });
        self.study.reporter.report(&Event::TrialStarted { spec: spec.clone() });
        let reporter = &mut *self.study.reporter;
        let warned = &mut self.warned;
        let mut total = spec.total_steps();
        let record = self.study.executor.run(&spec, &mut |observation| {
            if let Observation::Warning(text) = &observation
                && !warned.insert(text.clone())
            {
                return;
            }
            if let Some(event) = event_of(observation, &mut total) {
                reporter.report(&event);
            }
        })?;
        if record.outcome == Outcome::Cancelled {
            // A trial that was cut short says nothing of its point: it is not told, and runs again on resume.
            return Ok(Some(if self.study.interrupt.requested() { End::Interrupted } else { End::BudgetEnded }));
        }
        self.finished(record);
        Ok(None)
    }

    fn finished(&mut self, record: TrialRecord) {
        let record = self.with_outlook(record.canonical());
        let verdict = self.judge(&record);
        let value = serde_json::to_value(&verdict).unwrap_or_default();
        self.note(&Entry::TrialEnded { record: record.clone(), verdict: value });
        self.study.reporter.report(&Event::TrialEnded { record: Box::new(record.clone()), verdict: verdict.clone() });
        // A probe whose trace cannot be read has run all the same: asking for it again would not end.
        self.learn(&record);
        let is_probe = record.spec.is_probe() && !record.spec.is_length_probe();
        self.history.tell(JudgedTrial { record, verdict });
        if is_probe {
            self.report_forecast();
        }
        let standing = standing(&self.history, &self.space);
        let now = (standing.status(), standing.point().cloned());
        if now.1.is_some() && self.written.as_ref() != Some(&now) {
            // A disk that is full now need not be at the end, and trials are dear: only the last write must succeed.
            if let Err(error) = self.write() {
                self.study.reporter.report(&Event::Warning { text: with_causes(&error) });
            }
        }
    }

    fn spec(&self, point: Point, purpose: Purpose, length: Option<usize>) -> TrialSpec {
        let plan = &self.study.plan;
        let spec = TrialSpec {
            id: TrialId(self.last_id.saturating_add(1)),
            purpose,
            point,
            warmup_steps: 0,
            steps: 0,
            sample_every: plan.safety.sample_every,
            length,
        };
        let update = u32::try_from(spec.accumulation()).unwrap_or(1);
        let (warmup_steps, steps) = match purpose {
            Purpose::Probe => (update, (ProbeSchedule::of(&spec).updates.saturating_sub(1)).saturating_mul(update)),
            Purpose::Soak => (plan.trial.warmup_steps, plan.trial.soak_steps),
            Purpose::Throughput => loader_batches(&spec.point, plan.trial),
            // A program of the user's own is told its steps at the start and cannot be asked for more, so it gets as many
            // whole updates as any trust in its times needs.
            _ if plan.command().is_some() => {
                let fewest = u32::try_from(FEWEST_SAMPLES).unwrap_or(u32::MAX).saturating_mul(update);
                (plan.trial.warmup_steps, plan.trial.steps.max(fewest))
            }
            _ => (plan.trial.warmup_steps, plan.trial.steps),
        };
        TrialSpec { warmup_steps, steps, ..spec }
    }

    fn budget_is_spent(&self) -> bool {
        let budget = &self.study.plan.budget;
        self.clock.elapsed() >= budget.time || self.history.trials().len() >= budget.trials as usize
    }

    fn report_skips(&mut self) {
        for skip in self.strategy.skipped() {
            self.note(&Entry::Skipped { point: skip.point.clone(), reason: skip.reason.clone() });
            self.study.reporter.report(&Event::Skipped { point: skip.point.clone(), reason: skip.reason.clone() });
            self.skipped.push(skip);
        }
    }

    /// Writes to the journal. A journal that cannot be written must not lose the study that is running: the user is
    /// warned once, and the answer is still found and written.
    fn note(&mut self, entry: &Entry) {
        if let Err(error) = self.study.journal.append(entry) {
            if !self.journal_failed {
                let text = format!("{}; the study goes on without it", with_causes(&error));
                self.study.reporter.report(&Event::Warning { text });
            }
            self.journal_failed = true;
        }
    }

    fn conclude(&self, conclusion: &Conclusion) -> End {
        match conclusion {
            // The end is what the file says, whatever else a resumed journal made the strategy believe.
            Conclusion::Safe(_) if standing(&self.history, &self.space).status() == Status::Safe => End::Safe,
            Conclusion::Safe(_) | Conclusion::NoSafePoint => End::NoSafePoint,
            Conclusion::WorkloadFails => {
                let reason = self.history.trials().last().map(|trial| explain(&trial.record.outcome));
                End::WorkloadFails(reason.unwrap_or_default())
            }
        }
    }
}

/// Batches of the warm-up and measured ones of the loader alone: whole rounds of one batch of each worker, see
/// [`loader_round`](TrialSpec::loader_round), as many as a trial has steps.
fn loader_batches(point: &Point, trial: TrialPlan) -> (u32, u32) {
    let round = u32::try_from(point.loader_workers).unwrap_or(u32::MAX).max(1);
    let whole = |batches: u32| batches.max(1).checked_next_multiple_of(round).unwrap_or(u32::MAX);
    (whole(trial.warmup_steps), whole(trial.steps.max(round.saturating_mul(FEWEST_ROUNDS))))
}

/// What an observation is to the user; `total` follows the length of the trial.
fn event_of(observation: Observation, total: &mut u32) -> Option<Event> {
    Some(match observation {
        Observation::Step { step, loss, times } => {
            Event::Step { step, total: *total, loss: Some(loss).filter(|loss| loss.is_finite()), times }
        }
        Observation::Extended { total: longer } => {
            *total = longer;
            return None;
        }
        Observation::Sample(sample) => Event::Sample { sample },
        Observation::Warning(text) => Event::Warning { text },
        // The worker's log is kept for the outcome of a crash; while all is well it is noise.
        Observation::Log(_) => return None,
    })
}

/// An outcome with the last lines of the worker's log, where they are all there is to go by.
fn explain(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Crashed { log, .. } if !log.is_empty() => format!("{outcome}; its last lines were:\n{log}"),
        _ => outcome.to_string(),
    }
}

#[cfg(test)]
mod tests;
