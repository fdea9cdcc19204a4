//! A command that runs, and its end.
//!
//! # Who may be signalled
//! As for a worker ([`child`](crate::trial::process)): the process leads a group with its own number, signals go to
//! that group alone, and only while the number is held: by the leader, which is reaped last, and by the
//! [`guard`](super::guard) in the group. What has left the group is found by a parent that has not, or by the mark that
//! it inherited ([`strays`](super::strays)). The parent of a forked command is its server, which reaps when told to.

use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::Start;
use super::guard::Guard;
use super::output::Output;
use super::strays::{Family, Strays};
use super::warm::Fork;
use crate::trial::process::child::{AFTERMATH, DEATH};
use crate::trial::process::group::{await_vanishing, watch_end};
use crate::trial::process::{Manner, Patience};

/// How a process ended, as its parent sees it. One of the two is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// What it left with.
    pub status: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// `None` if the kernel cannot end it, or if nobody can tell any more: the server it was forked from was killed.
    pub exit: Option<Exit>,
    /// The last lines that it printed, control characters escaped.
    pub log: String,
}

/// What holds the process.
#[derive(Debug)]
pub(super) enum Body {
    /// Our own child.
    Plain { child: Child, exits: Receiver<()> },
    /// A server's.
    Warm(Fork),
}

impl Body {
    /// Our own child, just started.
    pub(super) fn plain(child: Child, id: Pid) -> Self {
        Self::Plain { child, exits: watch_end(id) }
    }

    fn ends_within(&mut self, patience: Duration) -> bool {
        match self {
            Self::Plain { exits, .. } => exits.recv_timeout(patience) != Err(RecvTimeoutError::Timeout),
            Self::Warm(fork) => fork.ends_within(patience),
        }
    }

    /// Gives the leader's number back.
    fn reap(&mut self) -> Option<Exit> {
        match self {
            Self::Plain { child, .. } => {
                child.wait().ok().map(|status| Exit { status: status.code(), signal: status.signal() })
            }
            Self::Warm(fork) => fork.reap(),
        }
    }
}

/// A command that was started. Dropping it ends it at once, with everything in its process group.
#[derive(Debug)]
pub struct Running {
    group: Pid,
    family: Family,
    body: Body,
    output: Output,
    guard: Option<Guard>,
    state: State,
    how: Start,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// The leader is a zombie, or its server is gone.
    Ended,
    /// The number is no longer ours.
    Released(Option<Exit>),
}

impl Running {
    pub(super) fn new(family: Family, body: Body, output: Output, how: Start) -> Self {
        let group = family.group();
        Self { group, family, body, output, guard: Guard::over(group), state: State::Running, how }
    }

    /// The number of its process, and of the group that it leads.
    pub fn pid(&self) -> u32 {
        self.group.as_raw().unsigned_abs()
    }

    /// Whether it was forked from a warm interpreter.
    pub fn was_warm(&self) -> bool {
        matches!(self.how, Start::Warm { .. })
    }

    /// Why it was started plainly although modules were to be preloaded.
    pub fn plain_because(&self) -> Option<&str> {
        match &self.how {
            Start::Plain { why } => why.as_deref(),
            Start::Warm { .. } => None,
        }
    }

    /// How it was started.
    pub fn how(&self) -> &Start {
        &self.how
    }

    /// Waits for its end, for at most `patience`, and leaves it a zombie: its group can still be signalled.
    pub fn has_ended_within(&mut self, patience: Duration) -> bool {
        if self.state == State::Running && self.body.ends_within(patience) {
            self.state = State::Ended;
        }
        self.state != State::Running
    }

    /// The next line that it printed, if one waits. Lines that nobody asks for in time are only in the tail.
    pub fn log_line(&mut self) -> Option<String> {
        self.output.line()
    }

    /// Ends it, if it has not ended, and everything left in its process group. May be called again.
    pub fn end(&mut self, manner: Manner, patience: &Patience) -> End {
        if !self.has_ended_within(Duration::ZERO) && manner == Manner::Gently {
            if self.holds_the_number() {
                self.family.look();
            }
            self.signal(Signal::SIGTERM);
            self.has_ended_within(patience.kill);
        }
        let strays = self.kill();
        if self.has_ended_within(DEATH) {
            self.bury(strays);
        } else {
            tracing::warn!("process {} does not end after SIGKILL", self.group);
            self.guard = None;
            self.state = State::Released(None);
        }
        let State::Released(exit) = self.state else { return End { exit: None, log: self.output.tail() } };
        End { exit, log: self.output.tail() }
    }

    /// Lets the guard believe that this process has ended.
    #[cfg(test)]
    pub(super) fn abandon(&mut self) {
        if let Some(guard) = &mut self.guard {
            guard.let_go();
        }
    }

    /// Sends SIGKILL to the group, and to those that have left it.
    fn kill(&self) -> Strays {
        if matches!(self.state, State::Released(_)) || !self.holds_the_number() {
            return Strays::default();
        }
        let strays = self.family.end_strays();
        self.signal(Signal::SIGKILL);
        strays
    }

    fn signal(&self, signal: Signal) {
        if !matches!(self.state, State::Released(_)) && self.holds_the_number() {
            let _ = killpg(self.group, signal);
            if self.family.leader_has_left() {
                let _ = kill(self.group, signal);
            }
        }
    }

    /// Whether the group's number cannot have been given to another: its leader or its guard is not reaped. Without a
    /// guard, a server that is gone may have left the number to anybody.
    fn holds_the_number(&self) -> bool {
        self.guard.is_some()
            || match &self.body {
                Body::Plain { .. } => true,
                Body::Warm(fork) => fork.is_held(),
            }
    }

    /// Reaps the leader, and waits for its output's end and its group's, both of which SIGKILL has decided already.
    fn bury(&mut self, mut strays: Strays) {
        if matches!(self.state, State::Released(_)) {
            return;
        }
        self.state = State::Released(self.body.reap());
        let until = Instant::now() + AFTERMATH;
        await_vanishing(self.group, until);
        strays.await_end(until);
        // One that left between the look and the signal.
        strays.extend(self.family.end_the_marked(&strays));
        strays.await_end(until);
        strays.tell();
        self.output.await_end(until);
        self.guard = None;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.state, State::Released(_)) {
            self.end(Manner::AtOnce, &Patience::with_step_timeout(Duration::ZERO));
        }
    }
}
