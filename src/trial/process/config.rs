//! What an executor needs to know.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::host_memory::OomKills;
use crate::trial::executor::Interrupt;
use crate::trial::launcher::Launcher;
use crate::trial::protocol::LEASE;
use crate::trial::spec::WorkloadSpec;

/// How to start a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Set in its environment, on top of this process's.
    pub environment: Vec<(OsString, OsString)>,
}

impl WorkerCommand {
    /// This program with the argument `worker`.
    pub fn this_program() -> io::Result<Self> {
        Ok(Self { program: std::env::current_exe()?, arguments: vec!["worker".into()], environment: Vec::new() })
    }

    /// The same behind a launcher, which the worker has to know of: see [`worker::launched`](crate::trial::worker).
    #[must_use]
    pub fn launched(mut self) -> Self {
        self.arguments.push("--launched".into());
        self
    }
}

/// How long to wait for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// From the start of a process to its first line, and again to the open device.
    pub start: Duration,
    /// For the model to be built, on top of `step`.
    pub build: Duration,
    /// Without a finished step.
    pub step: Duration,
    /// After the budget has ended, for the running step; after an interrupt, for the first one.
    pub stop: Duration,
    /// For a worker to leave when its input ends, before it is sent SIGTERM.
    pub leave: Duration,
    /// From SIGTERM to SIGKILL.
    pub kill: Duration,
    /// For a device to be free of the worker before.
    pub baseline: Duration,
    /// How long a worker goes on without a word from here.
    pub lease: Duration,
}

impl Patience {
    /// The waits that ship, with the configuration's timeout for a step.
    pub fn with_step_timeout(step: Duration) -> Self {
        Self {
            // A cold start on CUDA compiles candle's kernels for about 20 s, on a busy machine longer.
            start: Duration::from_secs(180),
            build: Duration::from_secs(120),
            step,
            stop: Duration::from_secs(3),
            leave: Duration::from_millis(500),
            kill: Duration::from_secs(1),
            baseline: Duration::from_secs(20),
            lease: LEASE,
        }
    }
}

/// What an executor needs to know.
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    /// How to start a worker.
    pub command: WorkerCommand,
    /// What starts it somewhere else, where something does.
    pub launcher: Option<Launcher>,
    /// What every worker is to get ready.
    pub workload: WorkloadSpec,
    /// Where a soak may write its checkpoint.
    pub scratch: PathBuf,
    /// How long to wait for what.
    pub patience: Patience,
    /// A request to stop.
    pub interrupt: Interrupt,
    /// When the budget ends.
    pub deadline: Option<Instant>,
    /// The kernel's count of processes ended for want of host memory.
    pub oom_kills: OomKills,
}
