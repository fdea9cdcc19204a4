//! What a probe does beside training: it streams every allocation and free into a trace file.
//!
//! The events go to the disk as they come, so a probe holds no recording in memory. The file gets its name when it is
//! whole: a worker that dies leaves a draft that nobody reads. A trace that cannot be written fails the probe, since a
//! probe is for nothing else.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::open::Training;
use super::trial::{Halt, Trial, failed};
use crate::device::{DeviceFacts, DeviceSession};
use crate::memory::Event;
use crate::memory::trace::{TraceHeader, TraceWriter};
use crate::trial::outcome::Measurement;
use crate::trial::spec::{ProbeSchedule, recording_path};

impl Trial<'_> {
    /// Trains under what the device has free, with every event written to the probe's trace file.
    pub(super) fn probe(&mut self) -> Result<Measurement, Halt> {
        let path = recording_path(self.scratch, self.spec);
        let unwritten = |error: io::Error| failed(format!("cannot write the trace `{}`: {error}", path.display()));
        let draft = Draft::create(&path, self.session.facts()).map_err(unwritten)?;
        let draft = Rc::new(RefCell::new(draft));
        let recorded = Rc::clone(&draft);
        self.session.set_event_sink(Some(Box::new(move |events| recorded.borrow_mut().write(events))));
        let begun = self.session.begin_probe();
        let measured = self.judge(begun).and_then(|()| self.train());
        self.session.close();
        self.session.set_event_sink(None);
        let measurement = measured?;
        draft.borrow_mut().finish().map_err(unwritten)?;
        Ok(measurement)
    }

    /// Whether a probe has its evaluation pass now.
    pub(super) fn is_evaluated_now(&self) -> bool {
        let steps = u32::try_from(self.spec.accumulation()).unwrap_or(u32::MAX);
        let evaluation_after = || ProbeSchedule::of(self.spec).evaluation_after;
        self.spec.is_probe() && self.finished == evaluation_after().saturating_mul(steps)
    }

    /// The evaluation pass of a probe, and the writing of a checkpoint where the run will have some.
    pub(super) fn rehearse(&mut self, training: &dyn Training) -> Result<(), Halt> {
        self.evaluate(training)?;
        if self.supplies.has_checkpoints() {
            let written = training.rehearse_checkpoint(&mut self.session);
            self.judge(written)?;
        }
        Ok(())
    }
}

/// A trace file that is being written. Dropped unfinished, it is removed.
struct Draft {
    path: PathBuf,
    unfinished: PathBuf,
    writer: Option<TraceWriter<File>>,
    /// The first error, told in the end: an event sink has nobody to tell.
    error: Option<io::Error>,
}

impl Draft {
    /// Begins the file that will be at `path`. One that is there is of another study's probe and goes.
    fn create(path: &Path, facts: &DeviceFacts) -> io::Result<Self> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let unfinished = path.with_extension("trace.draft");
        let header = TraceHeader { device: facts.device.clone(), conf: String::new(), limit_bytes: None };
        let writer = TraceWriter::new(File::create(&unfinished)?, &header)?;
        Ok(Self { path: path.to_owned(), unfinished, writer: Some(writer), error: None })
    }

    fn write(&mut self, events: &[Event]) {
        if let Some(writer) = &mut self.writer
            && let Err(error) = writer.write(events)
        {
            self.error = Some(error);
            self.writer = None;
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if let Some(writer) = self.writer.take() {
            writer.finish()?.sync_all()?;
            fs::rename(&self.unfinished, &self.path)?;
        }
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After `finish` there is none.
        let _ = fs::remove_file(&self.unfinished);
    }
}
