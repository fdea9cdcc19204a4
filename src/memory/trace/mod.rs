//! A recording as replay needs it: the events, and what the recorder knew beside them.
//!
//! Every reader makes one: [`snapshot`](super::snapshot) from a PyTorch snapshot, and the virtual device and the CUDA
//! hook from what they see. The events alone can be replayed under any allocator. Where the recorder was a caching
//! allocator itself, the addresses it chose and the segments it took and gave back are kept, so that a replay under its
//! own settings can be compared with it block by block.

use super::event::{Event, Ordinal, Stream};
use super::policy::{Address, AllocConf};

pub mod file;
pub mod rmm;

/// The most events of a recording, whatever its format, and of all recordings that are forecast from together. In memory
/// each takes some forty bytes, several times over where it is forecast from.
pub const MAX_EVENTS: usize = 50_000_000;

pub use file::{TraceFileError, TraceHeader, TraceWriter};
pub use rmm::RmmError;

/// A recording.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// What happened, in order. Ordinals count up from 0 without gaps.
    pub events: Vec<Event>,
    /// For each event its number in the file it came from; empty where that is its own place.
    pub source: Vec<u32>,
    /// Where the recorder put each allocation, by ordinal; empty where nobody knows.
    pub addresses: Vec<Address>,
    /// What the recorder took from the device and gave back.
    pub segments: Vec<SegmentEvent>,
    /// Requests that the recorder could not meet.
    pub failures: Vec<Failure>,
    /// The recorder's own settings.
    pub conf: AllocConf,
    /// Why a replay cannot reproduce the recording, where it cannot.
    pub obstacle: Option<Obstacle>,
}

/// A segment, or a group of pages, taken or given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentEvent {
    /// The event it came before, by its place in [`Trace::events`].
    pub before: usize,
    /// What happened.
    pub action: SegmentAction,
    /// The first address.
    pub address: Address,
    /// The size.
    pub bytes: u64,
    /// The stream.
    pub stream: Stream,
}

/// What happens to a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentAction {
    /// Taken from the device.
    Allocate,
    /// Given back.
    Free,
    /// Pages mapped.
    Map,
    /// Pages unmapped.
    Unmap,
}

/// A request that was not met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The event it came before, by its place in [`Trace::events`].
    pub before: usize,
    /// Its number in the file.
    pub source: u32,
    /// The request as the file has it (PyTorch writes it rounded).
    pub bytes: u64,
    /// The stream.
    pub stream: Stream,
    /// What the device had free at that moment.
    pub device_free_bytes: Option<u64>,
}

/// Why a recording cannot be reproduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// There are no events.
    #[error("the file has no trace of events")]
    NoEvents,
    /// The beginning is missing.
    #[error("the trace begins after the first allocation: its ring buffer wrapped, or it was switched on late")]
    Wrapped,
    /// Some kinds of event were not written.
    #[error("the trace leaves out segment events")]
    NoSegments,
    /// CUDA graphs or memory pools have segments of their own.
    #[error("segments of private pools (CUDA graphs, MemPool) are in use")]
    PrivatePools,
}

impl Trace {
    /// A recording of events alone.
    pub fn of_events(events: Vec<Event>) -> Self {
        Self { events, ..Self::default() }
    }

    /// The number of an event in the file it came from.
    pub fn source_of(&self, event: usize) -> u64 {
        self.source.get(event).map_or(event as u64, |number| u64::from(*number))
    }

    /// One more than the highest ordinal, or `None` where ordinals have gaps that no recorder leaves, which would
    /// make a table of them as large as a stranger likes.
    pub fn ordinals(&self) -> Option<usize> {
        let highest = self.events.iter().filter_map(|event| match event {
            Event::Alloc { ordinal: Ordinal(number), .. } => Some(*number),
            _ => None,
        });
        let count = highest.max().map_or(0, |number| number.saturating_add(1));
        (count <= self.events.len() as u64).then_some(count as usize)
    }
}
