//! The `.trace` file: a recording on disk, written while it is made.
//!
//! Layout, version 1; numbers are LEB128 varints unless a width is given, fixed widths are little-endian:
//!
//! | part | content |
//! |---|---|
//! | magic | 8 bytes: `89 42 54 52 0d 0a 1a 0a` |
//! | version | u32 |
//! | header | u32 length, then that many bytes of JSON ([`TraceHeader`]) |
//! | `01` | an allocation: bytes, stream. Its ordinal is the number of allocations before it |
//! | `02` | a free: how many allocations ago the block was allocated, 0 for the last one |
//! | `03` | a free that another stream still delays: the same |
//! | `04` | a step begins: its number |
//! | `05` | a phase begins: one byte, its place in [`PHASES`] |
//! | `06` | the program handed cached memory back |
//! | `00` | the end: the number of events. A file without it was cut off |
//!
//! An allocation takes about 5 bytes and a free 2 to 3. The magic has the form of PNG's, so that a transfer that changes
//! line ends is noticed.

use std::collections::HashMap;
use std::io::{self, BufWriter, Write};

use serde::{Deserialize, Serialize};

use super::{MAX_EVENTS, Trace};
use crate::memory::event::{Event, Mark, Ordinal, Phase, Stream};
use crate::memory::policy::{AllocConf, FastHash};

/// What a file begins with.
pub const MAGIC: [u8; 8] = [0x89, b'B', b'T', b'R', b'\r', b'\n', 0x1a, b'\n'];
/// The version written here.
const VERSION: u32 = 1;
/// The longest header that is read.
const MAX_HEADER_BYTES: usize = 1 << 16;
/// The phases in the order of their numbers in the file.
pub const PHASES: [Phase; 7] = [
    Phase::Build,
    Phase::Load,
    Phase::Forward,
    Phase::Backward,
    Phase::Optimizer,
    Phase::Evaluation,
    Phase::Checkpoint,
];

const END: u8 = 0;
const ALLOC: u8 = 1;
const FREE: u8 = 2;
const FREE_REQUESTED: u8 = 3;
const STEP: u8 = 4;
const PHASE: u8 = 5;
const TRIM: u8 = 6;

/// What a file says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceHeader {
    /// The device that was recorded.
    #[serde(default)]
    pub device: String,
    /// The settings of its allocator, as `PYTORCH_CUDA_ALLOC_CONF` writes them.
    #[serde(default)]
    pub conf: String,
    /// C while it was recorded.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
}

/// Why a file is not read. Offsets count bytes from its start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceFileError {
    /// It begins with something else.
    #[error("not a batchtune trace")]
    Foreign,
    /// A version that this program does not know.
    #[error("trace version {0} is not supported (hint: use a newer batchtune)")]
    Version(u32),
    /// It ends too early.
    #[error("the trace is cut off at offset {offset}")]
    Truncated {
        /// Where.
        offset: usize,
    },
    /// More than is read.
    #[error("the trace has more than {limit} events (hint: record fewer steps; a handful tells all)")]
    TooLong {
        /// The most events that are read.
        limit: usize,
    },
    /// Something that no writer writes.
    #[error("the trace is damaged at offset {offset}: {problem}")]
    Damaged {
        /// Where.
        offset: usize,
        /// What is wrong.
        problem: &'static str,
    },
}

/// Writes a recording as it is made.
#[derive(Debug)]
pub struct TraceWriter<W: Write> {
    output: BufWriter<W>,
    /// The file's ordinals of live blocks, by the recording's: a recording may begin in the middle of a trial.
    live: HashMap<Ordinal, u64, FastHash>,
    allocations: u64,
    events: u64,
}

impl<W: Write> TraceWriter<W> {
    /// Writes the beginning of a file.
    pub fn new(output: W, header: &TraceHeader) -> io::Result<Self> {
        let mut output = BufWriter::new(output);
        let header = serde_json::to_vec(header)?;
        output.write_all(&MAGIC)?;
        output.write_all(&VERSION.to_le_bytes())?;
        output.write_all(&(header.len() as u32).to_le_bytes())?;
        output.write_all(&header)?;
        Ok(Self { output, live: HashMap::default(), allocations: 0, events: 0 })
    }

    /// Writes events. Frees of what was allocated before the file began are left out.
    pub fn write(&mut self, events: &[Event]) -> io::Result<()> {
        events.iter().try_for_each(|event| self.write_event(event))
    }

    fn write_event(&mut self, event: &Event) -> io::Result<()> {
        match *event {
            Event::Alloc { ordinal, bytes, stream } => {
                // An ordinal that is used again was freed without notice.
                self.write_event(&Event::Free { ordinal })?;
                self.live.insert(ordinal, self.allocations);
                self.allocations += 1;
                self.record(ALLOC, &[bytes, stream.0])
            }
            Event::Free { ordinal } => match self.live.remove(&ordinal) {
                Some(number) => self.record(FREE, &[self.allocations - 1 - number]),
                None => Ok(()),
            },
            Event::FreeRequested { ordinal } => match self.live.get(&ordinal).copied() {
                Some(number) => self.record(FREE_REQUESTED, &[self.allocations - 1 - number]),
                None => Ok(()),
            },
            Event::Mark(Mark::Step(step)) => self.record(STEP, &[u64::from(step)]),
            Event::Mark(Mark::Trim) => self.record(TRIM, &[]),
            Event::Mark(Mark::Phase(phase)) => {
                let place = PHASES.iter().position(|known| *known == phase).unwrap_or(0);
                self.record(PHASE, &[place as u64])
            }
        }
    }

    fn record(&mut self, tag: u8, numbers: &[u64]) -> io::Result<()> {
        self.events += 1;
        self.put(tag, numbers)
    }

    fn put(&mut self, tag: u8, numbers: &[u64]) -> io::Result<()> {
        self.output.write_all(&[tag])?;
        for number in numbers {
            let mut rest = *number;
            while rest >= 0x80 {
                self.output.write_all(&[rest as u8 | 0x80])?;
                rest >>= 7;
            }
            self.output.write_all(&[rest as u8])?;
        }
        Ok(())
    }

    /// Writes the end and everything that is still in memory. A file that is dropped without it reads as cut off.
    pub fn finish(mut self) -> io::Result<W> {
        self.put(END, &[self.events])?;
        self.output.into_inner().map_err(io::IntoInnerError::into_error)
    }
}

/// Reads a file's content.
pub fn read(data: &[u8]) -> Result<(TraceHeader, Trace), TraceFileError> {
    read_within(data, MAX_EVENTS)
}

fn read_within(data: &[u8], limit: usize) -> Result<(TraceHeader, Trace), TraceFileError> {
    let mut reader = Reader { data, at: 0 };
    let header = reader.header()?;
    let mut trace = Trace::default();
    // Live by ordinal; a free must name a live block.
    let mut live: Vec<bool> = Vec::new();
    loop {
        let offset = reader.at;
        let damaged = |problem| TraceFileError::Damaged { offset, problem };
        let tag = reader.byte()?;
        if trace.events.len() >= limit && tag != END {
            return Err(TraceFileError::TooLong { limit });
        }
        match tag {
            ALLOC => {
                let (bytes, stream) = (reader.varint()?, Stream(reader.varint()?));
                trace.events.push(Event::Alloc { ordinal: Ordinal(live.len() as u64), bytes, stream });
                live.push(true);
            }
            tag @ (FREE | FREE_REQUESTED) => {
                let back = reader.varint()?;
                let place = (live.len() as u64).checked_sub(1).and_then(|last| last.checked_sub(back));
                let ordinal = place.ok_or_else(|| damaged("a block is freed that was never allocated"))?;
                let slot = live.get_mut(ordinal as usize).filter(|slot| **slot);
                let slot = slot.ok_or_else(|| damaged("a block is freed twice"))?;
                *slot = tag == FREE_REQUESTED;
                let ordinal = Ordinal(ordinal);
                trace.events.push(if tag == FREE { Event::Free { ordinal } } else { Event::FreeRequested { ordinal } });
            }
            STEP => {
                let step = u32::try_from(reader.varint()?).map_err(|_| damaged("a step has too large a number"))?;
                trace.events.push(Event::Mark(Mark::Step(step)));
            }
            PHASE => {
                let phase = PHASES.get(usize::from(reader.byte()?)).copied();
                trace.events.push(Event::Mark(Mark::Phase(phase.ok_or_else(|| damaged("there is no such phase"))?)));
            }
            TRIM => trace.events.push(Event::Mark(Mark::Trim)),
            END => {
                if reader.varint()? != trace.events.len() as u64 {
                    return Err(damaged("the number of events is not the one written at the end"));
                }
                if reader.at != data.len() {
                    return Err(TraceFileError::Damaged { offset: reader.at, problem: "something follows the end" });
                }
                break;
            }
            _ => return Err(damaged("there is no such record")),
        }
    }
    // Settings of a newer version are no reason to refuse the events.
    trace.conf = header.conf.parse::<AllocConf>().unwrap_or_default();
    Ok((header, trace))
}

struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn header(&mut self) -> Result<TraceHeader, TraceFileError> {
        if !self.data.starts_with(&MAGIC) {
            return Err(TraceFileError::Foreign);
        }
        self.at = MAGIC.len();
        let version = u32::from_le_bytes(self.array()?);
        if version != VERSION {
            return Err(TraceFileError::Version(version));
        }
        let length = u32::from_le_bytes(self.array()?) as usize;
        let offset = self.at;
        if length > MAX_HEADER_BYTES {
            return Err(TraceFileError::Damaged { offset, problem: "the header is too long" });
        }
        let json = self.data.get(offset..offset + length).ok_or(TraceFileError::Truncated { offset })?;
        self.at += length;
        serde_json::from_slice(json)
            .map_err(|_| TraceFileError::Damaged { offset, problem: "the header is not readable" })
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], TraceFileError> {
        let bytes = self.data.get(self.at..).and_then(|rest| rest.first_chunk::<N>());
        let bytes = *bytes.ok_or(TraceFileError::Truncated { offset: self.data.len() })?;
        self.at += N;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, TraceFileError> {
        Ok(self.array::<1>()?[0])
    }

    fn varint(&mut self) -> Result<u64, TraceFileError> {
        let offset = self.at;
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                break;
            }
            number |= part << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(TraceFileError::Damaged { offset, problem: "a number is longer than 64 bits" })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn events() -> Vec<Event> {
        let alloc = |ordinal, bytes| Event::Alloc { ordinal: Ordinal(ordinal), bytes, stream: Stream(3) };
        let free = |ordinal| Event::Free { ordinal: Ordinal(ordinal) };
        vec![
            Event::Mark(Mark::Phase(Phase::Build)),
            alloc(0, 0),
            alloc(1, u64::MAX),
            Event::Mark(Mark::Step(7)),
            Event::Mark(Mark::Phase(Phase::Checkpoint)),
            free(1),
            Event::Mark(Mark::Trim),
            alloc(2, 300),
            Event::FreeRequested { ordinal: Ordinal(0) },
            free(0),
        ]
    }

    fn written(events: &[Event]) -> Vec<u8> {
        let header =
            TraceHeader { device: "cpu".to_owned(), conf: "max_split_size_mb:64".to_owned(), limit_bytes: Some(5) };
        let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
        writer.write(events).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn a_recording_survives_the_round_trip() {
        let (header, trace) = read(&written(&events())).unwrap();
        assert_eq!(trace.events, events());
        assert_eq!((header.device.as_str(), header.limit_bytes), ("cpu", Some(5)));
        assert_eq!(trace.conf.settings.max_split_bytes, Some(64 << 20));
    }

    #[test]
    fn a_recording_that_begins_in_the_middle_is_numbered_from_zero() {
        let alloc = |ordinal| Event::Alloc { ordinal: Ordinal(ordinal), bytes: 1, stream: Stream(0) };
        let free = |ordinal| Event::Free { ordinal: Ordinal(ordinal) };
        let (_, trace) = read(&written(&[free(3), alloc(900), alloc(1000), free(900)])).unwrap();
        assert_eq!(trace.events, [alloc(0), alloc(1), free(0)]);
        assert_eq!(trace.ordinals(), Some(2));
    }

    #[test]
    fn a_recording_is_read_up_to_its_bound() {
        let (whole, count) = (written(&events()), events().len());
        assert_eq!(read_within(&whole, count).unwrap().1.events.len(), count);
        assert_eq!(read_within(&whole, count - 1).unwrap_err(), TraceFileError::TooLong { limit: count - 1 });
    }

    #[test]
    fn a_file_cut_off_anywhere_is_refused_with_the_offset() {
        let whole = written(&events());
        for length in MAGIC.len()..whole.len() {
            let error = read(&whole[..length]).unwrap_err();
            assert!(matches!(error, TraceFileError::Truncated { offset } if offset <= length), "{length}: {error}");
        }
    }

    #[test]
    fn foreign_and_damaged_files_are_refused() {
        let whole = written(&events());
        assert_eq!(read(b"").unwrap_err(), TraceFileError::Foreign);
        assert_eq!(read(b"\x80\x04N.").unwrap_err(), TraceFileError::Foreign);
        let mut newer = whole.clone();
        newer[8] = 2;
        assert_eq!(read(&newer).unwrap_err(), TraceFileError::Version(2));
        let mut longer = whole.clone();
        longer.push(0);
        assert!(matches!(read(&longer), Err(TraceFileError::Damaged { problem: "something follows the end", .. })));
        let start = whole.iter().position(|byte| *byte == b'}').unwrap() + 1;
        for (record, problem) in [
            (&[FREE, 0][..], "a block is freed that was never allocated"),
            (&[ALLOC, 1, 0, FREE, 0, FREE, 0], "a block is freed twice"),
            (&[9], "there is no such record"),
            (&[PHASE, 7], "there is no such phase"),
            (&[END, 3], "the number of events is not the one written at the end"),
            (&[STEP, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2], "a number is longer than 64 bits"),
        ] {
            let file = [&whole[..start], record].concat();
            assert!(
                matches!(read(&file), Err(TraceFileError::Damaged { problem: found, .. }) if found == problem),
                "{problem}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn damaged_bytes_are_an_error_or_a_recording(at in 0..100_usize, byte in any::<u8>()) {
            let mut file = written(&events());
            let place = at % file.len();
            file[place] = byte;
            if let Ok((_, trace)) = read(&file) {
                prop_assert!(trace.ordinals().is_some());
            }
        }

        #[test]
        fn any_bytes_behind_the_magic_do_no_harm(rest in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&[&MAGIC[..], &[1, 0, 0, 0, 2, 0, 0, 0], b"{}", &rest].concat());
        }
    }
}
