//! A user's command as a process: started plainly, or forked from a warm interpreter.
//!
//! [`Spawner::start`] starts a [`Launch`] in a process group of its own, with `/dev/null` as its input and one pipe for
//! all that it prints, and gives a [`Running`] to watch and to end. It knows no trial, no protocol and no report file:
//! what the process is told is in its arguments and environment, and what its end means is the caller's business.
//!
//! # Warm start
//! Importing PyTorch costs seconds, in every trial again. Where the command is `python script.py …` or
//! `python -m module …` and modules to preload are named, they are imported once, by a fork server ([`warm`] on our
//! side, `warm.py` on Python's), and each start is a fork of it: its own process, its own group, its own environment,
//! the script as `__main__`. Whatever the trial does stays in the fork. Where that cannot work the plain start is used,
//! and [`Running::plain_because`] says why; [`Spawner::news`] says it once.
//!
//! A fork shares what the server did at its own start, so one server serves launches of the same interpreter, options,
//! folder and environment only. `TUNE_*` and PyTorch's allocator settings, which differ from trial to trial, are taken
//! out: a preloaded module must not read them while it is imported.
//!
//! # Nothing is left behind
//! [`Running::end`], dropping a [`Running`], and the end of this process whatever its cause all end the whole group;
//! for the last a [`guard`] sits in it. What left the group is ended too by the first two: the workers of `torchrun`, which
//! have a parent there, and daemons, which have not but carry the [`mark`] of the run ([`strays`]).
//!
//! Out of reach is a daemon that was started with an environment of its own choice (`env -i`), wrote over it, or runs as
//! another user; and, if this process is killed by SIGKILL, everything outside the group.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::executor::Interrupt;

mod connection;
mod gpu_memory;
mod guard;
mod kinship;
mod mark;
mod output;
mod plain;
mod python;
mod running;
mod server;
mod strays;
#[cfg(test)]
mod tests;
mod warm;

pub use gpu_memory::{Attribution, CardReader, CardReading, GpuBaseline, GpuUse, GpuWatch};
pub use python::Unsuitable;
pub use running::{End, Exit, Running};

pub(crate) use kinship::{Kin, Place};

use python::Python;
use server::{Server, ServerError};

/// For a server to fork. Longer, and it hangs.
const FORKING: Duration = Duration::from_secs(10);

/// What to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The program first, then its arguments.
    pub arguments: Vec<OsString>,
    /// Set in its environment, on top of this process's.
    pub environment: Vec<(OsString, OsString)>,
    /// Where it starts.
    pub directory: PathBuf,
}

impl Launch {
    fn program(&self) -> Result<&OsStr, SpawnError> {
        self.arguments.first().map(OsString::as_os_str).ok_or(SpawnError::NoProgram)
    }
}

/// Why a command cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// There is nothing to start.
    #[error("the command is empty (hint: its first entry is the program)")]
    NoProgram,
    /// The system refused.
    #[error("cannot start `{program}` in `{directory}`")]
    Start {
        /// The program.
        program: String,
        /// The folder it was to start in.
        directory: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Somebody asked to stop, or the time was up, while the modules were being imported.
    #[error("cancelled while the interpreter was warming up")]
    Cancelled,
}

/// When nothing is waited for any longer.
#[derive(Debug, Default)]
struct Stop {
    interrupt: Interrupt,
    deadline: Option<Instant>,
}

impl Stop {
    fn is_due(&self) -> bool {
        self.interrupt.requested() || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// How a command was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// Forked from an interpreter that has imported the modules already.
    Warm {
        /// Its version.
        python: String,
    },
    /// As a new process, since nothing is to be preloaded, or for a reason.
    Plain {
        /// Why it was not forked; `None` where nobody asked for that.
        why: Option<String>,
    },
}

/// Starts commands, one or several at a time.
#[derive(Debug)]
pub struct Spawner {
    preload: Vec<String>,
    stop: Stop,
    server: Option<Arc<Server>>,
    /// The last kind of launch for which no server came up, and why: asking again would cost the imports again.
    refused: Option<(server::Key, String)>,
    /// For a server to fork.
    forking: Duration,
    last: Option<Start>,
    told: bool,
}

impl Spawner {
    /// A spawner that imports these Python modules once; with none every start is plain.
    pub fn new(preload: Vec<String>) -> Self {
        Self { preload, stop: Stop::default(), server: None, refused: None, forking: FORKING, last: None, told: true }
    }

    /// Stops waiting for imports when `interrupt` asks for it, and at the `deadline`.
    #[must_use]
    pub fn heeding(mut self, interrupt: Interrupt, deadline: Option<Instant>) -> Self {
        self.stop = Stop { interrupt, deadline };
        self
    }

    /// Starts a command. The first warm one waits for the imports.
    pub fn start(&mut self, launch: &Launch) -> Result<Running, SpawnError> {
        launch.program()?;
        let why = match self.start_warm(launch) {
            Ok(running) => {
                self.note(running.how());
                return Ok(running);
            }
            Err(NotWarm::Cancelled) => return Err(SpawnError::Cancelled),
            Err(NotWarm::NotAsked) => None,
            Err(NotWarm::Because(why)) => Some(why),
        };
        let running = plain::start(launch, why)?;
        self.note(running.how());
        Ok(running)
    }

    /// How commands are started from now on, if that is not as it was when this was asked last.
    pub fn news(&mut self) -> Option<Start> {
        if std::mem::replace(&mut self.told, true) { None } else { self.last.clone() }
    }

    fn note(&mut self, start: &Start) {
        if self.last.as_ref() != Some(start) {
            self.last = Some(start.clone());
            self.told = false;
        }
    }

    fn start_warm(&mut self, launch: &Launch) -> Result<Running, NotWarm> {
        if self.preload.is_empty() {
            return Err(NotWarm::NotAsked);
        }
        let python = Python::of(launch)?;
        let key = server::Key::of(&python, launch);
        if let Some((refused, why)) = &self.refused
            && *refused == key
        {
            return Err(NotWarm::Because(why.clone()));
        }
        let mut tries = 2;
        let why = loop {
            tries -= 1;
            let server = match self.server.take() {
                Some(server) if *server.key() == key && server.is_alive() => server,
                // The one before is ended by this, or with the last command that was forked from it.
                _ => match Server::start(&key, &self.preload, &self.stop) {
                    Ok(server) => Arc::new(server),
                    Err(ServerError::Cancelled) => return Err(NotWarm::Cancelled),
                    Err(error) => break error.to_string(),
                },
            };
            match warm::start(&server, &python, launch, self.forking) {
                Ok(running) => {
                    self.server = Some(server);
                    return Ok(running);
                }
                Err(error) if tries == 0 => break error.to_string(),
                // It may have been killed since it was used last, which says nothing about the next one.
                Err(error) => tracing::debug!("a warm interpreter is replaced: {error}"),
            }
        };
        self.refused = Some((key, why.clone()));
        Err(NotWarm::Because(why))
    }
}

enum NotWarm {
    NotAsked,
    Cancelled,
    Because(String),
}

impl From<Unsuitable> for NotWarm {
    fn from(why: Unsuitable) -> Self {
        Self::Because(why.to_string())
    }
}
