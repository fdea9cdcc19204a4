//! One trial: build, train for real steps, sample the memory between them, and leave the device as it was.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use super::feed::{Fed, Feed};
use super::inbox::Inbox;
use super::open::{Supplies, Training};
use super::phases::Phases;
use crate::data::{Batch, HostBatch};
use crate::device::collective::CollectiveError;
use crate::device::{DeviceSession, LargestRequest, StepError, facts};
use crate::memory::{Phase, Trim};
use crate::trial::measure::Series;
use crate::trial::outcome::{Measurement, Outcome, StepTimes};
use crate::trial::protocol::FromWorker;
use crate::trial::spec::TrialSpec;
use crate::units::MIB;

/// What may be left on the device after a trial for the next one to start as if it were the first.
const CLEAN_BYTES: u64 = 8 * MIB;
/// Steps between two trims under [`Trim::EveryK`].
pub(crate) const TRIM_EVERY_STEPS: u32 = 10;
/// The longest text of a warning or an error, in characters.
const TEXT_CHARS: usize = 4_000;

/// Where a trial runs.
pub(super) struct Stage<'a> {
    pub(super) session: &'a mut dyn DeviceSession,
    pub(super) supplies: &'a dyn Supplies,
    pub(super) inbox: &'a Inbox,
    pub(super) scratch: &'a Path,
}

/// Says a message to the driver.
pub(super) type Say<'a> = dyn FnMut(&FromWorker) -> io::Result<()> + 'a;

/// Why a trial ends early.
pub(super) enum Halt {
    /// It has an outcome.
    Ended(Outcome),
    /// The group of replicas cannot go on.
    Lost(CollectiveError),
    /// The driver does not listen any more.
    Unheard(io::Error),
}

impl From<io::Error> for Halt {
    fn from(error: io::Error) -> Self {
        Self::Unheard(error)
    }
}

/// Runs a trial and gives its last message, which is to be said.
pub(super) fn run(spec: &TrialSpec, stage: Stage<'_>, say: &mut Say<'_>) -> io::Result<FromWorker> {
    let Stage { session, supplies, inbox, scratch } = stage;
    let mut trial = Trial {
        spec,
        session: Phases::new(session),
        supplies,
        inbox,
        scratch,
        say,
        series: Series::default(),
        finished: 0,
    };
    // A workload is somebody's own code. What it leaves behind after a panic is not used again: the worker is not
    // clean then, and is replaced.
    let result = catch_unwind(AssertUnwindSafe(|| trial.run()));
    // All replicas are told of a stop together; whatever else ends a trial early is this one's own affair.
    if !matches!(result, Ok(Ok(_) | Err(Halt::Ended(Outcome::Cancelled)))) {
        trial.leave_group();
    }
    let (outcome, measurement, clean) = match result {
        Ok(Ok(measurement)) => (Outcome::Completed, Some(measurement), trial.clean_up()),
        Ok(Err(halt)) => {
            let halt = if let Halt::Lost(error) = halt {
                trial.lost(&error).map_or_else(|halt| halt, Halt::Ended)
            } else {
                halt
            };
            let outcome = match halt {
                Halt::Ended(outcome) => outcome,
                Halt::Lost(error) => Outcome::Failed { message: error.to_string() },
                Halt::Unheard(error) => return Err(error),
            };
            let clean = trial.clean_up() && trial.group_is_whole();
            // After anything that the device was part of, a fresh process is the only proof of a fresh device.
            let reusable = matches!(outcome, Outcome::Cancelled | Outcome::Diverged { .. });
            (outcome, None, clean && reusable)
        }
        Err(panic) => {
            let message = shortened(format!("it panicked: {}", words_of(panic.as_ref())));
            (Outcome::Failed { message }, None, false)
        }
    };
    Ok(FromWorker::Ended { trial: spec.id, outcome, measurement, clean })
}

/// A trial under way.
pub(super) struct Trial<'a> {
    pub(super) spec: &'a TrialSpec,
    pub(super) session: Phases<'a>,
    pub(super) supplies: &'a dyn Supplies,
    pub(super) inbox: &'a Inbox,
    pub(super) scratch: &'a Path,
    say: &'a mut Say<'a>,
    pub(super) series: Series,
    /// Steps finished.
    pub(super) finished: u32,
}

impl Trial<'_> {
    /// Trains to the end, recorded or not.
    fn run(&mut self) -> Result<Measurement, Halt> {
        if self.spec.is_probe() {
            return self.probe();
        }
        let begun = self.session.begin_trial();
        self.judge(begun)?;
        self.train()
    }

    /// Every tensor made here is dropped on return.
    pub(super) fn train(&mut self) -> Result<Measurement, Halt> {
        self.be_patient();
        let mut training = self.build()?;
        let started = Feed::start(&self.spec.point, self.supplies, &mut self.session);
        let mut feed = self.judge(started)?;
        let mut total = self.spec.total_steps();
        let soak_after = self.spec.soak_checks_after();
        while self.finished < total {
            if self.is_cut_short()? {
                return Err(Halt::Ended(Outcome::Cancelled));
            }
            self.step(training.as_mut(), &mut feed)?;
            self.be_patient();
            if self.finished == 1 {
                self.warn_of_unreached(training.as_ref())?;
            }
            total = self.steps_in_all(total)?;
            if self.finished.is_multiple_of(self.spec.sample_every.max(1)) || self.finished == total {
                self.sample()?;
            }
            if self.is_evaluated_now() {
                self.rehearse(training.as_ref())?;
            }
            if soak_after == Some(self.finished) {
                self.check_evaluation_and_checkpoint(training.as_ref())?;
            }
        }
        self.warn_of_skipped(&feed.skipped())?;
        Ok(Measurement {
            has_batch_norm: training.has_batch_norm(),
            training_samples: Some(self.supplies.training_samples()),
            ..self.series.measure(self.spec)
        })
    }

    fn build(&mut self) -> Result<Box<dyn Training>, Halt> {
        self.session.begin_phase(Phase::Build);
        let built = self.supplies.build(&self.spec.point, &self.session);
        let ended = self.session.end_phase();
        // A request over the limit is the cause of whatever failed after it.
        self.judge(ended)?;
        self.judge(built)
    }

    /// One step, and the optimizer's after every so many.
    fn step(&mut self, training: &mut dyn Training, feed: &mut Feed) -> Result<(), Halt> {
        let started = Instant::now();
        self.session.begin_step(self.finished);
        let Fed { batch, data_wait, load } = self.next_batch(feed)?;
        let is_update = (self.finished as usize + 1).is_multiple_of(self.spec.accumulation());
        let result = if is_update {
            training.last_step(&batch, &mut self.session)
        } else {
            training.step(&batch, &mut self.session)
        };
        let micro_batch = self.judge(result)?;
        if !micro_batch.loss.is_finite() {
            return Err(Halt::Ended(Outcome::Diverged { step: self.finished }));
        }
        let mut optimizer = Duration::ZERO;
        if is_update {
            let result = training.update(&mut self.session);
            optimizer = self.judge(result)?;
            if training.has_diverged() {
                return Err(Halt::Ended(Outcome::Diverged { step: self.finished }));
            }
        }
        drop(batch);
        match self.spec.point.trim {
            Trim::AfterUpdate if is_update => self.session.trim(),
            Trim::EveryK if (self.finished + 1).is_multiple_of(TRIM_EVERY_STEPS) => self.session.trim(),
            _ => {}
        }
        let times = StepTimes {
            data_wait_ms: milliseconds(data_wait),
            load_ms: milliseconds(load),
            forward_ms: milliseconds(micro_batch.forward),
            backward_ms: milliseconds(micro_batch.backward),
            optimizer_ms: milliseconds(optimizer),
            total_ms: milliseconds(started.elapsed()),
        };
        self.finished += 1;
        self.series.times.push(times);
        self.series.losses.push(micro_batch.loss);
        let (trial, step, loss) = (self.spec.id, self.finished, micro_batch.loss);
        self.say(&FromWorker::Step { trial, step, loss, times })
    }

    /// Copies a batch to the device.
    pub(super) fn load(&mut self, host: &HostBatch) -> Result<Batch, Halt> {
        self.session.begin_phase(Phase::Load);
        let batch = host.to_device(self.session.candle()).map_err(|error| self.session.classify(&error));
        let ended = self.session.end_phase();
        self.judge(ended)?;
        self.judge(batch)
    }

    /// Takes a memory sample.
    pub(super) fn sample(&mut self) -> Result<(), Halt> {
        let largest = if self.spec.is_soak() { LargestRequest::Probe } else { LargestRequest::Estimate };
        let mut sample = self.session.sample(self.finished, largest);
        if let Some(host) = facts::process_memory(Path::new("/")) {
            sample.host_bytes = Some(host.resident_bytes);
            sample.host_available_bytes = Some(host.available_bytes);
        }
        self.series.samples.push(sample);
        self.say(&FromWorker::Sample { trial: self.spec.id, sample })
    }

    /// Says something to the driver.
    pub(super) fn say(&mut self, message: &FromWorker) -> Result<(), Halt> {
        Ok((self.say)(message)?)
    }

    /// Warns of something.
    pub(super) fn warn(&mut self, text: String) -> Result<(), Halt> {
        self.say(&FromWorker::Warning { trial: self.spec.id, text: shortened(text) })
    }

    /// Turns a failure into the outcome it means.
    pub(super) fn judge<T>(&self, result: Result<T, StepError>) -> Result<T, Halt> {
        result.map_err(|error| match error {
            StepError::OutOfMemory(request) => {
                let phase = self.session.last();
                Halt::Ended(Outcome::OutOfMemory {
                    requested_bytes: Some(request.requested_bytes),
                    allocated_bytes: Some(request.allocated_bytes),
                    reserved_bytes: Some(request.reserved_bytes),
                    limit_bytes: Some(request.limit_bytes),
                    step: phase.filter(|phase| *phase != Phase::Build).map(|_| self.finished),
                    phase,
                })
            }
            StepError::Device(message) => Halt::Ended(Outcome::DeviceError { message: shortened(message) }),
            StepError::Workload(message) => failed(message),
            StepError::Replica(error) => Halt::Lost(error),
        })
    }

    /// Ends the trial on the device; whether it is as clean as before.
    fn clean_up(&mut self) -> bool {
        self.session.close();
        let left_bytes = self.session.end_trial();
        self.session.trim();
        if left_bytes > CLEAN_BYTES {
            tracing::warn!("{} are still held after the trial", crate::units::Bytes(left_bytes));
        }
        left_bytes <= CLEAN_BYTES
    }
}

pub(super) fn failed(message: String) -> Halt {
    Halt::Ended(Outcome::Failed { message: shortened(message) })
}

/// A text of somebody's own code, cut so that it fits a message and a table.
fn shortened(text: String) -> String {
    match text.char_indices().nth(TEXT_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn milliseconds(duration: Duration) -> f64 {
    // Whole nanoseconds are what JSON gives back exactly.
    duration.as_nanos() as f64 / 1e6
}

/// What a panic said.
fn words_of(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
