//! PyTorch memory snapshots: what `torch.cuda.memory._dump_snapshot` writes.
//!
//! A snapshot is a pickled dictionary. Its `segments` list is the allocator's state at one moment, block by block, and
//! is always complete; its `device_traces` are the events before that moment, as far back as the ring buffer reaches.
//! Several versions of PyTorch wrote several forms; [`read`](Snapshot::read) accepts them all and gives this one.

use std::collections::HashMap;

use super::event::{Event, Ordinal, Stream};
use super::policy::{Address, AllocConf};
use super::trace::{Failure, MAX_EVENTS, Obstacle, SegmentAction, SegmentEvent, Trace};

mod of_trace;
mod pickle;
mod read;
mod write;

pub(in crate::memory) use of_trace::play;
pub(crate) use of_trace::segments_of;
pub use pickle::PickleError;
pub use read::SnapshotError;

/// A snapshot.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The allocator's segments.
    pub segments: Vec<Segment>,
    /// The events of each device, by its index.
    pub traces: Vec<Vec<Entry>>,
    /// The allocator's settings.
    pub conf: AllocConf,
    /// The stack frames that blocks and events refer to, each stack once.
    pub stacks: Vec<Vec<Frame>>,
    /// The names of functions and files, each once.
    pub texts: Vec<Box<str>>,
}

/// A segment (under expandable segments: a contiguous mapped range).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The device's index.
    pub device: u64,
    /// The first address.
    pub address: Address,
    /// Its size.
    pub bytes: u64,
    /// Its stream.
    pub stream: Stream,
    /// Whether it serves small requests.
    pub is_small: bool,
    /// Whether it grows page by page.
    pub is_expandable: bool,
    /// Whether it belongs to a CUDA graph or a `MemPool`.
    pub is_private: bool,
    /// Its blocks in the order of their addresses.
    pub blocks: Vec<Block>,
}

/// A block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The first address.
    pub address: Address,
    /// Its size.
    pub bytes: u64,
    /// What was asked for. PyTorch leaves an old value in inactive blocks.
    pub requested_bytes: u64,
    /// Whether it is in use.
    pub state: BlockState,
    /// Who asked for it: a place in [`Snapshot::stacks`].
    pub stack: Option<u32>,
}

/// Whether a block is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// In use by the program.
    Active,
    /// Freed by the program, in use on another stream.
    PendingFree,
    /// In the cache.
    Inactive,
}

/// A stack frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The function: a place in [`Snapshot::texts`].
    pub function: Option<u32>,
    /// The file: a place in [`Snapshot::texts`].
    pub file: Option<u32>,
    /// The line.
    pub line: u64,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What happened.
    pub action: Action,
    /// Where; for an out-of-memory entry what the device had free.
    pub address: u64,
    /// The size: what was asked for (rounded, for an out-of-memory entry), or a segment's.
    pub bytes: u64,
    /// On which stream.
    pub stream: Stream,
    /// When.
    pub time_us: u64,
    /// From where.
    pub stack: Option<u32>,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A block was handed out.
    Alloc,
    /// The program gave a block back.
    FreeRequested,
    /// A block came back into the cache.
    FreeCompleted,
    /// Something happened to a segment.
    Segment(SegmentAction),
    /// A request failed.
    OutOfMemory,
    /// Something that has no bearing on memory: a snapshot was taken, an annotation, a kind that is newer than this.
    Other,
}

impl Snapshot {
    /// Reads a snapshot file's content.
    pub fn read(data: &[u8]) -> Result<Self, SnapshotError> {
        read::read_within(data, MAX_EVENTS)
    }

    /// The frames of a stack, the innermost first.
    pub fn frames(&self, stack: Option<u32>) -> &[Frame] {
        stack.and_then(|place| self.stacks.get(place as usize)).map_or(&[], Vec::as_slice)
    }

    /// A name that a frame refers to.
    pub fn text(&self, place: Option<u32>) -> &str {
        place.and_then(|place| self.texts.get(place as usize)).map_or("?", AsRef::as_ref)
    }

    /// The device with the most events, or the first.
    pub fn busiest_device(&self) -> usize {
        let lengths = self.traces.iter().map(Vec::len).enumerate();
        lengths.max_by_key(|(device, length)| (*length, std::cmp::Reverse(*device))).map_or(0, |(device, _)| device)
    }

    /// One device's events in the form that replay takes.
    pub fn trace(&self, device: usize) -> Trace {
        let entries = self.traces.get(device).map_or(&[][..], Vec::as_slice);
        let mut builder = TraceBuilder::new(entries.len());
        for (place, entry) in entries.iter().enumerate() {
            builder.add(place, entry, entries.get(place + 1));
        }
        let obstacle = self.obstacle(device, entries, &builder);
        Trace { conf: self.conf.clone(), obstacle, ..builder.trace }
    }

    /// Why a replay cannot come to the file's own state.
    fn obstacle(&self, device: usize, entries: &[Entry], builder: &TraceBuilder) -> Option<Obstacle> {
        let mut segments = self.segments.iter().filter(|segment| segment.device == device as u64).peekable();
        if entries.is_empty() {
            return Some(Obstacle::NoEvents);
        }
        if builder.unknown_frees > 0 {
            return Some(Obstacle::Wrapped);
        }
        if builder.trace.segments.is_empty() {
            return Some(Obstacle::NoSegments);
        }
        // What is live in the file must be what the trace leaves live.
        let live = segments.peek().is_some().then(|| {
            let blocks = self.segments.iter().filter(|segment| segment.device == device as u64).flat_map(|s| &s.blocks);
            blocks.filter(|block| block.state != BlockState::Inactive).count()
        });
        if live.is_some_and(|live| live > builder.live.len()) {
            return Some(Obstacle::Wrapped);
        }
        segments.any(|segment| segment.is_private).then_some(Obstacle::PrivatePools)
    }
}

/// Turns addresses into ordinals.
struct TraceBuilder {
    trace: Trace,
    live: HashMap<u64, Ordinal, super::policy::FastHash>,
    /// Frees of what was never allocated.
    unknown_frees: u64,
    /// The completion that was merged into the request before it.
    merged: Option<usize>,
}

impl TraceBuilder {
    fn new(entries: usize) -> Self {
        let trace =
            Trace { events: Vec::with_capacity(entries), source: Vec::with_capacity(entries), ..Trace::default() };
        Self { trace, live: HashMap::default(), unknown_frees: 0, merged: None }
    }

    fn add(&mut self, place: usize, entry: &Entry, next: Option<&Entry>) {
        let before = self.trace.events.len();
        match entry.action {
            Action::Alloc => {
                let ordinal = Ordinal(self.trace.addresses.len() as u64);
                self.trace.addresses.push(Address(entry.address));
                self.live.insert(entry.address, ordinal);
                self.push(place, Event::Alloc { ordinal, bytes: entry.bytes, stream: entry.stream });
            }
            Action::FreeRequested => {
                // Nearly always the completion follows at once, and the two are one event.
                let completes = |next: &Entry| next.action == Action::FreeCompleted && next.address == entry.address;
                if next.is_some_and(completes) {
                    self.merged = Some(place + 1);
                    self.free(place, entry.address);
                } else if let Some(ordinal) = self.live.get(&entry.address).copied() {
                    self.push(place, Event::FreeRequested { ordinal });
                } else {
                    self.unknown_frees += 1;
                }
            }
            Action::FreeCompleted if self.merged == Some(place) => {}
            Action::FreeCompleted => self.free(place, entry.address),
            Action::Segment(action) => {
                let (address, bytes, stream) = (Address(entry.address), entry.bytes, entry.stream);
                self.trace.segments.push(SegmentEvent { before, action, address, bytes, stream });
            }
            Action::OutOfMemory => self.trace.failures.push(Failure {
                before,
                source: place as u32,
                bytes: entry.bytes,
                stream: entry.stream,
                device_free_bytes: Some(entry.address),
            }),
            Action::Other => {}
        }
    }

    fn free(&mut self, place: usize, address: u64) {
        match self.live.remove(&address) {
            Some(ordinal) => self.push(place, Event::Free { ordinal }),
            None => self.unknown_frees += 1,
        }
    }

    fn push(&mut self, place: usize, event: Event) {
        self.trace.events.push(event);
        self.trace.source.push(place as u32);
    }
}

#[cfg(test)]
mod tests;
