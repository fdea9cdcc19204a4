//! How the ranks of a group find each other: rank 0 listens on a socket in a folder, the others come to it.
//!
//! The folder is the group's own and lies in the study, whose path may be longer than the 107 bytes that a socket's
//! address holds. So the address goes through the open folder's own entry in `/proc`, which is always short.
//!
//! A rank says its number and the group's token. Whoever says anything else is sent away and does not count: another
//! user's process that finds the socket can delay the meeting by a moment, and not take part.
//!
//! Where their machines are apart there is no such folder, and each rank has its wires already; they only wait for each
//! other.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::link::{Deadline, Link, Tag};
use super::{CollectiveError, MOST_RANKS, Meeting, Relay, Replica};

/// The socket's name.
const SOCKET: &str = "rank-0";
/// Between two looks at whether somebody came, or whether rank 0 listens.
const LOOK: Duration = Duration::from_millis(2);
/// How long whoever came may take to say who it is.
const INTRODUCTION: Duration = Duration::from_secs(2);
/// Token, rank, and size of the group.
const HELLO_BYTES: usize = 24;

/// The connections of a rank once all have come: of rank 0 to each of the others in their order, of the others to it.
pub(super) fn links(replica: &Replica, relay: &Relay) -> Result<Vec<Link>, CollectiveError> {
    let Replica { rank, world, ref meeting, .. } = *replica;
    if rank >= world || world > MOST_RANKS {
        return Err(CollectiveError::NoSuchRank { rank, world });
    }
    let by = Deadline::after(replica.start);
    match meeting {
        Meeting::Folder(folder) => in_folder(folder, replica, by),
        Meeting::Driver(_) => by_driver(relay, replica, by),
    }
}

/// The ranks greet each other over the wires that there are.
fn by_driver(relay: &Relay, replica: &Replica, by: Deadline) -> Result<Vec<Link>, CollectiveError> {
    let mut links = Vec::new();
    for peer in replica.peers() {
        let wire = relay.take(peer).map_err(|error| CollectiveError::Wire(error.to_string()))?;
        links.push(Link::new(wire, peer));
    }
    if replica.rank == 0 {
        for link in &mut links {
            let mut said = [0; HELLO_BYTES];
            link.receive((Tag::Hello, 0), &mut said, by)?;
            if said != hello(replica, link.peer()) {
                let reason = "it is of another group".to_owned();
                return Err(CollectiveError::OutOfStep { rank: link.peer(), reason });
            }
        }
        for link in &mut links {
            link.send((Tag::Hello, 0), &[], by)?;
        }
    } else {
        for link in &mut links {
            link.send((Tag::Hello, 0), &hello(replica, replica.rank), by)?;
            link.receive((Tag::Hello, 0), &mut [], by)?;
        }
    }
    Ok(links)
}

fn in_folder(meeting: &Path, replica: &Replica, by: Deadline) -> Result<Vec<Link>, CollectiveError> {
    let failed = |error: io::Error| CollectiveError::Meeting { folder: meeting.to_owned(), reason: error.to_string() };
    let folder = File::open(meeting).map_err(failed)?;
    let address = address(&folder);
    if replica.rank == 0 {
        let listener = UnixListener::bind(&address).map_err(failed)?;
        let links = receive(&listener, (replica, meeting), by);
        // Nobody else is to come. A folder that cannot be changed any more goes with its study.
        let _ = std::fs::remove_file(&address);
        links
    } else {
        come(&address, replica, by).map(|link| vec![link])
    }
}

fn address(folder: &File) -> PathBuf {
    Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(SOCKET)
}

fn hello(replica: &Replica, rank: usize) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip([replica.token, rank as u64, replica.world as u64]) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Rank 0: waits for all the others.
fn receive(
    listener: &UnixListener,
    (replica, meeting): (&Replica, &Path),
    by: Deadline,
) -> Result<Vec<Link>, CollectiveError> {
    let failed = |error: io::Error| CollectiveError::Meeting { folder: meeting.to_owned(), reason: error.to_string() };
    listener.set_nonblocking(true).map_err(failed)?;
    let mut links: Vec<Link> = Vec::new();
    loop {
        let missing = (1..replica.world).find(|rank| links.iter().all(|link| link.peer() != *rank));
        let Some(missing) = missing else { break };
        let left = by.left().ok_or_else(|| by.silence(missing))?;
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(failed)?;
                if let Some(link) = introduced(stream, replica, Deadline::after(INTRODUCTION.min(left)))
                    && links.iter().all(|known| known.peer() != link.peer())
                {
                    links.push(link);
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                thread::sleep(LOOK.min(left));
            }
            Err(error) => return Err(failed(error)),
        }
    }
    links.sort_by_key(Link::peer);
    for link in &mut links {
        link.send((Tag::Hello, 0), &[], by)?;
    }
    Ok(links)
}

/// The connection of one that says it is a rank of this group.
fn introduced(stream: UnixStream, replica: &Replica, by: Deadline) -> Option<Link> {
    let mut said = [0; HELLO_BYTES];
    let mut stranger = Link::new(stream.try_clone().ok()?, 0);
    stranger.receive((Tag::Hello, 0), &mut said, by).ok()?;
    (1..replica.world).find(|rank| hello(replica, *rank) == said).map(|rank| Link::new(stream, rank))
}

/// The others: come to rank 0 as soon as it listens, and wait until all are there.
fn come(address: &Path, replica: &Replica, by: Deadline) -> Result<Link, CollectiveError> {
    let stream = loop {
        match UnixStream::connect(address) {
            Ok(stream) => break stream,
            Err(_) => match by.left() {
                Some(left) => thread::sleep(LOOK.min(left)),
                None => return Err(by.silence(0)),
            },
        }
    };
    let mut link = Link::new(stream, 0);
    link.send((Tag::Hello, 0), &hello(replica, replica.rank), by)?;
    link.receive((Tag::Hello, 0), &mut [], by)?;
    Ok(link)
}
