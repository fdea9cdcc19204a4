//! The fork server: a Python interpreter that has imported modules, and forks for every command.
//!
//! Its program is `warm.py`, read from its standard input as `python -` reads it; its standard output is the socket that
//! [`Connection`] speaks over. It ends with this process ([`Guard`]), or when the last command forked from it and the
//! spawner have let it go; its forks ask the kernel to be ended with it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::connection::{Ask, Connection, Reply, wire};
use super::guard::Guard;
use super::mark::{self, Mark};
use super::output::Output;
use super::python::Python;
use super::strays::Family;
use super::{Launch, Stop};
use crate::trial::process::child::DEATH;

const PROGRAM: &str = include_str!("warm.py");
/// For the imports; a cold file cache on a network disk takes minutes.
const IMPORTS: Duration = Duration::from_secs(300);
/// Between two looks at whether to stop.
const TICK: Duration = Duration::from_millis(50);
/// For what it printed last to be read.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Between two looks at whether it has died of SIGKILL.
const DYING_POLL: Duration = Duration::from_millis(1);
/// Lines of the server's log that a reason shows.
const SHOWN_LINES: usize = 12;
/// What differs from trial to trial, and is therefore not of the server's environment.
const TRIAL_PREFIX: &[u8] = b"TUNE_";
/// PyTorch reads its allocator's settings when CUDA is first used, which a server never does: each fork may have its
/// own (seen on an H200 with PyTorch 2.11). Only the backend is chosen when the library is loaded.
const ALLOCATOR_SETTINGS: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];
const BACKEND: &str = "backend:";
/// Makes `torch.cuda.is_available()`, which some modules call while they are imported, ask NVML: CUDA's own answer would
/// keep the forks from using CUDA.
const COUNT_BY_NVML: (&str, &str) = ("PYTORCH_NVML_BASED_CUDA_CHECK", "1");

/// What a server cannot change after its start: launches that differ in it need another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    interpreter: OsString,
    options: Vec<OsString>,
    /// Modules are looked for here first.
    first_path: PathBuf,
    directory: PathBuf,
    /// All but what is the trial's. Some variables act when a library is loaded (`PYTORCH_*`, `OMP_*`, `CUDA_*`, `LD_*`), some
    /// when a module is imported (`HF_*`), and nobody knows them all.
    environment: BTreeMap<OsString, OsString>,
}

impl Key {
    pub(super) fn of(python: &Python, launch: &Launch) -> Self {
        let mut environment = environment_of(launch);
        environment.retain(|name, value| !is_the_trials(name, value));
        Self {
            interpreter: python.interpreter.clone(),
            options: python.options.clone(),
            first_path: python.first_path.clone(),
            directory: launch.directory.clone(),
            environment,
        }
    }
}

/// What of a launch's environment its server does not have.
pub(super) fn environment_of_trial(launch: &Launch) -> BTreeMap<OsString, OsString> {
    let mut environment = environment_of(launch);
    environment.retain(|name, value| is_the_trials(name, value));
    environment
}

fn is_the_trials(name: &OsStr, value: &OsStr) -> bool {
    let is_settings = ALLOCATOR_SETTINGS.iter().any(|settings| name == *settings);
    name.as_bytes().starts_with(TRIAL_PREFIX)
        || (is_settings && value.to_str().is_some_and(|value| !value.contains(BACKEND)))
}

/// This process's environment with the launch's on top.
fn environment_of(launch: &Launch) -> BTreeMap<OsString, OsString> {
    let mut environment: BTreeMap<_, _> = std::env::vars_os().collect();
    environment.extend(launch.environment.iter().cloned());
    environment
}

/// Why a server cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServerError {
    #[error("the warm interpreter does not start: {0}")]
    Start(#[from] io::Error),
    #[error("the warm interpreter gives up: {reason}{log}")]
    Unfit { reason: String, log: String },
    #[error("cancelled")]
    Cancelled,
    #[error("the warm interpreter is gone")]
    Gone,
    #[error("the warm interpreter cannot fork: {0}")]
    Refused(String),
}

/// A fork server that is ready.
#[derive(Debug)]
pub(super) struct Server {
    key: Key,
    child: Child,
    family: Family,
    guard: Option<Guard>,
    connection: Arc<Connection>,
    output: Output,
    python: String,
}

impl Server {
    /// Starts one and waits until it has imported `modules`.
    pub(super) fn start(key: &Key, modules: &[String], stop: &Stop) -> Result<Self, ServerError> {
        let (ours, theirs) = UnixStream::pair()?;
        let answers = ours.try_clone()?;
        let connection = Arc::new(Connection::over(ours)?);
        let (writer, output) = Output::open()?;
        let mark = Mark::new();
        let mut child = Command::new(&key.interpreter)
            .args(&key.options)
            .arg("-")
            .env_clear()
            .env(COUNT_BY_NVML.0, COUNT_BY_NVML.1)
            .envs(&key.environment)
            .env(mark::NAME, mark.value())
            .current_dir(&key.directory)
            .stdin(Stdio::piped())
            .stdout(OwnedFd::from(theirs))
            .stderr(writer)
            .process_group(0)
            .spawn()?;
        let group = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
        let program = child.stdin.take();
        let listener = connection.listen_to_the_server();
        let mut server = Self {
            key: key.clone(),
            child,
            family: Family::of(group, mark),
            guard: Guard::over(group),
            connection: Arc::clone(&connection),
            output,
            python: String::new(),
        };
        thread::Builder::new().name("warm interpreter".to_owned()).spawn(move || connection.read(answers))?;
        // It fits into the pipe. One that ends at once is found out by its silence.
        let _ = program.map(|mut program| program.write_all(PROGRAM.as_bytes()));
        let path = wire(key.first_path.as_os_str());
        let _ = server.connection.ask(&Ask::Preload { modules: modules.to_vec(), path }, None);
        server.await_imports(&listener, stop)?;
        Ok(server)
    }

    fn await_imports(&mut self, answers: &Receiver<Reply>, stop: &Stop) -> Result<(), ServerError> {
        let until = Instant::now() + IMPORTS;
        let reason = loop {
            match answers.recv_timeout(TICK) {
                Ok(Reply::Ready { python }) => {
                    self.python = python;
                    return Ok(());
                }
                Ok(Reply::Unfit { reason }) => break reason,
                Ok(_) | Err(RecvTimeoutError::Disconnected) => break "it ended before it was ready".to_owned(),
                Err(RecvTimeoutError::Timeout) if stop.is_due() => return Err(ServerError::Cancelled),
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                Err(RecvTimeoutError::Timeout) => {
                    break format!("it imported for more than {} s", IMPORTS.as_secs());
                }
            }
        };
        self.stop();
        self.output.await_end(Instant::now() + LAST_WORDS);
        let tail = self.output.tail();
        let lines: Vec<&str> = tail.lines().collect();
        let last = lines.get(lines.len().saturating_sub(SHOWN_LINES)..).unwrap_or_default().join("\n");
        let log = if last.is_empty() { last } else { format!("; its last lines:\n{last}") };
        Err(ServerError::Unfit { reason: crate::text::harmless(&reason), log })
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    pub(super) fn python(&self) -> &str {
        &self.python
    }

    /// Whether it listens still.
    pub(super) fn is_alive(&self) -> bool {
        !self.connection.is_closed()
    }

    /// The process group that it leads.
    #[cfg(test)]
    pub(super) fn group(&self) -> Pid {
        self.family.group()
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    fn stop(&mut self) {
        // Not reaped yet, so the number is its own. It has nothing to save, and neither has what the imports started.
        self.family.end_strays().tell();
        let _ = killpg(self.family.group(), Signal::SIGKILL);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        let until = Instant::now() + DEATH;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            thread::sleep(DYING_POLL);
        }
        self.guard = None;
    }
}
