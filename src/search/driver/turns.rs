//! Whose turn it is: trials run side by side and are told one after the other.
//!
//! What the strategy asks for next is a pure function of what it was told. So the driver always works on one request: it
//! is told when the trial has ended, and then there is a next one. While that trial runs, free devices run what
//! [`ask_while`](crate::search::Strategy::ask_while) names; such a trial is told when its turn comes, if it has a turn, no
//! matter when it ended. As a processor runs instructions ahead and retires them in order, so a study on many devices
//! has the history that one device gives, trial by trial, and with it the same answer; only the time is another.
//! (On one device the same trials would have been measured by the same steps. What a study costs more is what ran ahead
//! and never had its turn: it is in the journal, the strategy is not told, and the recommendation has a note of it.)
//!
//! A resumed study goes the same way: what its journal holds is what has ended and waits for its turn.

use std::collections::VecDeque;

use super::crew::{self, Job, News};
use super::{DriverError, End, Running, event_of, explain};
use crate::progress::Event;
use crate::search::{Ask, Knowledge};
use crate::text::with_causes;
use crate::trial::journal::Entry;
use crate::trial::{ExecutorError, Observation, Outcome, Purpose, TrialRecord, TrialSpec};

/// Where a trial that waits for its turn comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// It ran in this process.
    Run,
    /// The journal of the study that is resumed.
    Journal,
}

/// Trials that have ended and were not told yet, in the order in which they ended.
#[derive(Debug, Default)]
pub(super) struct Waiting(VecDeque<(TrialRecord, Origin)>);

impl Waiting {
    pub(super) fn add(&mut self, record: TrialRecord, origin: Origin) {
        self.0.push_back((record, origin));
    }

    fn holds(&self, ask: &Ask) -> bool {
        self.0.iter().any(|(record, _)| answers(&record.spec, ask))
    }

    fn take(&mut self, ask: &Ask) -> Option<(TrialRecord, Origin)> {
        let index = self.0.iter().position(|(record, _)| answers(&record.spec, ask))?;
        self.0.remove(index)
    }

    /// Measured trials of this run that have had no turn.
    pub(super) fn measured(&self) -> impl Iterator<Item = &TrialRecord> {
        let of_this_run = self.0.iter().filter(|(_, origin)| *origin == Origin::Run).map(|(record, _)| record);
        of_this_run.filter(|record| record.spec.is_measuring() && record.completed())
    }

    fn asks(&self) -> impl Iterator<Item = Ask> {
        self.0.iter().map(|(record, _)| ask_of(&record.spec))
    }
}

/// Whether a trial is what was asked for. Two that measure the same point are, whatever each was for.
fn answers(spec: &TrialSpec, ask: &Ask) -> bool {
    let kind = |spec: &TrialSpec| (spec.is_soak(), spec.is_probe(), spec.is_throughput());
    match ask {
        Ask::Run { point, purpose } => {
            let asked = (*purpose == Purpose::Soak, *purpose == Purpose::Probe, *purpose == Purpose::Throughput);
            kind(spec) == asked && spec.sample_size.is_none() && spec.point == *point
        }
        Ask::ProbeShape { point, sample_size } => {
            spec.is_probe() && spec.sample_size == Some(*sample_size) && spec.point == *point
        }
        Ask::Play { .. } | Ask::TuneAllocator { .. } | Ask::Finished(_) => false,
    }
}

fn ask_of(spec: &TrialSpec) -> Ask {
    let point = spec.point.clone();
    match spec.sample_size {
        Some(sample_size) => Ask::ProbeShape { point, sample_size },
        None => Ask::Run { point, purpose: spec.purpose },
    }
}

impl Running<'_> {
    /// Tells of what is asked for, if it has ended.
    pub(super) fn tell_waiting(&mut self, ask: &Ask) -> bool {
        while let Some((record, origin)) = self.waiting.take(ask) {
            if self.tell(record, origin) {
                return true;
            }
        }
        false
    }

    /// Runs what is asked for to its end, and beside it whatever may run. Gives the study's end if it was cut short.
    pub(super) fn run_trial(&mut self, ask: &Ask) -> Result<Option<End>, DriverError> {
        loop {
            if self.waiting.holds(ask) {
                return Ok(None);
            }
            let mut runs = self.crew.jobs().any(|job| answers(&job.spec, ask));
            if !runs {
                if self.study.interrupt.requested() {
                    return Ok(Some(End::Interrupted));
                }
                // Where there is no room, what has run ahead makes some.
                runs = self.begin(ask);
            }
            if runs {
                self.begin_ahead();
            }
            if let Some(end) = self.next_end()? {
                return Ok(Some(end));
            }
        }
    }

    /// Gives idle devices what is worth running ahead.
    fn begin_ahead(&mut self) {
        loop {
            let begun = self.crew.jobs().map(|job| job.ask.clone());
            let under_way: Vec<Ask> = begun.chain(self.waiting.asks()).collect();
            let is_full = !self.crew.has_idle();
            if is_full || self.history.trials().len() + under_way.len() >= self.study.plan.budget.trials as usize {
                return;
            }
            let next = self.strategy.ask_while(&self.history, &self.knowledge as &dyn Knowledge, &under_way);
            match next {
                Some(ask) if !under_way.contains(&ask) && self.begin(&ask) => {}
                _ => return,
            }
        }
    }

    /// Begins a trial, if there is room for it.
    fn begin(&mut self, ask: &Ask) -> bool {
        let (point, purpose, sample_size) = match ask.clone() {
            Ask::Run { point, purpose } => (point, purpose, None),
            Ask::ProbeShape { point, sample_size } => (point, Purpose::Probe, Some(sample_size)),
            Ask::Play { .. } | Ask::TuneAllocator { .. } | Ask::Finished(_) => return false,
        };
        let spec = self.spec(point, purpose, sample_size);
        let Some(index) = self.crew.place(&spec) else { return false };
        self.last_id = spec.id.0;
        self.note(&Entry::TrialStarted { spec: spec.clone() });
        let device = self.crew.label(index);
        self.study.reporter.report(&Event::TrialStarted { spec: spec.clone(), device });
        self.crew.begin(index, ask.clone(), spec);
        true
    }

    /// Waits until a trial ends. Gives the study's end if it was cut short.
    fn next_end(&mut self) -> Result<Option<End>, DriverError> {
        loop {
            match self.crew.next() {
                (index, News::Seen(observation)) => self.observed(index, observation),
                (index, News::Ended(ended)) => return self.ended(index, *ended),
                (_, News::Started(_) | News::Moved(_)) => {}
                (_, News::Lost) => return Err(crew::lost().into()),
            }
        }
    }

    fn observed(&mut self, index: usize, observation: Observation) {
        if let Observation::Warning(text) = &observation
            && !self.warned.insert(text.clone())
        {
            return;
        }
        let device = self.crew.label(index);
        let event = self.crew.job_mut(index).and_then(|job| event_of(observation, &mut job.total, device));
        if let Some(event) = event {
            self.study.reporter.report(&event);
        }
    }

    fn ended(&mut self, index: usize, ended: Result<TrialRecord, ExecutorError>) -> Result<Option<End>, DriverError> {
        let Some(job) = self.crew.take_job(index) else { return Ok(None) };
        let record = match ended {
            Ok(record) => record,
            Err(error) if crew::is_of_device(&error) && self.crew.has_others(index) => {
                self.failed(index, &job, &with_causes(&error));
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        match &record.outcome {
            // A trial that was cut short says nothing of its point: it is not told, and runs again on resume.
            Outcome::Cancelled => {
                return Ok(Some(if self.study.interrupt.requested() { End::Interrupted } else { End::BudgetEnded }));
            }
            // Nor does a cluster that is full; the next trial of this slot would wait as long.
            Outcome::NotStarted { .. } if self.crew.has_others(index) => {
                self.crew.dismiss(index);
                let text = format!("{} is not used any more: {}", self.crew.name(index), explain(&record));
                self.study.reporter.report(&Event::Warning { text });
                return Ok(None);
            }
            Outcome::NotStarted { .. } => return Ok(Some(End::NotStarted(explain(&record)))),
            // Another device tells whether it was this one or the trial.
            Outcome::DeviceError { .. } if self.crew.has_others(index) && !self.doubted.contains(&job.ask) => {
                self.doubted.push(job.ask.clone());
                self.failed(index, &job, &record.outcome.to_string());
                return Ok(None);
            }
            _ => {}
        }
        self.keep(index, record);
        Ok(None)
    }

    /// A device failed in a trial, which will run again.
    fn failed(&mut self, index: usize, job: &Job, why: &str) {
        let is_given_up = self.crew.fail(index);
        let name = self.crew.name(index);
        let text = if is_given_up {
            format!("{name} has failed twice and is not used any more: {why}")
        } else {
            format!("{name} has failed in trial {}, which is run again: {why}", job.spec.id)
        };
        self.study.reporter.report(&Event::Warning { text });
    }

    /// Writes a trial that has ended into the journal. It is told when its turn comes.
    fn keep(&mut self, index: usize, record: TrialRecord) {
        let limit_bytes = self.facts.limit_bytes;
        let record = if record.spec.is_judged() { crew::under(record, limit_bytes) } else { record };
        let mut record = self.with_outlook(record.canonical());
        if record.worker.is_none() {
            record.worker = self.crew.worker_facts(index);
        }
        let verdict = self.judge(&record);
        let value = serde_json::to_value(&verdict).unwrap_or_default();
        self.note(&Entry::TrialEnded { record: record.clone(), verdict: value });
        let device = self.crew.label(index);
        self.study.reporter.report(&Event::TrialEnded { record: Box::new(record.clone()), verdict, device });
        self.waiting.add(record, Origin::Run);
    }

    /// Ends what is still running once the study has its end; what has ended by itself meanwhile is kept.
    pub(super) fn dismiss(&mut self) {
        // A user who asked once lets the running steps end.
        if !self.study.interrupt.requested() {
            self.crew.halt();
        }
        while self.crew.jobs().next().is_some() {
            match self.crew.next() {
                (index, News::Ended(ended)) => {
                    self.crew.take_job(index);
                    if let Ok(record) = *ended
                        && !matches!(record.outcome, Outcome::Cancelled | Outcome::NotStarted { .. })
                    {
                        self.keep(index, record);
                    }
                }
                (_, News::Lost) => return,
                _ => {}
            }
        }
    }
}
