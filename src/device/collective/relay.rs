//! Wires between ranks whose machines are apart: their driver passes on what they say.
//!
//! The driver hears every rank, wherever its launcher put it, so no port is opened and no address is guessed. A wire is a
//! pair of sockets within the process. The group has one end and uses it as it would a connection to another process; what
//! it writes is read at the other end and told to the driver ([`Relay::pump`]), and what the driver passes on is written
//! there ([`Relay::deliver`]). Every word takes two hops, which is nothing beside a step; tensors do not go this way.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use super::MOST_RANKS;

/// What is read at once: a group's words are a few dozen bytes.
const CHUNK_BYTES: usize = 4096;

/// The wires of a rank, one a peer. Either side may be the first to need one.
#[derive(Debug, Default)]
pub struct Relay(Mutex<BTreeMap<usize, Wire>>);

#[derive(Debug)]
struct Wire {
    outer: UnixStream,
    /// Until the group has taken it.
    inner: Option<UnixStream>,
}

impl Relay {
    fn with_wire<T>(&self, peer: usize, what: impl FnOnce(&mut Wire) -> io::Result<T>) -> io::Result<T> {
        let mut wires = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wire = match wires.entry(peer) {
            std::collections::btree_map::Entry::Occupied(wire) => wire.into_mut(),
            std::collections::btree_map::Entry::Vacant(place) => {
                let (outer, inner) = UnixStream::pair()?;
                place.insert(Wire { outer, inner: Some(inner) })
            }
        };
        what(wire)
    }

    /// The group's end of the wire to a peer.
    pub(super) fn take(&self, peer: usize) -> io::Result<UnixStream> {
        self.with_wire(peer, |wire| wire.inner.take().ok_or_else(|| io::Error::other("its wire is in use")))
    }

    /// Gives the group what a peer has said. Nothing means that it is gone. A group that is over does not listen.
    pub fn deliver(&self, peer: usize, bytes: &[u8]) {
        if peer < MOST_RANKS
            && let Ok(mut outer) = self.with_wire(peer, |wire| wire.outer.try_clone())
        {
            let _ = if bytes.is_empty() { outer.shutdown(Shutdown::Write) } else { outer.write_all(bytes) };
        }
    }

    /// Tells what the group says to a peer, until it says no more, which is told as nothing.
    pub fn pump(&self, peer: usize, mut tell: impl FnMut(Vec<u8>)) {
        if let Ok(mut outer) = self.with_wire(peer, |wire| wire.outer.try_clone()) {
            let mut bytes = [0; CHUNK_BYTES];
            while let Ok(count @ 1..) = outer.read(&mut bytes) {
                tell(bytes.get(..count).unwrap_or_default().to_vec());
            }
        }
        tell(Vec::new());
    }

    /// Ends every wire, so that whoever reads one is done.
    pub fn close(&self) {
        for wire in self.0.lock().unwrap_or_else(PoisonError::into_inner).values() {
            let _ = wire.outer.shutdown(Shutdown::Both);
        }
    }
}
