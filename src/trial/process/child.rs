//! One worker process: its pipes, its group, and its end.
//!
//! # Who may be signalled
//! A worker leads a process group whose number is its own. Signals go to that group alone, and only while the leader
//! has not been reaped: until then, running or zombie, its number cannot be given to another process or group. So the
//! end of the leader is watched with `WNOWAIT`, which leaves the zombie; then the group is sent SIGKILL, which reaches
//! whatever the worker left behind (a fork in progress included: the kernel signals a group under the lock that forks
//! take); and only then is the leader reaped. After that, nothing is signalled any more.
//!
//! What leaves the group by `setsid` is out of reach; no worker of ours does.
//!
//! # Behind a launcher
//! The process here is the launcher then, and the worker maybe on another machine. The launcher gets its SIGTERM even
//! where there is no time, since that is what it can pass on, and whatever was seen of its end, the cancel command runs
//! after it ([`Cancel`]).

use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, never, select_biased};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::group::{await_vanishing, watch_end};
use super::muster::{Muster, Seat};
use super::reader::{Line, LogTail, read_log, read_messages};
use super::start::{command_of, command_of_launch, speak};
use super::{Patience, WorkerCommand};
use crate::device::collective::Meeting;
use crate::trial::executor::ExecutorError;
use crate::trial::launcher::{Cancel, Identity, Launch, WorkerFacts};
use crate::trial::protocol::{FromWorker, PINGS_PER_LEASE, ToWorker};

/// Messages that may wait to be looked at.
const MESSAGES: usize = 256;
/// Log lines that may wait to be shown; more are only kept in the tail.
pub(in crate::trial) const LOG_LINES: usize = 256;
/// After SIGKILL, for the kernel to end the process. Longer, and it hangs in a driver's system call.
pub(in crate::trial) const DEATH: Duration = Duration::from_secs(5);
/// After the end of the leader, for its log to be read to the end and its group to vanish.
pub(in crate::trial) const AFTERMATH: Duration = Duration::from_secs(1);

/// One thing seen of a worker.
#[derive(Debug)]
pub(super) enum Seen {
    /// It said something.
    Said(Box<FromWorker>),
    /// It put something on its output that is no message.
    Spoiled(String),
    /// Its output ended within a line.
    Torn,
    /// Its output ended.
    Closed,
    /// It ended, and is not yet reaped.
    Exited,
    /// A line of its log.
    Log(String),
    /// Nothing, for as long as was asked.
    Nothing,
}

/// How to end a process that runs a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Let it leave, if it can be asked; then SIGTERM; then SIGKILL.
    Gently,
    /// SIGKILL.
    AtOnce,
}

/// How a worker ended.
#[derive(Debug)]
pub(super) struct End {
    /// Its status; `None` if the kernel cannot end it.
    pub(super) status: Option<ExitStatus>,
    /// The last lines of its log.
    pub(super) log: String,
    /// Whether the status is a launcher's.
    pub(super) was_launched: bool,
}

impl End {
    /// Its exit status, where it ended by itself.
    pub(super) fn code(&self) -> Option<i32> {
        self.status.and_then(|status| status.code())
    }
}

/// A worker process.
#[derive(Debug)]
pub(super) struct Worker {
    child: Child,
    group: Pid,
    input: Option<Sender<Vec<u8>>>,
    messages: Receiver<Line>,
    /// `None` once the log has ended.
    logs: Option<Receiver<String>>,
    exits: Receiver<()>,
    tail: LogTail,
    state: State,
    /// What ends it for certain, until that was done; `None` for a worker of this machine.
    cancel: Option<Cancel>,
    is_launched: bool,
    /// Who it is, as far as it has said.
    pub(super) identity: Identity,
    /// What its device is, once that is open.
    pub(super) facts: Option<WorkerFacts>,
    /// Its place among replicas.
    seat: Option<Seat>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// The leader is a zombie.
    Exited,
    /// The leader's number is no longer ours.
    Reaped(ExitStatus),
    /// SIGKILL did not end it within [`DEATH`].
    Unkillable,
}

impl Worker {
    /// Starts a worker in a process group of its own, or what launches it, with threads that tend its pipes.
    pub(super) fn spawn(
        command: &WorkerCommand,
        launch: Option<Launch>,
        lease: Duration,
    ) -> Result<Self, ExecutorError> {
        let failed = |source| ExecutorError::Spawn { program: command.program.display().to_string(), source };
        let mut child = match &launch {
            Some(launch) => command_of_launch(launch, command).spawn(),
            None => command_of(command).spawn(),
        }
        .map_err(failed)?;
        let id = i32::try_from(child.id()).map(Pid::from_raw).map_err(|error| failed(std::io::Error::other(error)))?;
        let (input, lines_in) = bounded::<Vec<u8>>(16);
        let (lines_out, messages) = bounded(MESSAGES);
        let (log_lines, logs) = bounded(LOG_LINES);
        let tail = LogTail::default();
        // Writing may block on a worker that does not read, so it has a thread of its own.
        if let Some(stdin) = child.stdin.take() {
            thread::spawn(move || speak(stdin, &lines_in, lease / PINGS_PER_LEASE));
        }
        if let Some(stdout) = child.stdout.take() {
            let greeting = launch.is_some().then(|| tail.clone());
            thread::spawn(move || read_messages(stdout, &lines_out, greeting));
        }
        if let Some(stderr) = child.stderr.take() {
            let tail = tail.clone();
            thread::spawn(move || read_log(stderr, &tail, &log_lines));
        }
        Ok(Self {
            child,
            group: id,
            input: Some(input),
            messages,
            logs: Some(logs),
            exits: watch_end(id),
            tail,
            state: State::Running,
            is_launched: launch.is_some(),
            cancel: launch.map(|launch| launch.cancel),
            identity: Identity::default(),
            facts: None,
            seat: None,
        })
    }

    /// Whether a launcher is in between.
    pub(super) fn is_launched(&self) -> bool {
        self.is_launched
    }

    /// Tells the worker something. One that no longer listens is found out by its silence or its end.
    pub(super) fn send(&self, message: &ToWorker) {
        let (Some(input), Ok(mut line)) = (&self.input, serde_json::to_vec(message)) else { return };
        line.push(b'\n');
        let _ = input.try_send(line);
    }

    /// Takes its place among replicas, where it is heard by the others from now on.
    pub(super) fn take_seat(&mut self, muster: &Muster, rank: usize) {
        if let Some(input) = &self.input {
            self.seat = Some(muster.arrive(rank, &self.identity.place, input.clone()));
        }
    }

    /// How the replicas meet, once all are there; `None` before.
    pub(super) fn meeting(&mut self, folder: &Meeting) -> Option<Meeting> {
        self.seat.as_mut()?.meeting(folder)
    }

    /// Whether it lives and has nothing to say, as between two trials.
    pub(super) fn is_idle(&mut self) -> bool {
        loop {
            match self.next(Duration::ZERO) {
                Seen::Nothing => return self.state == State::Running,
                Seen::Log(line) => tracing::debug!(target: "batchtune::worker", "{line}"),
                _ => return false,
            }
        }
    }

    /// Whether its end was seen.
    pub(super) fn has_exited(&self) -> bool {
        self.state != State::Running
    }

    /// The next thing seen, waiting for at most `patience`. Messages come before everything else, so that what a
    /// worker said is heard before its end.
    pub(super) fn next(&mut self, patience: Duration) -> Seen {
        let deadline = Instant::now() + patience;
        loop {
            let logs = self.logs.as_ref().map_or_else(never, Receiver::clone);
            select_biased! {
                recv(self.messages) -> line => match line {
                    Ok(Line::Said(message)) => match (*message, &self.seat) {
                        (FromWorker::Relay { rank, bytes }, Some(seat)) => seat.pass_on(rank, bytes),
                        (message, _) => return Seen::Said(Box::new(message)),
                    },
                    Ok(Line::Spoiled(why)) => return Seen::Spoiled(why),
                    Ok(Line::Torn) => return Seen::Torn,
                    Err(_) => {
                        self.messages = never();
                        return Seen::Closed;
                    }
                },
                recv(self.exits) -> _ => {
                    self.exits = never();
                    self.state = State::Exited;
                    return Seen::Exited;
                }
                recv(logs) -> line => match line {
                    Ok(line) => return Seen::Log(line),
                    Err(_) => self.logs = None,
                },
                default(deadline.saturating_duration_since(Instant::now())) => return Seen::Nothing,
            }
        }
    }

    /// Sends a signal to the worker's group, if the number is still ours.
    pub(super) fn signal(&self, signal: Signal) {
        if matches!(self.state, State::Running | State::Exited) {
            // EPERM is a member with another user's rights. ESRCH cannot be while the leader is not reaped, but for a
            // launcher that has not left our group yet, and then has started nothing.
            if killpg(self.group, signal) == Err(Errno::ESRCH) && self.is_launched {
                let _ = kill(self.group, signal);
            }
        }
    }

    /// Ends the worker and everything in its group. May be called again.
    pub(super) fn end(&mut self, manner: Manner, patience: &Patience) -> End {
        // Its input does not end while others may speak to it.
        self.seat = None;
        let mut is_gone = self.state != State::Running;
        // A launcher whose worker has not spoken may have none yet, and nobody who could be asked.
        let can_be_asked = !self.is_launched || self.identity.pid.is_some();
        if !is_gone && can_be_asked && manner == Manner::Gently {
            self.send(&ToWorker::Exit);
            self.input = None;
            is_gone = self.exits_within(patience.leave);
        }
        self.input = None;
        if !is_gone && (manner == Manner::Gently || self.is_launched) {
            self.signal(Signal::SIGTERM);
            self.exits_within(patience.kill);
        }
        self.signal(Signal::SIGKILL);
        if self.exits_within(DEATH) {
            self.bury();
        } else if self.state == State::Running {
            tracing::warn!("worker process {} does not end after SIGKILL", self.group);
            self.state = State::Unkillable;
        }
        if let Some(cancel) = self.cancel.take() {
            cancel.run(&self.identity);
        }
        let status = match self.state {
            State::Reaped(status) => Some(status),
            _ => None,
        };
        End { status, log: self.tail.text(), was_launched: self.is_launched }
    }

    /// Waits for the leader's end, whatever else it says meanwhile.
    fn exits_within(&mut self, patience: Duration) -> bool {
        if self.state == State::Running && self.exits.recv_timeout(patience).is_ok() {
            self.exits = never();
            self.state = State::Exited;
        }
        self.state == State::Exited
    }

    /// Reaps the leader, and waits for its log's end and its group's, both of which SIGKILL has decided already.
    fn bury(&mut self) {
        if let Ok(status) = self.child.wait() {
            self.state = State::Reaped(status);
        }
        let until = Instant::now() + AFTERMATH;
        while self.logs.as_ref().is_some_and(|logs| logs.recv_deadline(until).is_ok()) {}
        self.logs = None;
        await_vanishing(self.group, until);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.state == State::Running || self.state == State::Exited {
            self.end(Manner::AtOnce, &Patience::with_step_timeout(Duration::ZERO));
        }
    }
}
