//! From a pickle's values to a [`Snapshot`].
//!
//! The keys are those of `torch/csrc/cuda/memory_snapshot.cpp` and `torch/cuda/memory.py`. Older files have blocks
//! without an address (they follow each other), a `history` in place of `requested_size`, or are a bare list of
//! segments. Unknown keys and kinds of event are passed over, since newer files have more of both.

use std::collections::HashMap;

use super::pickle::{self, Arena, MAX_KEYS, PickleError, Value};
use super::{Action, Block, BlockState, Entry, Frame, Segment, Snapshot};
use crate::memory::event::Stream;
use crate::memory::policy::settings::ROUNDUP_CLASSES;
use crate::memory::policy::{Address, AllocConf, FastHash};
use crate::memory::trace::SegmentAction;

/// No machine has more devices.
const MAX_DEVICES: usize = 1024;

/// Why a file is not a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// It cannot be read as a pickle.
    #[error(transparent)]
    Pickle(#[from] PickleError),
    /// It is one, of something else.
    #[error("not a memory snapshot: {path} is not {expected}")]
    Shape {
        /// Where in the file.
        path: &'static str,
        /// What belongs there.
        expected: &'static str,
    },
    /// The same part is used more than once, which no snapshot does and which could make it as large as it likes.
    #[error("not a memory snapshot: parts of it are used more than once")]
    Shared,
    /// More than is read.
    #[error("the snapshot has more than {limit} events (hint: record fewer steps; a handful tells all)")]
    TooLong {
        /// The most events that are read, of all devices together.
        limit: usize,
    },
}

pub(super) fn read_within(data: &[u8], limit: usize) -> Result<Snapshot, SnapshotError> {
    let (arena, root) = pickle::read(data)?;
    let mut reader = Reader::new(&arena, limit);
    let mut snapshot = Snapshot::default();
    if matches!(root, Value::List(_)) {
        snapshot.segments = reader.segments(root)?;
    } else {
        let segments = arena.get(root, "segments").ok_or_else(|| shape("the file", "a dictionary with `segments`"))?;
        snapshot.segments = reader.segments(segments)?;
        if let Some(traces) = arena.get(root, "device_traces") {
            snapshot.traces = reader.traces(traces)?;
        }
        if let Some(settings) = arena.get(root, "allocator_settings") {
            snapshot.conf = reader.conf(settings);
        }
    }
    snapshot.stacks = reader.stacks;
    snapshot.texts = arena.into_texts();
    Ok(snapshot)
}

fn shape(path: &'static str, expected: &'static str) -> SnapshotError {
    SnapshotError::Shape { path, expected }
}

/// Keys that every event or block has, found once in the file's texts.
struct Keys {
    action: Option<Value>,
    address: [Option<Value>; 2],
    bytes: Option<Value>,
    stream: Option<Value>,
    time: Option<Value>,
    frames: Option<Value>,
    device_free: Option<Value>,
    requested: Option<Value>,
    state: Option<Value>,
    history: Option<Value>,
}

struct Reader<'a> {
    arena: &'a Arena,
    keys: Keys,
    stacks: Vec<Vec<Frame>>,
    known_stacks: HashMap<u32, Option<u32>, FastHash>,
    /// Dictionaries turned into blocks, events or segments so far: no more than the file made.
    used: usize,
    /// The most events that are read, and those so far.
    limit: usize,
    events: usize,
}

impl<'a> Reader<'a> {
    fn new(arena: &'a Arena, limit: usize) -> Self {
        let key = |text| arena.key(text);
        let keys = Keys {
            action: key("action"),
            address: [key("addr"), key("address")],
            bytes: key("size"),
            stream: key("stream"),
            time: key("time_us"),
            frames: key("frames"),
            device_free: key("device_free"),
            requested: key("requested_size"),
            state: key("state"),
            history: key("history"),
        };
        Self { arena, keys, stacks: Vec::new(), known_stacks: HashMap::default(), used: 0, limit, events: 0 }
    }

    /// The entries of a dictionary that stands for one thing.
    fn entries(
        &mut self,
        value: Value,
        path: &'static str,
    ) -> Result<impl Iterator<Item = (Value, Value)> + use<'a>, SnapshotError> {
        let arena = self.arena;
        let entries = arena.entries(value).ok_or_else(|| shape(path, "a dictionary"))?;
        self.used += 1;
        if self.used > self.arena.dictionaries() {
            return Err(SnapshotError::Shared);
        }
        Ok(entries.take(MAX_KEYS))
    }

    fn list(&self, value: Value, path: &'static str) -> Result<&'a [Value], SnapshotError> {
        let arena = self.arena;
        arena.items(value).ok_or_else(|| shape(path, "a list"))
    }

    fn segments(&mut self, value: Value) -> Result<Vec<Segment>, SnapshotError> {
        self.list(value, "`segments`")?.iter().map(|segment| self.segment(*segment)).collect()
    }

    fn segment(&mut self, value: Value) -> Result<Segment, SnapshotError> {
        let mut segment = Segment::default();
        let mut blocks = None;
        for (key, value) in self.entries(value, "a segment")? {
            match self.arena.text(key).unwrap_or_default() {
                "device" => segment.device = size(value, "a segment's `device`")?,
                "address" => segment.address = Address(size(value, "a segment's `address`")?),
                "total_size" => segment.bytes = size(value, "a segment's `total_size`")?,
                "stream" => segment.stream = stream(value),
                "segment_type" => segment.is_small = self.arena.text(value) == Some("small"),
                "is_expandable" => segment.is_expandable = value == Value::Bool(true),
                "segment_pool_id" => {
                    let id = self.arena.items(value).unwrap_or_default();
                    segment.is_private = id.iter().any(|part| part.integer() != Some(0));
                }
                "blocks" => blocks = Some(value),
                _ => {}
            }
        }
        let blocks = self.list(blocks.unwrap_or(Value::None), "a segment's `blocks`")?;
        let mut address = segment.address.0;
        segment.blocks.reserve(blocks.len().min(self.arena.dictionaries()));
        for block in blocks {
            let block = self.block(*block, address)?;
            address = block.address.0.saturating_add(block.bytes);
            segment.blocks.push(block);
        }
        Ok(segment)
    }

    /// A block; `address` is where it is if it does not say.
    fn block(&mut self, value: Value, address: u64) -> Result<Block, SnapshotError> {
        let mut block =
            Block { address: Address(address), bytes: 0, requested_bytes: 0, state: BlockState::Inactive, stack: None };
        let mut requested = None;
        for (key, value) in self.entries(value, "a block")? {
            let key = Some(key);
            if key == self.keys.bytes {
                block.bytes = size(value, "a block's `size`")?;
            } else if key == self.keys.requested {
                requested = Some(size(value, "a block's `requested_size`")?);
            } else if self.keys.address.contains(&key) {
                block.address = Address(size(value, "a block's `address`")?);
            } else if key == self.keys.state {
                block.state = self.state(value)?;
            } else if key == self.keys.frames {
                block.stack = self.stack(value);
            } else if key == self.keys.history
                && let Some(latest) = self.arena.items(value).and_then(|history| history.first()).copied()
            {
                requested = self.arena.get(latest, "real_size").and_then(|bytes| size(bytes, "").ok()).or(requested);
                block.stack = self.arena.get(latest, "frames").and_then(|frames| self.stack(frames)).or(block.stack);
            }
        }
        block.requested_bytes = requested.unwrap_or(block.bytes);
        Ok(block)
    }

    fn state(&self, value: Value) -> Result<BlockState, SnapshotError> {
        match self.arena.text(value) {
            Some("active_allocated") => Ok(BlockState::Active),
            Some("active_pending_free" | "active_awaiting_free") => Ok(BlockState::PendingFree),
            Some("inactive") => Ok(BlockState::Inactive),
            _ => Err(shape("a block's `state`", "`active_allocated`, `active_pending_free` or `inactive`")),
        }
    }

    fn traces(&mut self, value: Value) -> Result<Vec<Vec<Entry>>, SnapshotError> {
        let devices = self.list(value, "`device_traces`")?;
        devices.iter().take(MAX_DEVICES).map(|entries| self.entries_of_device(*entries)).collect()
    }

    fn entries_of_device(&mut self, value: Value) -> Result<Vec<Entry>, SnapshotError> {
        let list = self.list(value, "a device's trace")?;
        self.events = self.events.saturating_add(list.len());
        if self.events > self.limit {
            return Err(SnapshotError::TooLong { limit: self.limit });
        }
        let mut entries = Vec::with_capacity(list.len().min(self.arena.dictionaries()));
        for entry in list {
            entries.push(self.entry(*entry)?);
        }
        Ok(entries)
    }

    fn entry(&mut self, value: Value) -> Result<Entry, SnapshotError> {
        let mut entry =
            Entry { action: Action::Other, address: 0, bytes: 0, stream: Stream(0), time_us: 0, stack: None };
        for (key, value) in self.entries(value, "an event")? {
            let key = Some(key);
            if key == self.keys.action {
                entry.action = self.action(value)?;
            } else if self.keys.address.contains(&key) || key == self.keys.device_free {
                entry.address = size(value, "an event's `addr`")?;
            } else if key == self.keys.bytes {
                entry.bytes = size(value, "an event's `size`")?;
            } else if key == self.keys.stream {
                entry.stream = stream(value);
            } else if key == self.keys.time {
                entry.time_us = value.integer().and_then(|time| u64::try_from(time).ok()).unwrap_or(0);
            } else if key == self.keys.frames {
                entry.stack = self.stack(value);
            }
        }
        Ok(entry)
    }

    fn action(&self, value: Value) -> Result<Action, SnapshotError> {
        Ok(match self.arena.text(value).ok_or_else(|| shape("an event's `action`", "a text"))? {
            "alloc" => Action::Alloc,
            "free_requested" => Action::FreeRequested,
            "free_completed" => Action::FreeCompleted,
            "segment_alloc" => Action::Segment(SegmentAction::Allocate),
            "segment_free" => Action::Segment(SegmentAction::Free),
            "segment_map" => Action::Segment(SegmentAction::Map),
            "segment_unmap" => Action::Segment(SegmentAction::Unmap),
            "oom" => Action::OutOfMemory,
            _ => Action::Other,
        })
    }

    /// A stack of frames, read once for each list in the file; `None` where it is empty or not a list.
    fn stack(&mut self, value: Value) -> Option<u32> {
        let (Value::List(place) | Value::Tuple(place)) = value else { return None };
        if let Some(known) = self.known_stacks.get(&place) {
            return *known;
        }
        let arena = self.arena;
        let text = |frame, key| match arena.get(frame, key) {
            Some(Value::Text(place)) => Some(place),
            _ => None,
        };
        let frames = arena.items(value).unwrap_or_default().iter().map(|frame| Frame {
            function: text(*frame, "name"),
            file: text(*frame, "filename"),
            line: arena.get(*frame, "line").and_then(|line| size(line, "").ok()).unwrap_or(0),
        });
        let frames: Vec<Frame> = frames.collect();
        let stack = (!frames.is_empty()).then(|| {
            self.stacks.push(frames);
            (self.stacks.len() - 1) as u32
        });
        self.known_stacks.insert(place, stack);
        stack
    }

    /// The settings in force. The text of the variable is parsed for what the dictionary does not hold.
    fn conf(&self, value: Value) -> AllocConf {
        let text = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"].into_iter().find_map(|key| {
            self.arena.get(value, key).and_then(|text| self.arena.text(text)).filter(|text| !text.is_empty())
        });
        // A file with settings newer than this reader still tells its blocks.
        let mut conf: AllocConf = text.and_then(|text| text.parse().ok()).unwrap_or_default();
        let settings = &mut conf.settings;
        if let Some(bytes) = self.arena.get(value, "max_split_size").and_then(Value::integer) {
            // −1 and the like: unlimited, as a signed or an unsigned number's end.
            settings.max_split_bytes = u64::try_from(bytes).ok().filter(|bytes| *bytes < i64::MAX as u64);
        }
        if let Some(threshold) = self.arena.get(value, "garbage_collection_threshold").and_then(Value::number) {
            settings.garbage_collection_threshold = (threshold > 0.0 && threshold <= 1.0).then_some(threshold);
        }
        if let Some(expandable) = self.arena.get(value, "expandable_segments") {
            settings.expandable_segments = expandable == Value::Bool(true);
        }
        if let Some(divisions) = self.arena.get(value, "roundup_power2_divisions") {
            for class in 0..ROUNDUP_CLASSES {
                let count = self.arena.get(divisions, &(1_u64 << class).to_string()).and_then(Value::integer);
                let count = count.and_then(|count| u32::try_from(count).ok());
                settings.roundup_divisions[class] = count.filter(|count| count.is_power_of_two()).unwrap_or(0);
            }
        }
        conf
    }
}

/// A size, address or count.
fn size(value: Value, path: &'static str) -> Result<u64, SnapshotError> {
    value.integer().and_then(|number| u64::try_from(number).ok()).ok_or_else(|| shape(path, "a number"))
}

/// A stream's handle, which is a pointer and may have any bits.
fn stream(value: Value) -> Stream {
    Stream(value.integer().unwrap_or(0).cast_unsigned())
}
