//! Starting a command as a fork of a warm interpreter.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use nix::unistd::Pid;

use super::connection::{Ask, Reply, Run, wire};
use super::mark::{self, Mark};
use super::output::Output;
use super::python::{Program, Python};
use super::running::{Body, Exit, Running};
use super::server::{Server, ServerError, environment_of_trial};
use super::strays::Family;
use super::{Launch, Start};

/// Forks it from `server`. An error says that this server is of no use any more.
pub(super) fn start(
    server: &Arc<Server>,
    python: &Python,
    launch: &Launch,
    patience: Duration,
) -> Result<Running, ServerError> {
    let (writer, output) = Output::open()?;
    let (script, module) = match &python.program {
        Program::Script(script) => (Some(wire(script)), None),
        Program::Module(module) => (None, Some(wire(module))),
    };
    let words = |words: &[OsString]| words.iter().map(|word| wire(word)).collect();
    let wired = |(name, value): (&OsString, &OsString)| (wire(name), wire(value));
    let mark = Mark::new();
    let mut environment = environment_of_trial(launch);
    environment.insert(mark::NAME.into(), mark.value().into());
    let run = Run {
        number: 0,
        script,
        module,
        command: words(&launch.arguments),
        arguments: words(&python.arguments),
        environment: environment.iter().map(wired).collect(),
        directory: wire(launch.directory.as_os_str()),
    };
    let fork = Fork::ask(server, run, writer, patience)?;
    let start = Start::Warm { python: server.python().to_owned() };
    Ok(Running::new(Family::of(fork.pid, mark), Body::Warm(fork), output, start))
}

/// A process that a server forked. The server is kept for as long as its fork.
#[derive(Debug)]
pub(super) struct Fork {
    server: Arc<Server>,
    run: u64,
    pid: Pid,
    answers: Receiver<Reply>,
    exit: Option<Exit>,
}

impl Fork {
    /// Asks for a fork. `output` is closed here as soon as the fork has it.
    fn ask(server: &Arc<Server>, mut run: Run, output: impl AsFd, patience: Duration) -> Result<Self, ServerError> {
        let (number, answers) = server.connection().open_run();
        run.number = number;
        let asked = server.connection().ask(&Ask::Run(Box::new(run)), Some(output.as_fd()));
        let why = match asked.map(|()| answers.recv_timeout(patience)) {
            Ok(Ok(Reply::Started { pid, .. })) => {
                let server = Arc::clone(server);
                return Ok(Self { server, run: number, pid: Pid::from_raw(pid), answers, exit: None });
            }
            Ok(Ok(Reply::Refused { reason, .. })) => ServerError::Refused(crate::text::harmless(&reason)),
            _ => ServerError::Gone,
        };
        server.connection().close_run(number);
        Err(why)
    }

    /// Waits for its end, or its server's, for at most `patience`.
    pub(super) fn ends_within(&mut self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        loop {
            match self.answers.recv_deadline(until) {
                Ok(Reply::Ended { status, signal, .. }) => {
                    self.exit = Some(Exit { status, signal });
                    return true;
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return false,
                // A server that is gone took what it forked with it.
                Err(RecvTimeoutError::Disconnected) => return true,
            }
        }
    }

    /// Whether its number is its own: it is not reaped as long as the server lives and is not told to.
    pub(super) fn is_held(&self) -> bool {
        self.server.is_alive()
    }

    /// Lets the server reap it. `None` if the server cannot say any more how it ended.
    pub(super) fn reap(&mut self) -> Option<Exit> {
        let _ = self.server.connection().ask(&Ask::Reap { run: self.run }, None);
        self.exit
    }
}

impl Drop for Fork {
    fn drop(&mut self) {
        self.server.connection().close_run(self.run);
    }
}
