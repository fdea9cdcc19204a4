//! A connection to another rank: frames over a Unix socket, none of which is waited for past a deadline.
//!
//! A frame is a tag, the number of the operation it belongs to, and a length, in little-endian, followed by the bytes.
//! The number shows two ranks that call different operations; the length is known before, so a frame never makes its
//! reader take more memory than it has ready.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, recv};

use super::CollectiveError;

/// Tag, number, and length.
const HEADER_BYTES: usize = 1 + 8 + 4;
/// The shortest wait that a socket can be asked for.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);
/// Between two looks of one that waits at whether its own rank has left meanwhile.
const LOOK: Duration = Duration::from_millis(20);
/// How long the news of a lost rank may take to be sent. Its frame is small and nearly always has room.
const NEWS: Duration = Duration::from_millis(200);

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Tag {
    /// A rank says who it is.
    Hello = 1,
    /// One word.
    Word = 2,
    /// The words of all ranks.
    Words = 3,
    /// Values of a tensor.
    Values = 4,
    /// A rank is lost: its number.
    Lost = 5,
}

/// When an operation gives up, and how long it then has waited.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    until: Instant,
    patience: Duration,
}

impl Deadline {
    pub(super) fn after(patience: Duration) -> Self {
        let now = Instant::now();
        // A patience beyond what a clock can hold is one of a day.
        Self { until: now.checked_add(patience).unwrap_or(now + Duration::from_secs(86_400)), patience }
    }

    pub(super) fn left(self) -> Option<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left.max(SHORTEST_WAIT))
    }

    pub(super) fn silence(self, rank: usize) -> CollectiveError {
        CollectiveError::PeerSilent { rank, seconds: self.patience.as_secs_f64() }
    }
}

/// A connection to one rank.
#[derive(Debug)]
pub(super) struct Link {
    stream: UnixStream,
    /// Who is at the other end.
    peer: usize,
    /// Whether this rank has left the group: then nothing is waited for any more.
    has_left: Arc<AtomicBool>,
}

impl Link {
    pub(super) fn new(stream: UnixStream, peer: usize) -> Self {
        Self { stream, peer, has_left: Arc::default() }
    }

    /// Heeds a sign that this rank has left, which another thread may give while one waits here.
    pub(super) fn heed(&mut self, has_left: &Arc<AtomicBool>) {
        self.has_left = Arc::clone(has_left);
    }

    pub(super) fn peer(&self) -> usize {
        self.peer
    }

    /// Sends a frame of operation `number`.
    pub(super) fn send(
        &mut self,
        (tag, number): (Tag, u64),
        bytes: &[u8],
        by: Deadline,
    ) -> Result<(), CollectiveError> {
        let length = u32::try_from(bytes.len()).map_err(|_| self.out_of_step("a frame is too long"))?;
        let mut header = [0_u8; HEADER_BYTES];
        header[0] = tag as u8;
        header[1..9].copy_from_slice(&number.to_le_bytes());
        header[9..].copy_from_slice(&length.to_le_bytes());
        self.write(&header, by)?;
        self.write(bytes, by)
    }

    /// Receives the frame of operation `number` that fills `bytes`.
    pub(super) fn receive(
        &mut self,
        (tag, number): (Tag, u64),
        bytes: &mut [u8],
        by: Deadline,
    ) -> Result<(), CollectiveError> {
        let mut header = [0_u8; HEADER_BYTES];
        self.read(&mut header, by)?;
        let [found, number_and_length @ ..] = header;
        let (of_number, of_length) = number_and_length.split_at(8);
        let found_number = of_number.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        let length = of_length.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        if found == Tag::Lost as u8 && length == 0 {
            return Err(CollectiveError::PeerLost { rank: usize::try_from(found_number).unwrap_or(self.peer) });
        }
        if found != tag as u8 || found_number != number {
            return Err(self.out_of_step(&format!("operation {found_number} where {number} was expected")));
        }
        if length != bytes.len() as u64 {
            return Err(self.out_of_step(&format!("{length} bytes where {} were expected", bytes.len())));
        }
        self.read(bytes, by)
    }

    /// Tells the other end that a rank is lost. Whether it listens shows soon enough.
    pub(super) fn tell_lost(&mut self, rank: usize) {
        // The number of the operation is that of the rank: there is none any more.
        let _ = self.send((Tag::Lost, rank as u64), &[], Deadline::after(NEWS));
    }

    fn read(&mut self, bytes: &mut [u8], by: Deadline) -> Result<(), CollectiveError> {
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let left = by.left().ok_or_else(|| by.silence(self.peer))?;
            let read = self.stream.set_read_timeout(Some(left.min(LOOK))).and_then(|()| self.stream.read(rest));
            match read {
                Ok(0) => return Err(CollectiveError::PeerLost { rank: self.peer }),
                Ok(count) => filled += count,
                Err(_) if self.has_left.load(Ordering::Acquire) => return Err(CollectiveError::Left),
                Err(error) => self.bear(&error)?,
            }
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8], by: Deadline) -> Result<(), CollectiveError> {
        let mut sent = 0;
        while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            let left = by.left().ok_or_else(|| by.silence(self.peer))?;
            // The standard library sends with MSG_NOSIGNAL, so a peer that is gone is an error and no signal.
            match self.stream.set_write_timeout(Some(left)).and_then(|()| self.stream.write(rest)) {
                Ok(count) => sent += count,
                // A peer that left since another rank is lost has said so before, and that is the one to name.
                Err(error) => self.bear(&error).map_err(|gone| match self.lost() {
                    Some(rank) => CollectiveError::PeerLost { rank },
                    None => gone,
                })?,
            }
        }
        Ok(())
    }

    /// Whether to try again after an error. A wait that ended is one: the deadline decides.
    fn bear(&self, error: &io::Error) -> Result<(), CollectiveError> {
        match error.kind() {
            io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Ok(()),
            _ => Err(CollectiveError::PeerLost { rank: self.peer }),
        }
    }

    fn out_of_step(&self, reason: &str) -> CollectiveError {
        CollectiveError::OutOfStep { rank: self.peer, reason: reason.to_owned() }
    }

    /// Whether the other end is gone or has left, without taking anything off the connection; who, then. For a rank
    /// that waits for something else meanwhile, or whose words do not arrive any more.
    pub(super) fn lost(&self) -> Option<usize> {
        let mut header = [0_u8; HEADER_BYTES];
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        match recv(self.stream.as_raw_fd(), &mut header, flags) {
            Ok(0) => Some(self.peer),
            Ok(HEADER_BYTES) if header[0] == Tag::Lost as u8 => Some(usize::from(header[1])),
            Ok(_) | Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => None,
            Err(_) => Some(self.peer),
        }
    }
}
