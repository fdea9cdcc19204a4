//! The launcher: a program in front of the worker's that starts it somewhere else.
//!
//! `srun`, `ssh NODE`, `kubectl run -i`, `apptainer exec`: whatever runs the rest of its command line, maybe on another
//! machine, and forwards standard input, output and error. The placement is the launcher's business (a cluster has a
//! scheduler for it); here is what makes it safe to put one in between. Measured on Slurm 22.05, two rules carry the
//! rest:
//!
//! 1. **An exit status is no answer.** `srun` ends with 0 when a node is lost, when its step daemon is killed and when a
//!    line was torn. Only the worker's own last message says that a trial completed; the process room holds to that for
//!    every worker, launched or not.
//! 2. **Whoever ends a trial reaches the remote worker.** Input is closed, then the launcher's group gets SIGTERM (on
//!    which `srun` kills its step at once), then SIGKILL, and then, always, the cancel command runs: an `srun` that was
//!    killed leaves its worker alive, without an end of its input, and with the card. See [`Cancel`].
//!
//! Should all of that be lost with the driver's machine, the worker's lease ends it (see
//! [`protocol`](super::protocol)).
//!
//! # What the other machine must have
//! The tuner's program, the data and the study directory, each under the same path: in practice, a shared file system.
//! The program's path is passed on as it is. The environment is the launcher's to pass: `srun` does, `ssh` does not.
//!
//! # What is different behind a launcher
//! - The launcher runs in a session of its own ([`session`]), so that a Ctrl-C is the driver's to pass on and nothing
//!   asks the terminal for a password; it gets SIGTERM when the driver dies.
//! - A worker says which machine it is on and which processors it may use ([`Place`]), so that trials side by side share
//!   processors only where they have to, and replicas know whether they can meet.
//! - Its standard error holds its own words and the worker's; the last lines are in the outcome of a trial that it ends.
//! - A signal that ended the worker arrives as the status 128 + n, as a shell has it, and is taken for the signal.
//! - The kernel's count of processes killed for want of memory is of another machine, so such a kill is a crash by
//!   SIGKILL. The memory samples are of the worker's own node.

use std::time::Duration;

use serde::{Deserialize, Serialize};

mod cancel;
mod launch;
mod place;
pub mod session;
mod slurm;
mod template;

pub use cancel::Cancel;
pub(in crate::trial) use cancel::Identity;
pub use launch::{Launch, Launcher, Setting, Starter, Surroundings};
pub use place::{Place, WorkerFacts};
pub use template::{Holder, Placeholder, Template, UnknownPlaceholder};

/// The status that `srun` is told to have for errors of its own, so that they are told apart from the worker's.
pub const LAUNCHER_FAILED: i32 = 201;

/// How workers are launched, as the configuration says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LauncherSpec {
    /// What stands before the worker's program.
    pub command: LauncherCommand,
    /// Workers at a time, of which a trial takes as many as it has replicas.
    pub workers: usize,
    /// The longest wait for a worker's first word: in a queue, most of the time.
    pub start_timeout: Duration,
    /// What ends a worker for certain; `None` leaves it to the command: `scancel` for Slurm, nothing else knows one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<Vec<Template>>,
}

/// What stands before the worker's program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LauncherCommand {
    /// `srun` with the flags that suit where the tuner runs.
    Slurm,
    /// The user's own.
    Own(Vec<Template>),
}

impl LauncherSpec {
    /// Whether jobs are Slurm's and nobody knows them by a name while they are pending.
    pub fn has_nameless_jobs(&self) -> bool {
        match &self.command {
            LauncherCommand::Slurm => false,
            LauncherCommand::Own(command) => {
                self.is_slurm() && !command.iter().any(|argument| argument.holds(Placeholder::Trial))
            }
        }
    }

    /// Whether jobs are Slurm's, so that `scancel` ends them.
    fn is_slurm(&self) -> bool {
        match &self.command {
            LauncherCommand::Slurm => true,
            LauncherCommand::Own(command) => command.first().is_some_and(|program| {
                std::path::Path::new(program.as_written()).file_name().is_some_and(|name| name == "srun")
            }),
        }
    }
}
