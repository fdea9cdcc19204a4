//! Talking with the fork server: JSON lines both ways over a socket, descriptors beside them.
//!
//! Both ends are of this version of the program (`warm.py` is part of it), so the lines carry no version. Bytes that
//! may be no UTF-8 (arguments, environment, paths) travel as strings of characters U+0000 to U+00FF, one a byte.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde::{Deserialize, Serialize};

/// A longer line is none of the server's.
const REPLY_BYTES: u64 = 64 << 10;
/// A server that does not read for so long hangs.
const WRITING: Duration = Duration::from_secs(5);
/// The number of the server's own messages; runs are counted from 1.
pub(super) const OWN: u64 = 0;

/// What the server is asked.
#[derive(Debug, Serialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(super) enum Ask {
    /// First of all: what to import, looking for it in `path` first.
    Preload { modules: Vec<String>, path: String },
    /// To fork. The descriptor beside it is the fork's output.
    Run(Box<Run>),
    /// To reap a fork that has ended.
    Reap { run: u64 },
}

/// What a fork is to be.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    #[serde(rename = "run")]
    pub(super) number: u64,
    pub(super) script: Option<String>,
    pub(super) module: Option<String>,
    /// All of the command, the interpreter first.
    pub(super) command: Vec<String>,
    /// What follows the script's or the module's name.
    pub(super) arguments: Vec<String>,
    /// What the server's environment lacks.
    pub(super) environment: Vec<(String, String)>,
    pub(super) directory: String,
}

/// What the server says.
#[derive(Debug, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(super) enum Reply {
    /// It has imported everything.
    Ready { python: String },
    /// It cannot be used.
    Unfit { reason: String },
    /// It has forked.
    Started { run: u64, pid: i32 },
    /// It cannot fork.
    Refused { run: u64, reason: String },
    /// A fork has ended and is not yet reaped.
    Ended { run: u64, status: Option<i32>, signal: Option<i32> },
}

impl Reply {
    fn run(&self) -> u64 {
        match self {
            Self::Ready { .. } | Self::Unfit { .. } => OWN,
            Self::Started { run, .. } | Self::Refused { run, .. } | Self::Ended { run, .. } => *run,
        }
    }
}

/// Our end of the socket.
#[derive(Debug)]
pub(super) struct Connection {
    socket: Mutex<UnixStream>,
    runs: Mutex<Runs>,
}

#[derive(Debug, Default)]
struct Runs {
    last: u64,
    closed: bool,
    listeners: HashMap<u64, Sender<Reply>>,
}

impl Connection {
    pub(super) fn over(socket: UnixStream) -> io::Result<Self> {
        socket.set_write_timeout(Some(WRITING))?;
        Ok(Self { socket: Mutex::new(socket), runs: Mutex::default() })
    }

    /// Where answers with the server's own number arrive. The channel ends with the server.
    pub(super) fn listen_to_the_server(&self) -> Receiver<Reply> {
        let (sender, receiver) = unbounded();
        self.runs().listeners.insert(OWN, sender);
        receiver
    }

    /// A number for a new run, and where answers about it arrive (a handful at most).
    pub(super) fn open_run(&self) -> (u64, Receiver<Reply>) {
        let (sender, receiver) = unbounded();
        let mut runs = self.runs();
        runs.last += 1;
        let run = runs.last;
        if !runs.closed {
            runs.listeners.insert(run, sender);
        }
        (run, receiver)
    }

    /// Forgets a run.
    pub(super) fn close_run(&self, run: u64) {
        self.runs().listeners.remove(&run);
    }

    /// Whether the server has closed its end.
    pub(super) fn is_closed(&self) -> bool {
        self.runs().closed
    }

    /// Asks, with a descriptor beside the first byte.
    pub(super) fn ask(&self, ask: &Ask, beside: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut line = serde_json::to_vec(ask).map_err(io::Error::other)?;
        line.push(b'\n');
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rest = line.as_slice();
        if let Some(descriptor) = beside {
            let descriptors = [descriptor.as_raw_fd()];
            let rights = [ControlMessage::ScmRights(&descriptors)];
            let sent = sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(rest)], &rights, MsgFlags::MSG_NOSIGNAL, None)?;
            rest = rest.get(sent..).unwrap_or_default();
        }
        socket.write_all(rest)
    }

    /// Hands out answers until the server closes its end, or says something that is none.
    pub(super) fn read(&self, answers: UnixStream) {
        let mut answers = BufReader::new(answers);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = answers.by_ref().take(REPLY_BYTES).read_until(b'\n', &mut line);
            let (Ok(1..), Ok(reply)) = (read, serde_json::from_slice::<Reply>(&line)) else { break };
            if let Some(listener) = self.runs().listeners.get(&reply.run()) {
                let _ = listener.send(reply);
            }
        }
        let mut runs = self.runs();
        runs.closed = true;
        runs.listeners.clear();
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes as a string that JSON can hold.
pub(super) fn wire(bytes: &OsStr) -> String {
    bytes.as_bytes().iter().map(|byte| char::from(*byte)).collect()
}
