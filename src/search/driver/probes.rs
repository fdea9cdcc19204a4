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
use crate::search::knowledge::probed::{Probed, Terms};
use crate::text::with_causes;
use crate::trial::TrialRecord;
use crate::trial::spec::trace_path;

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
    Probed::new(Terms {
        limit_bytes: facts.limit_bytes,
        allocator: serde_json::from_value(named).unwrap_or(AllocatorKind::Native),
        alloc_conf: facts.alloc_conf.clone(),
        // A program of the user's own runs with the allocator that is planned; nothing has to stand in for it.
        planned: if plan.command().is_some() { AllocatorKind::Auto } else { plan.memory.allocator },
        safety: plan.safety,
    })
}

/// The recording of a probe that completed; `None` for any other trial.
fn recording(study: &Path, record: &TrialRecord) -> Option<Result<Vec<Event>, TraceError>> {
    (record.spec.is_probe() && record.completed()).then(|| read(&trace_path(study, &record.spec.point)))
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
        let events = match recording(&self.study_folder(), record) {
            None => return true,
            Some(Ok(events)) => events,
            Some(Err(error)) => {
                self.study.reporter.report(&Progress::Warning { text: with_causes(&error) });
                return false;
            }
        };
        self.knowledge.add(&record.spec.point, events);
        true
    }

    /// Tells what the probes so far are worth, once they are worth something or have failed.
    pub(super) fn report_forecast(&mut self) {
        let last = self.history.trials().iter().rev().find(|trial| trial.record.spec.is_probe());
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
