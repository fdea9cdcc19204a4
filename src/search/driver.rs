//! The driver: ask, run, journal, judge, tell, emit.
//!
//! It owns everything that a strategy must not touch: the executor, the journal, the clock, the recommendation file
//! and the reporter. A finished trial is in the journal before anything else is done with it, and the recommendation
//! is rewritten whenever a trial changes it, so that an interrupted study leaves a valid answer.
//!
//! On several devices each has an executor in a thread of its own ([`crew`]); trials run side by side and are told in the
//! order in which one device would have run them ([`turns`]).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use super::knowledge::Knowledge;
use super::knowledge::probed::Probed;
use super::recommend::{Standing, Status, standing};
use super::{Ask, Conclusion, History, JudgedTrial, Skip, Space, Strategy, Verdict, rules, strategy};
use crate::config::Plan;
use crate::config::plan::TrialPlan;
use crate::data::SampleSize;
use crate::device::DeviceFacts;
use crate::progress::{Event, Reporter};
use crate::report::Recommendation;
use crate::report::recommendation::ReportError;
use crate::text::with_causes;
use crate::trial::journal::{Entry, Journal, JournalError};
use crate::trial::remedies::RunRemedies;
use crate::trial::spec::ProbeSchedule;
use crate::trial::statistics::FEWEST_SAMPLES;
use crate::trial::{
    ExecutorError, Interrupt, Observation, Outcome, Outlook, Point, Purpose, TrialId, TrialRecord, TrialSpec, TunedRun,
    UnfinishedPlay,
};

mod answer;
mod crew;
pub(super) mod probes;
mod remedies;
mod tuning;
mod turns;
mod whole_run;

use crew::Crew;
pub use crew::{Slot, Slots};
use turns::{Origin, Waiting};

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
    /// A device has no thread to run on.
    #[error("cannot start a thread for a device")]
    Thread(#[source] std::io::Error),
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
    /// The launcher started no worker in time; what it said, in a sentence.
    NotStarted(String),
    /// The budget ended first.
    BudgetEnded,
    /// The soak passed on the ranks that were seen, and so many never were.
    RanksUnseen(usize),
    /// The soak passed, and nothing shows that the program took the batch size.
    BatchSizeUnseen,
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
    /// What runs the trials: one executor a device.
    pub slots: Slots<'a>,
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
    /// Other ways to make them that it holds.
    pub remedied: Vec<(Point, RunRemedies)>,
    /// Searches for settings of the allocator whose result it holds.
    pub tuned: Vec<(Point, TunedRun)>,
    /// Plays that it says were left in the middle.
    pub unfinished: Vec<UnfinishedPlay>,
    /// When the study began, RFC 3339.
    pub started: String,
}

impl Study<'_> {
    /// Runs the study to its end.
    pub fn run(mut self) -> Result<StudyResult, DriverError> {
        // Before any trial is run for it.
        Recommendation::check_writable(&self.output)?;
        self.reporter.report(&Event::StudyStarted {
            name: self.plan.name.clone(),
            target_batch_size: self.plan.target.batch_size,
            strategy: format!("{:?}", self.plan.search.strategy).to_lowercase(),
            study: self.journal.path().display().to_string(),
            resumed_trials: self.finished.len(),
        });
        let slots = self.slots.take();
        std::thread::scope(|scope| {
            let mut crew = Crew::start(scope, slots)?;
            let warnings = match crew.open() {
                Err(ExecutorError::Cancelled) if !self.interrupt.requested() => return Err(DriverError::BudgetEnded),
                opened => opened?,
            };
            for text in warnings {
                self.reporter.report(&Event::Warning { text });
            }
            // Until here nothing has run, and what an earlier study found is not to be lost for that.
            self.journal.take_place()?;
            let facts = crew.weakest().and_then(|index| crew.facts(index)).cloned().ok_or_else(crew::lost)?;
            Running::new(self, crew, facts).run()
        })
    }
}

/// A study whose devices are open.
struct Running<'a> {
    study: Study<'a>,
    crew: Crew,
    /// The weakest device, which the answer holds for.
    facts: DeviceFacts,
    /// All devices in use at the start.
    devices: Vec<DeviceFacts>,
    /// What is to be said of them in the recommendation.
    device_notes: Vec<String>,
    /// Trials that have ended and not had their turn.
    waiting: Waiting,
    /// Trials that a device has failed in: when another fails too, it is the trial's doing.
    doubted: Vec<Ask>,
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
    fn new(mut study: Study<'a>, crew: Crew, facts: DeviceFacts) -> Self {
        let finished = std::mem::take(&mut study.finished);
        let foretold = std::mem::take(&mut study.foretold);
        let remedied = std::mem::take(&mut study.remedied);
        let tuned = std::mem::take(&mut study.tuned);
        let mut running = Self {
            space: Space::new(study.plan),
            strategy: strategy(study.plan, crew.weakest().map_or(1, |index| crew.cpus_of_worker(index))),
            knowledge: probes::knowledge(study.plan, &facts),
            last_id: finished.iter().map(|record| record.spec.id.0).max().unwrap_or(0),
            device_notes: crew.notes(),
            devices: crew.all_facts().cloned().collect(),
            facts,
            crew,
            waiting: Waiting::default(),
            doubted: Vec::new(),
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
        for (point, found) in remedied {
            running.remedied(point, found);
        }
        for (point, found) in tuned {
            running.history.tell_tuned(point, found);
        }
        for record in finished {
            if let Some(outlook) = &record.outlook {
                running.foretold(record.spec.point.clone(), outlook.clone());
            }
            running.waiting.add(record, Origin::Journal);
        }
        running
    }

    /// What the safety rules say of a trial, where they say anything.
    fn judge(&self, record: &TrialRecord) -> Verdict {
        if record.spec.is_judged() { rules::judge(record, &self.study.plan.safety) } else { Verdict::default() }
    }

    fn run(mut self) -> Result<StudyResult, DriverError> {
        for facts in self.devices.clone() {
            self.study.reporter.report(&Event::DeviceReady { facts });
        }
        self.note(&Entry::Device { facts: self.facts.clone() });
        let end = self.search();
        self.dismiss();
        let end = end?;
        self.remedy_answer(&end);
        Ok(self.finish(end))
    }

    fn search(&mut self) -> Result<End, DriverError> {
        let end = self.search_on()?;
        // What is proved stays so: all that the budget left out is how it compares with the program's own settings.
        let is_proved = standing(&self.history, &self.space).status() == Status::Safe;
        Ok(if end == End::BudgetEnded && is_proved { End::Safe } else { end })
    }

    fn search_on(&mut self) -> Result<End, DriverError> {
        loop {
            let ask = self.strategy.ask(&self.history, &self.knowledge as &dyn Knowledge);
            self.report_skips();
            if self.tell_waiting(&ask) {
                continue;
            }
            match ask {
                Ask::Finished(conclusion) => return Ok(self.conclude(&conclusion)),
                _ if self.study.interrupt.requested() => return Ok(End::Interrupted),
                _ if self.budget_is_spent() => return Ok(End::BudgetEnded),
                Ask::Play { point } => {
                    if let Some(end) = self.play(point) {
                        return Ok(end);
                    }
                }
                Ask::TuneAllocator { point } => {
                    if let Some(end) = self.tune(point) {
                        return Ok(end);
                    }
                }
                Ask::Run { .. } | Ask::ProbeShape { .. } => {
                    if let Some(end) = self.run_trial(&ask)? {
                        return Ok(end);
                    }
                }
            }
        }
    }

    /// Tells the strategy of a trial, and the user of what follows from it. `false` where it has to run again: a probe of
    /// an earlier run whose recording is lost.
    fn tell(&mut self, record: TrialRecord, origin: Origin) -> bool {
        // One that has just run has run, readable or not: asking for it again would not end.
        if !self.learn(&record) && origin == Origin::Journal {
            return false;
        }
        let verdict = self.judge(&record);
        let is_probe = record.spec.is_probe() && !record.spec.is_shape_probe();
        self.history.tell(JudgedTrial { record, verdict });
        if is_probe {
            self.report_forecast();
        }
        let standing = standing(&self.history, &self.space);
        let now = (standing.status(), standing.point().cloned());
        if origin == Origin::Run && now.1.is_some() && self.written.as_ref() != Some(&now) {
            // A disk that is full now need not be at the end, and trials are dear: only the last write must succeed.
            if let Err(error) = self.write() {
                self.study.reporter.report(&Event::Warning { text: with_causes(&error) });
            }
        }
        true
    }

    fn spec(&self, point: Point, purpose: Purpose, sample_size: Option<SampleSize>) -> TrialSpec {
        let plan = &self.study.plan;
        let spec = TrialSpec {
            id: TrialId(self.last_id.saturating_add(1)),
            purpose,
            point,
            warmup_steps: 0,
            steps: 0,
            sample_every: plan.safety.sample_every,
            sample_size,
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
            Conclusion::Safe(_) => match standing(&self.history, &self.space) {
                Standing::Safe(_) => End::Safe,
                Standing::Unverified(trial) if !trial.unseen_ranks().is_empty() => {
                    End::RanksUnseen(trial.unseen_ranks().len())
                }
                Standing::Unverified(trial) if trial.is_safe() && !trial.is_fully_seen() => End::BatchSizeUnseen,
                Standing::Unverified(_) | Standing::None => End::NoSafePoint,
            },
            Conclusion::NoSafePoint => End::NoSafePoint,
            Conclusion::WorkloadFails => {
                let reason = self.history.trials().last().map(|trial| explain(&trial.record));
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
fn event_of(observation: Observation, total: &mut u32, device: Option<String>) -> Option<Event> {
    Some(match observation {
        Observation::Step { step, loss, times } => {
            Event::Step { step, total: *total, loss: Some(loss).filter(|loss| loss.is_finite()), times, device }
        }
        Observation::Extended { total: longer } => {
            *total = longer;
            return None;
        }
        Observation::Sample(sample) => Event::Sample { sample, device },
        Observation::Warning(text) => Event::Warning { text },
        // The worker's log is kept for the outcome of a crash; while all is well it is noise.
        Observation::Log(_) => return None,
    })
}

/// An outcome with the last lines of the worker's log, where they are all there is to go by.
fn explain(record: &TrialRecord) -> String {
    let ending = record.ending();
    match &record.outcome {
        Outcome::Crashed { log, .. } | Outcome::NotStarted { log, .. } if !log.is_empty() => {
            format!("{ending}; its last lines were:\n{log}")
        }
        _ => ending,
    }
}

#[cfg(test)]
mod allocator_tests;
#[cfg(test)]
mod side_by_side;
#[cfg(test)]
mod tests;
