//! The seam between the search and the machine: something that runs trials.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::launcher::Place;
use super::outcome::{StepTimes, TrialRecord};
use super::spec::TrialSpec;
use crate::device::DeviceFacts;
use crate::memory::MemorySample;

/// Runs trials, one at a time. Where trials run side by side, each device has an executor of its own.
///
/// The driver calls [`start`](Executor::start) once, then [`run`](Executor::run) for each trial. Tests drive the
/// search through a scripted executor; the one that ships runs worker processes.
pub trait Executor {
    /// Brings the device up and says what it is.
    fn start(&mut self) -> Result<DeviceFacts, ExecutorError>;

    /// Runs a trial to its end. Whatever happens to the worker is an [`Outcome`](super::Outcome) of the record, not
    /// an error; an error means that no trial can be run at all.
    fn run(&mut self, spec: &TrialSpec, observe: &mut dyn FnMut(Observation)) -> Result<TrialRecord, ExecutorError>;

    /// Where the workers of a trial run, one place each, as it was last: a launcher may move them.
    fn places(&self) -> Vec<Place> {
        vec![Place::here()]
    }
}

impl<E: Executor + ?Sized> Executor for &mut E {
    fn start(&mut self) -> Result<DeviceFacts, ExecutorError> {
        (**self).start()
    }

    fn run(&mut self, spec: &TrialSpec, observe: &mut dyn FnMut(Observation)) -> Result<TrialRecord, ExecutorError> {
        (**self).run(spec, observe)
    }

    fn places(&self) -> Vec<Place> {
        (**self).places()
    }
}

/// What can be seen while a trial runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// A step finished.
    Step {
        /// Steps finished so far.
        step: u32,
        /// Its loss.
        loss: f64,
        /// Its times.
        times: StepTimes,
    },
    /// The trial goes on, since its times cannot be believed yet.
    Extended {
        /// Steps in all as of now.
        total: u32,
    },
    /// A memory sample was taken.
    Sample(MemorySample),
    /// The workload should be told about something.
    Warning(String),
    /// A line of the worker's log.
    Log(String),
}

/// Why no trial can be run at all.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// The worker process cannot be started.
    #[error("cannot start the worker process `{program}`")]
    Spawn {
        /// The program.
        program: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The worker says the device cannot be used.
    #[error("{0}")]
    DeviceUnavailable(String),
    /// The worker says that the workload cannot be set up on any device: the data or the model is wrong.
    #[error("{0}")]
    Workload(String),
    /// The worker ended before it could run anything.
    #[error("the worker ended before its first trial: {reason}")]
    Startup {
        /// How it ended, with the last lines of its log.
        reason: String,
    },
    /// The launcher started no worker in time: its job is still in a queue, or it hangs.
    #[error(
        "`{launcher}` started no worker within {seconds:.0} s{} (hint: is what it asks for free? A longer `launcher.start_timeout` waits for longer)",
        last_words(log)
    )]
    NotStarted {
        /// The launcher's program.
        launcher: String,
        /// The start timeout.
        seconds: f64,
        /// The last lines of its log.
        log: String,
    },
    /// The launcher ended before its worker said anything.
    #[error(
        "`{launcher}` ended with {status} before its worker said a word{} (hint: is what it asks for there, and `{worker}` on the machine that it starts it on?)",
        last_words(log)
    )]
    Launcher {
        /// The launcher's program.
        launcher: String,
        /// Its status, in words.
        status: String,
        /// The worker's program.
        worker: String,
        /// The last lines of its log.
        log: String,
    },
    /// The launcher printed what is no worker's, and more of it than a greeting.
    #[error(
        "`{launcher}` printed on standard output where its worker's first word was due: {reason} (hint: that output is the \
         worker's; what a launcher has to say belongs on standard error)"
    )]
    LauncherOutput {
        /// The launcher's program.
        launcher: String,
        /// What it printed last.
        reason: String,
    },
    /// The worker started and was not listened to, or not spoken to.
    #[error(
        "the worker found its input closed: `{launcher}` does not pass standard input on{} (hint: it must, to the end of its \
         worker; `kubectl run` and `docker run` need `-i`)",
        last_words(log)
    )]
    LauncherInput {
        /// The launcher's program.
        launcher: String,
        /// The last lines of its log.
        log: String,
    },
    /// The worker left while its device was being opened, since the driver stood still for longer than its lease.
    #[error("the worker heard nothing of the tuner for {seconds:.0} s and left (hint: was `tune` stopped?)")]
    LeaseExpired {
        /// The lease.
        seconds: f64,
    },
    /// A file that a trial needs cannot be made.
    #[error("cannot write `{}`", path.display())]
    Scratch {
        /// Which.
        path: std::path::PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The user or the budget ended it before the device was up.
    #[error("cancelled while the worker was starting")]
    Cancelled,
}

fn last_words(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("; its last words:\n{log}\n") }
}

/// A request to stop, shared between the signal handler, the driver and the executor.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    level: Arc<AtomicU8>,
    /// What is heard too.
    above: Option<Arc<AtomicU8>>,
}

impl Interrupt {
    /// One that hears whatever is asked of this one, and can be asked without this one hearing it: the driver ends trials
    /// that nobody needs any more by it.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { level: Arc::default(), above: Some(Arc::clone(&self.level)) }
    }

    /// Asks once more: the first time to finish the step and save, the second to stop at once.
    pub fn request(&self) {
        let _ =
            self.level.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |level| Some(level.saturating_add(1).min(2)));
    }

    /// Whether somebody asked to stop.
    pub fn requested(&self) -> bool {
        self.heard() > 0
    }

    /// Whether somebody asked twice.
    pub fn at_once(&self) -> bool {
        self.heard() > 1
    }

    fn heard(&self) -> u8 {
        let above = self.above.as_ref().map_or(0, |above| above.load(Ordering::SeqCst));
        above.max(self.level.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_hears_what_is_asked_above_it_and_is_not_heard_there() {
        let user = Interrupt::default();
        let driver = user.child();
        driver.request();
        assert!(driver.requested() && !driver.at_once() && !user.requested());
        user.request();
        user.request();
        assert!(user.at_once() && driver.at_once());
    }
}
