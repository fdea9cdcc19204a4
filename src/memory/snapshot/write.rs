//! A snapshot as a file that PyTorch's Memory Viz page and `_memory_viz.py` open.
//!
//! The page unpickles in JavaScript: protocol 4 at most, integers of at most eight bytes, and only plain containers
//! (pytorch#183842, pytorch#115234). Addresses above 2^53 would lose digits there. Keys that would make it fail
//! (`category`) are not written. Texts are written once and recalled after.

use std::collections::HashMap;
use std::io::{self, Write};

use super::{Action, Block, BlockState, Entry, Segment, Snapshot};
use crate::memory::policy::settings::ROUNDUP_CLASSES;
use crate::memory::trace::SegmentAction;

/// Items of a list that are written between two marks, as Python does.
const BATCH_ITEMS: usize = 1000;

impl Snapshot {
    /// Writes the snapshot as a pickle of protocol 4. Numbers beyond `i64` are an error of kind `InvalidInput`.
    pub fn write(&self, output: impl Write) -> io::Result<()> {
        let mut pickler = Pickler { output, texts: HashMap::new() };
        pickler.output.write_all(&[0x80, 4])?;
        pickler.snapshot(self)?;
        pickler.output.write_all(b".")
    }
}

struct Pickler<'a, W> {
    output: W,
    /// Texts in the memo, by content.
    texts: HashMap<&'a str, u32>,
}

impl<'a, W: Write> Pickler<'a, W> {
    fn snapshot(&mut self, snapshot: &'a Snapshot) -> io::Result<()> {
        self.open_dict()?;
        self.text("segments")?;
        self.list(&snapshot.segments, |pickler, segment| pickler.segment(snapshot, segment))?;
        self.text("device_traces")?;
        self.list(&snapshot.traces, |pickler, entries| {
            pickler.list(entries, |pickler, entry| pickler.entry(snapshot, entry))
        })?;
        self.text("allocator_settings")?;
        self.settings(snapshot)?;
        self.text("external_annotations")?;
        self.output.write_all(b"]")?;
        self.close_dict()
    }

    fn segment(&mut self, snapshot: &'a Snapshot, segment: &'a Segment) -> io::Result<()> {
        let total = |states: &[BlockState], bytes: fn(&Block) -> u64| {
            let blocks = segment.blocks.iter().filter(|block| states.contains(&block.state));
            blocks.fold(0, |sum: u64, block| sum.saturating_add(bytes(block)))
        };
        let active = [BlockState::Active, BlockState::PendingFree];
        self.open_dict()?;
        self.number("device", segment.device)?;
        self.number("address", segment.address.0)?;
        self.number("total_size", segment.bytes)?;
        self.number("allocated_size", total(&[BlockState::Active], |block| block.bytes))?;
        self.number("active_size", total(&active, |block| block.bytes))?;
        self.number("requested_size", total(&active, |block| block.requested_bytes))?;
        self.stream(segment.stream)?;
        self.pair("segment_type", if segment.is_small { "small" } else { "large" })?;
        self.text("segment_pool_id")?;
        self.integer(0)?;
        self.integer(i64::from(segment.is_private))?;
        self.output.write_all(&[0x86])?;
        self.flag("is_expandable", segment.is_expandable)?;
        self.frames(snapshot, None)?;
        self.text("blocks")?;
        self.list(&segment.blocks, |pickler, block| pickler.block(snapshot, block))?;
        self.close_dict()
    }

    fn block(&mut self, snapshot: &'a Snapshot, block: &Block) -> io::Result<()> {
        self.open_dict()?;
        self.number("address", block.address.0)?;
        self.number("size", block.bytes)?;
        self.number("requested_size", block.requested_bytes)?;
        let state = match block.state {
            BlockState::Active => "active_allocated",
            BlockState::PendingFree => "active_pending_free",
            BlockState::Inactive => "inactive",
        };
        self.pair("state", state)?;
        self.frames(snapshot, block.stack)?;
        self.close_dict()
    }

    fn entry(&mut self, snapshot: &'a Snapshot, entry: &Entry) -> io::Result<()> {
        let action = match entry.action {
            Action::Alloc => "alloc",
            Action::FreeRequested => "free_requested",
            Action::FreeCompleted => "free_completed",
            Action::Segment(SegmentAction::Allocate) => "segment_alloc",
            Action::Segment(SegmentAction::Free) => "segment_free",
            Action::Segment(SegmentAction::Map) => "segment_map",
            Action::Segment(SegmentAction::Unmap) => "segment_unmap",
            Action::OutOfMemory => "oom",
            Action::Other => "snapshot",
        };
        self.open_dict()?;
        self.pair("action", action)?;
        self.number(if entry.action == Action::OutOfMemory { "device_free" } else { "addr" }, entry.address)?;
        self.number("size", entry.bytes)?;
        self.stream(entry.stream)?;
        self.number("time_us", entry.time_us)?;
        self.frames(snapshot, entry.stack)?;
        self.close_dict()
    }

    fn frames(&mut self, snapshot: &'a Snapshot, stack: Option<u32>) -> io::Result<()> {
        self.text("frames")?;
        self.list(snapshot.frames(stack), |pickler, frame| {
            pickler.open_dict()?;
            pickler.pair("name", snapshot.text(frame.function))?;
            pickler.pair("filename", snapshot.text(frame.file))?;
            pickler.number("line", frame.line)?;
            pickler.close_dict()
        })
    }

    fn settings(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        let settings = &snapshot.conf.settings;
        self.open_dict()?;
        self.text("PYTORCH_CUDA_ALLOC_CONF")?;
        self.write_text(&snapshot.conf.to_string())?;
        self.text("max_split_size")?;
        self.integer(settings.max_split_bytes.map_or(Ok(-1), signed)?)?;
        self.text("garbage_collection_threshold")?;
        self.output.write_all(b"G")?;
        self.output.write_all(&settings.garbage_collection_threshold.unwrap_or(0.0).to_be_bytes())?;
        self.flag("expandable_segments", settings.expandable_segments)?;
        self.text("roundup_power2_divisions")?;
        self.open_dict()?;
        for class in 0..ROUNDUP_CLASSES {
            self.write_text(&(1_u64 << class).to_string())?;
            self.integer(i64::from(settings.roundup_divisions[class]))?;
        }
        self.close_dict()?;
        self.close_dict()
    }

    // Pairs of a dictionary.

    fn number(&mut self, key: &'static str, value: u64) -> io::Result<()> {
        self.text(key)?;
        self.integer(signed(value)?)
    }

    /// Stream handles are pointers: any bits.
    fn stream(&mut self, stream: crate::memory::Stream) -> io::Result<()> {
        self.text("stream")?;
        self.integer(stream.0.cast_signed())
    }

    fn flag(&mut self, key: &'static str, value: bool) -> io::Result<()> {
        self.text(key)?;
        self.output.write_all(&[if value { 0x88 } else { 0x89 }])
    }

    fn pair(&mut self, key: &'static str, value: &'a str) -> io::Result<()> {
        self.text(key)?;
        self.text(value)
    }

    // Instructions.

    fn open_dict(&mut self) -> io::Result<()> {
        self.output.write_all(b"}(")
    }

    fn close_dict(&mut self) -> io::Result<()> {
        self.output.write_all(b"u")
    }

    fn list<T>(&mut self, items: &'a [T], mut each: impl FnMut(&mut Self, &'a T) -> io::Result<()>) -> io::Result<()> {
        self.output.write_all(b"]")?;
        for batch in items.chunks(BATCH_ITEMS) {
            self.output.write_all(b"(")?;
            batch.iter().try_for_each(|item| each(self, item))?;
            self.output.write_all(b"e")?;
        }
        Ok(())
    }

    fn integer(&mut self, value: i64) -> io::Result<()> {
        if let Ok(byte) = u8::try_from(value) {
            self.output.write_all(&[b'K', byte])
        } else if let Ok(short) = i32::try_from(value) {
            self.output.write_all(b"J")?;
            self.output.write_all(&short.to_le_bytes())
        } else {
            self.output.write_all(&[0x8a, 8])?;
            self.output.write_all(&value.to_le_bytes())
        }
    }

    /// A text that may come again.
    fn text(&mut self, text: &'a str) -> io::Result<()> {
        if let Some(place) = self.texts.get(text) {
            let place = *place;
            if let Ok(byte) = u8::try_from(place) {
                return self.output.write_all(&[b'h', byte]);
            }
            self.output.write_all(b"j")?;
            return self.output.write_all(&place.to_le_bytes());
        }
        self.texts.insert(text, self.texts.len() as u32);
        self.write_text(text)?;
        self.output.write_all(&[0x94])
    }

    fn write_text(&mut self, text: &str) -> io::Result<()> {
        if let Ok(length) = u8::try_from(text.len()) {
            self.output.write_all(&[0x8c, length])?;
        } else {
            let length = u32::try_from(text.len()).map_err(|_| too_large())?;
            self.output.write_all(b"X")?;
            self.output.write_all(&length.to_le_bytes())?;
        }
        self.output.write_all(text.as_bytes())
    }
}

fn signed(value: u64) -> io::Result<i64> {
    i64::try_from(value).map_err(|_| too_large())
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "a number does not fit a snapshot")
}
