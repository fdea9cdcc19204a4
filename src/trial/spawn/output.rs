//! What a command prints: one pipe for its standard output and its error output, read by a thread to its last lines.
//!
//! The pipe ends when the last process that holds it does. One that left the group (a daemon) may hold it for ever, so
//! the reader can also be told to stop: dropping an [`Output`] does.

use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::AsFd;
use std::thread;
use std::time::Instant;

use crossbeam_channel::{Receiver, bounded};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::trial::process::child::LOG_LINES;
use crate::trial::process::reader::{LogTail, read_log};

/// The reading side of a command's output.
#[derive(Debug)]
pub(super) struct Output {
    tail: LogTail,
    /// `None` once the output has ended.
    lines: Option<Receiver<String>>,
    /// Closed, it stops the reader.
    _stop: PipeWriter,
}

impl Output {
    /// A pipe's writing side for the command, and what reads the other.
    pub(super) fn open() -> io::Result<(PipeWriter, Self)> {
        let (log, writer) = io::pipe()?;
        let (stop, stopper) = io::pipe()?;
        let (sender, lines) = bounded(LOG_LINES);
        let tail = LogTail::default();
        let kept = tail.clone();
        thread::Builder::new()
            .name("command output".to_owned())
            .spawn(move || read_log(Stoppable { log, stop }, &kept, &sender))?;
        Ok((writer, Self { tail, lines: Some(lines), _stop: stopper }))
    }

    /// The next line that waits to be shown, if any does.
    pub(super) fn line(&self) -> Option<String> {
        self.lines.as_ref()?.try_recv().ok()
    }

    /// Waits for the end of the output, but for no longer than `until`.
    pub(super) fn await_end(&mut self, until: Instant) {
        while self.lines.as_ref().is_some_and(|lines| lines.recv_deadline(until).is_ok()) {}
    }

    /// The last lines.
    pub(super) fn tail(&self) -> String {
        self.tail.text()
    }
}

/// A pipe that ends when it ends, or when `stop` does.
struct Stoppable {
    log: PipeReader,
    stop: PipeReader,
}

impl Read for Stoppable {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut either =
                [PollFd::new(self.log.as_fd(), PollFlags::POLLIN), PollFd::new(self.stop.as_fd(), PollFlags::POLLIN)];
            match poll(&mut either, PollTimeout::NONE) {
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let [log, stop] = either.map(|one| one.any().unwrap_or(true));
            if stop {
                return Ok(0);
            }
            if log {
                return self.log.read(buffer);
            }
        }
    }
}
