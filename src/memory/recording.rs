//! A file of any kind that this room reads, told apart by how it begins.

use super::inspect::{self, Inspection};
use super::replay::ReplayError;
use super::snapshot::{Snapshot, SnapshotError};
use super::trace::{self, RmmError, Trace, TraceFileError, TraceHeader, file, rmm};

/// A file's content.
#[derive(Clone, Debug)]
pub enum Recording {
    /// A PyTorch snapshot.
    PytorchSnapshot(Box<Snapshot>),
    /// Our own trace.
    BatchtuneTrace(TraceHeader, Trace),
    /// RMM's log.
    RmmLog(Trace),
}

/// Why a file is not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordingError {
    /// None of the kinds.
    #[error(
        "neither a PyTorch memory snapshot, a batchtune trace, nor an RMM log (hint: a snapshot comes from `torch.cuda.memory._dump_snapshot`)"
    )]
    Unknown,
    /// A snapshot that is not read.
    #[error("cannot read the PyTorch snapshot")]
    Snapshot(#[from] SnapshotError),
    /// A trace that is not read.
    #[error("cannot read the trace")]
    Trace(#[from] TraceFileError),
    /// A log that is not read.
    #[error("cannot read the RMM log")]
    Rmm(#[from] RmmError),
}

impl Recording {
    /// Reads a file's content.
    pub fn read(data: &[u8]) -> Result<Self, RecordingError> {
        if data.starts_with(&file::MAGIC) {
            let (header, trace) = trace::file::read(data)?;
            return Ok(Self::BatchtuneTrace(header, trace));
        }
        if data.starts_with(rmm::HEADER.as_bytes()) {
            return Ok(Self::RmmLog(rmm::read(data)?));
        }
        if data.starts_with(&[0x80]) {
            return Ok(Self::PytorchSnapshot(Box::new(Snapshot::read(data)?)));
        }
        Err(RecordingError::Unknown)
    }

    /// The kind's name, as JSON outputs have it.
    pub fn format(&self) -> &'static str {
        match self {
            Self::PytorchSnapshot(_) => inspect::SNAPSHOT_FORMAT,
            Self::BatchtuneTrace(..) => "batchtune_trace",
            Self::RmmLog(_) => "rmm_log",
        }
    }

    /// The events of the busiest device.
    pub fn into_trace(self) -> Trace {
        match self {
            Self::PytorchSnapshot(snapshot) => snapshot.trace(snapshot.busiest_device()),
            Self::BatchtuneTrace(_, trace) | Self::RmmLog(trace) => trace,
        }
    }

    /// What the file says about memory. A recording without segments is replayed first, under its own settings.
    pub fn inspect(&self) -> Result<Inspection, ReplayError> {
        match self {
            Self::PytorchSnapshot(snapshot) => inspect::inspect(snapshot),
            Self::BatchtuneTrace(_, trace) | Self::RmmLog(trace) => {
                Ok(Inspection { format: self.format(), ..inspect::inspect_trace(trace)? })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::memory::trace::TraceWriter;
    use crate::memory::{Event, Ordinal, Stream};
    use crate::units::MIB;

    #[test]
    fn kinds_are_told_apart_by_how_they_begin() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pytorch/streams.pickle");
        let snapshot = Recording::read(&std::fs::read(file).unwrap()).unwrap();
        assert_eq!(snapshot.format(), "pytorch_snapshot");
        let log = Recording::read(format!("{}\n1,t,allocate,0x1,5,0\n", rmm::HEADER).as_bytes()).unwrap();
        assert_eq!((log.format(), log.into_trace().events.len()), ("rmm_log", 1));
        for junk in [&b""[..], b"PK\x03\x04", b"{}", b"\xff\xff"] {
            assert_eq!(Recording::read(junk).unwrap_err(), RecordingError::Unknown);
        }
    }

    #[test]
    fn a_trace_is_inspected_by_its_replay() {
        let alloc = |ordinal, bytes| Event::Alloc { ordinal: Ordinal(ordinal), bytes, stream: Stream(0) };
        let events = [alloc(0, 5 * MIB), alloc(1, 5 * MIB), alloc(2, 700), Event::Free { ordinal: Ordinal(0) }];
        let mut writer = TraceWriter::new(Vec::new(), &TraceHeader::default()).unwrap();
        writer.write(&events).unwrap();
        let recording = Recording::read(&writer.finish().unwrap()).unwrap();
        let found = recording.inspect().unwrap();
        assert_eq!((found.format, found.events, found.segments), ("batchtune_trace", 4, 2));
        assert_eq!((found.allocated_bytes, found.requested_bytes), (5 * MIB + 1024, 5 * MIB + 700));
        assert_eq!((found.reserved_bytes, found.peak_allocated_bytes), (22 * MIB, 10 * MIB + 1024));
        assert_eq!(found.unreleasable_bytes, 22 * MIB - 5 * MIB - 1024);
        assert_eq!(found.replay.placed_other, 0);
    }
}
