//! The recordings that probes leave in the study directory: read, and made into knowledge.
//!
//! A record in the journal says that a probe ran, the trace file what it saw. A file that is gone or damaged when a study
//! is resumed makes its record worth nothing: it is left out of the history, so that the strategy asks for the probe again.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::Running;
use crate::config::Plan;
use crate::device::DeviceFacts;
use crate::memory::trace::{TraceFileError, file};
use crate::memory::{AllocatorKind, Event};
use crate::progress::Event as Progress;
use crate::search::JudgedTrial;
use crate::search::knowledge::probed::{Probed, RunTerms, Terms};
use crate::search::shape_probes;
use crate::text::with_causes;
use crate::trial::TrialRecord;
use crate::trial::command::Placeholder;
use crate::trial::spec::recording_path;

/// The largest trace that is read: about 300 million events.
const MAX_TRACE_BYTES: u64 = 1 << 30;

/// Why a trace is not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum TraceError {
    /// The file cannot be read.
    #[error("cannot read the trace `{}`", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It is no whole trace.
    #[error("cannot read the trace `{}`", path.display())]
    Damaged {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: TraceFileError,
    },
}

/// No recordings yet, for a plan on a device.
pub(super) fn knowledge(plan: &Plan, facts: &DeviceFacts) -> Probed {
    let named = serde_json::Value::from(facts.allocator.as_str());
    let mut knowledge = Probed::new(Terms {
        limit_bytes: facts.limit_bytes,
        allocator: serde_json::from_value(named).unwrap_or(AllocatorKind::Native),
        alloc_conf: facts.alloc_conf.clone(),
        // A program of the user's own runs with the allocator that is planned; nothing has to stand in for it.
        planned: if plan.command().is_some() { AllocatorKind::Auto } else { plan.memory.allocator },
        safety: plan.safety,
        run: run_terms(plan),
    });
    if plan.command().is_some() {
        knowledge.leave_samples_uncounted();
    }
    knowledge
}

/// The run that is coming. Of a user's own program nobody knows the data but by what the configuration says of its lengths or
/// sides, and nothing can be asked of it at one that it takes no notice of.
pub(in crate::search) fn run_terms(plan: &Plan) -> Option<RunTerms> {
    let is_known = plan.command().is_none_or(|command| {
        let shape = shape_probes::shapes(&plan.data).unwrap_or_default().first().copied();
        shape.is_some_and(|(_, size)| command.holds(Placeholder::of_sample_size(size)))
    });
    (plan.safety.horizon_steps > 0 && is_known).then(|| RunTerms {
        horizon_steps: plan.safety.horizon_steps,
        data: plan.data.clone(),
        seed: plan.seed,
        evaluate_every: plan.train.evaluate_every,
        checkpoint_every: plan.train.checkpoint_every,
        replicas: plan.target.replicas,
    })
}

/// The recording of a probe that completed; `None` for any other trial.
fn recording(study: &Path, record: &TrialRecord) -> Option<Result<Vec<Event>, TraceError>> {
    (record.spec.is_probe() && record.completed()).then(|| read(&recording_path(study, &record.spec)))
}

fn read(path: &Path) -> Result<Vec<Event>, TraceError> {
    let failed = |source| TraceError::Read { path: path.to_owned(), source };
    let mut data = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_TRACE_BYTES + 1).read_to_end(&mut data)).map_err(failed)?;
    if data.len() as u64 > MAX_TRACE_BYTES {
        return Err(failed(io::Error::from(io::ErrorKind::FileTooLarge)));
    }
    let (_, trace) = file::read(&data).map_err(|source| TraceError::Damaged { path: path.to_owned(), source })?;
    Ok(trace.events)
}

impl Running<'_> {
    fn study_folder(&self) -> PathBuf {
        self.study.journal.path().parent().map(Path::to_owned).unwrap_or_default()
    }

    /// Adds the recording of a probe to what is known. `false` where there should be one and it cannot be read.
    pub(super) fn learn(&mut self, record: &TrialRecord) -> bool {
        if let Some(samples) = record.measurement.as_ref().and_then(|measurement| measurement.training_samples) {
            self.knowledge.count_samples(samples);
        }
        let events = match recording(&self.study_folder(), record) {
            None => return true,
            Some(Ok(events)) => events,
            Some(Err(error)) => {
                self.study.reporter.report(&Progress::Warning { text: with_causes(&error) });
                return false;
            }
        };
        match record.spec.sample_size {
            Some(size) => self.knowledge.add_shape_probe(&record.spec.point, size, events),
            None => _ = self.knowledge.add(&record.spec.point, events),
        }
        true
    }

    /// Tells what the probes so far are worth, once they are worth something or have failed.
    pub(super) fn report_forecast(&mut self) {
        let is_probe = |trial: &&JudgedTrial| trial.record.spec.is_probe() && !trial.record.spec.is_shape_probe();
        let last = self.history.trials().iter().rev().find(is_probe);
        let point = last.map(|trial| &trial.record.spec.point);
        if let Some(summary) = self.knowledge.summary(point, &self.history) {
            self.study.reporter.report(&Progress::Forecast {
                method: summary.method,
                largest_batch_size: summary.largest_batch_size,
                error_percent: summary.error_percent,
                reason: summary.reason,
            });
        }
    }
}
