//! From a probe's PyTorch snapshot and its marks to the trace that a forecast is made from.
//!
//! A snapshot's events know nothing of steps, and clocks are no help: the allocator's and Python's are two. Counts are
//! exact: the program says, whenever a step begins, how many blocks it has allocated and freed since recording began, and
//! the step begins in the trace where both numbers are reached.
//!
//! The program does not say where the optimizer steps, and need not: it does so in the last step of each update.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::path::Path;

use super::report::{MarkKind, MarkLine, open_regular};
use crate::memory::snapshot::{Action, Entry, Snapshot, SnapshotError};
use crate::memory::trace::{Obstacle, TraceHeader, TraceWriter};
use crate::memory::{Event, Mark, Phase};
use crate::units::Bytes;

/// The largest snapshot that is read: one of ten million events has about 1 GiB.
const MAX_SNAPSHOT_BYTES: u64 = 2 << 30;

/// Why there is no trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A file cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is no snapshot.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// It does not hold the whole run.
    #[error("{0} (hint: import `tune_report` before the model is built)")]
    Incomplete(Obstacle),
    /// The program gave no marks.
    #[error("the report marks no steps")]
    NoMarks,
    /// The trace is of something else than what was sampled.
    #[error("the trace peaks at {}, and the samples of the same run at {}", Bytes(*.traced_bytes), Bytes(*.sampled_bytes))]
    DoesNotAgree {
        /// The trace's live bytes at their highest.
        traced_bytes: u64,
        /// The samples' highest A.
        sampled_bytes: u64,
    },
    /// A mark lies past the end.
    #[error("the report's marks do not fit the trace: {allocations} allocations and {frees} frees were never reached")]
    MarksDoNotFit {
        /// Allocations at the mark.
        allocations: u64,
        /// Frees at the mark.
        frees: u64,
    },
}

/// What the trial itself tells of a probe.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    /// Micro-batches per optimizer step.
    pub accumulation: usize,
    /// The highest A of its samples; 0 without samples.
    pub sampled_peak_bytes: u64,
}

/// What a trace has in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// The number of its events.
    pub events: usize,
    /// Of its sizes: two traces of the same sizes have the same.
    pub sizes: u64,
}

/// Reads the snapshot, puts the marks in, and writes the trace to `path`.
pub fn convert(snapshot: &Path, marks: &[MarkLine], beside: Beside, path: &Path) -> Result<Content, TraceError> {
    let Beside { accumulation, sampled_peak_bytes } = beside;
    let file = open_regular(snapshot)?;
    if file.metadata()?.len() > MAX_SNAPSHOT_BYTES {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge).into());
    }
    let mut data = Vec::new();
    file.take(MAX_SNAPSHOT_BYTES).read_to_end(&mut data)?;
    let snapshot = Snapshot::read(&data)?;
    drop(data);
    let device = snapshot.busiest_device();
    let trace = snapshot.trace(device);
    if let Some(obstacle @ (Obstacle::NoEvents | Obstacle::Wrapped)) = trace.obstacle {
        return Err(TraceError::Incomplete(obstacle));
    }
    let entries = snapshot.traces.get(device).map_or(&[][..], Vec::as_slice);
    let events = with_marks(&trace.events, &trace.source, entries, marks, accumulation)?;
    agree(peak_live_bytes(&events), sampled_peak_bytes)?;
    let header = TraceHeader { device: format!("cuda:{device}"), conf: trace.conf.to_string(), limit_bytes: None };
    // As with a probe of our own, the file gets its name when it is whole.
    let draft = path.with_extension("trace.draft");
    let mut writer = TraceWriter::new(File::create(&draft)?, &header)?;
    writer.write(&events)?;
    writer.finish()?.sync_all()?;
    std::fs::rename(&draft, path)?;
    Ok(Content { events: events.len(), sizes: fingerprint(&events) })
}

fn fingerprint(events: &[Event]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for event in events {
        if let Event::Alloc { bytes, .. } = event {
            bytes.hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// A sample counts rounded sizes and a trace those asked for, so they agree within a fifth.
fn agree(traced_bytes: u64, sampled_bytes: u64) -> Result<(), TraceError> {
    let differ = traced_bytes.abs_diff(sampled_bytes) > sampled_bytes / 5;
    if sampled_bytes > 0 && differ { Err(TraceError::DoesNotAgree { traced_bytes, sampled_bytes }) } else { Ok(()) }
}

/// The highest number of bytes that are live at once.
fn peak_live_bytes(events: &[Event]) -> u64 {
    let (mut sizes, mut live, mut peak) = (HashMap::new(), 0_u64, 0_u64);
    for event in events {
        match event {
            Event::Alloc { ordinal, bytes, .. } => {
                sizes.insert(*ordinal, *bytes);
                live = live.saturating_add(*bytes);
                peak = peak.max(live);
            }
            Event::Free { ordinal } => live = live.saturating_sub(sizes.remove(ordinal).unwrap_or(0)),
            Event::FreeRequested { .. } | Event::Mark(_) => {}
        }
    }
    peak
}

/// The events with the marks among them. Where the last step has ended the events do too: what follows (the snapshot
/// itself, the program's end) is no part of training.
fn with_marks(
    events: &[Event],
    source: &[u32],
    entries: &[Entry],
    marks: &[MarkLine],
    accumulation: usize,
) -> Result<Vec<Event>, TraceError> {
    let steps = marks.iter().filter(|mark| mark.mark == MarkKind::Step).count();
    if steps < 2 {
        return Err(TraceError::NoMarks);
    }
    let mut marked = Vec::with_capacity(events.len() + 2 * marks.len());
    let (mut from, mut begun) = (0, 0_u32);
    let mut places = Places { entries, next: 0, allocations: 0, frees: 0 };
    for mark in marks {
        let entry = places.of(mark)?;
        // `source` holds each event's place among the entries, ascending.
        let to = source.partition_point(|place| (*place as usize) < entry).max(from);
        marked.extend_from_slice(events.get(from..to).unwrap_or_default());
        from = to;
        if mark.mark == MarkKind::Step {
            if begun > 0 && (begun as usize).is_multiple_of(accumulation.max(1)) && !ends_update(&marked) {
                marked.push(Event::Mark(Mark::Phase(Phase::Optimizer)));
            }
            if begun as usize + 1 == steps {
                break;
            }
            marked.push(Event::Mark(Mark::Step(begun)));
            begun += 1;
        } else {
            if (begun as usize).is_multiple_of(accumulation.max(1)) && !ends_update(&marked) {
                marked.push(Event::Mark(Mark::Phase(Phase::Optimizer)));
            }
            let phase = if mark.mark == MarkKind::Evaluation { Phase::Evaluation } else { Phase::Checkpoint };
            marked.push(Event::Mark(Mark::Phase(phase)));
        }
    }
    Ok(marked)
}

/// Whether the optimizer's step is marked since the last step's begin, or there was no step yet.
fn ends_update(marked: &[Event]) -> bool {
    let last = marked.iter().rev().find_map(|event| match event {
        Event::Mark(mark) => Some(*mark),
        _ => None,
    });
    !matches!(last, Some(Mark::Step(_)))
}

/// Walks the entries once, since marks come in order.
struct Places<'a> {
    entries: &'a [Entry],
    next: usize,
    allocations: u64,
    frees: u64,
}

impl Places<'_> {
    /// The place of the first entry after a mark.
    fn of(&mut self, mark: &MarkLine) -> Result<usize, TraceError> {
        while self.allocations < mark.allocations || self.frees < mark.frees {
            let Some(entry) = self.entries.get(self.next) else {
                return Err(TraceError::MarksDoNotFit { allocations: mark.allocations, frees: mark.frees });
            };
            self.allocations += u64::from(entry.action == Action::Alloc);
            self.frees += u64::from(entry.action == Action::FreeCompleted);
            self.next += 1;
        }
        Ok(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Ordinal, Stream};

    fn entry(action: Action, address: u64) -> Entry {
        Entry { action, address, bytes: 512, stream: Stream(0), time_us: 0, stack: None }
    }

    /// Entries of `text`: a letter in capitals is allocated, in small ones freed.
    fn snapshot(text: &str) -> Snapshot {
        let mut entries = Vec::new();
        for byte in text.bytes() {
            let address = u64::from(byte.to_ascii_lowercase());
            if byte.is_ascii_uppercase() {
                entries.push(entry(Action::Alloc, address));
            } else {
                entries.push(entry(Action::FreeRequested, address));
                entries.push(entry(Action::FreeCompleted, address));
            }
        }
        Snapshot { traces: vec![entries], ..Snapshot::default() }
    }

    fn mark(mark: MarkKind, allocations: u64, frees: u64) -> MarkLine {
        MarkLine { mark, allocations, frees }
    }

    /// The events in short: `A3` allocation 3, `F3` its free, `S0` a step, `O`, `E` and `C` the phases.
    fn marked(text: &str, marks: &[MarkLine], accumulation: usize) -> Result<String, TraceError> {
        let snapshot = snapshot(text);
        let trace = snapshot.trace(0);
        let events = with_marks(&trace.events, &trace.source, &snapshot.traces[0], marks, accumulation)?;
        let short = |event: &Event| match event {
            Event::Alloc { ordinal: Ordinal(ordinal), .. } => format!("A{ordinal}"),
            Event::Free { ordinal: Ordinal(ordinal) } => format!("F{ordinal}"),
            Event::Mark(Mark::Step(step)) => format!("S{step}"),
            Event::Mark(Mark::Phase(Phase::Optimizer)) => "O".to_owned(),
            Event::Mark(Mark::Phase(Phase::Evaluation)) => "E".to_owned(),
            Event::Mark(_) | Event::FreeRequested { .. } => "C".to_owned(),
        };
        Ok(events.iter().map(short).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn marks_stand_where_both_counts_are_reached() {
        use MarkKind::{Evaluation, Step};
        let marks = [
            mark(Step, 1, 0),
            mark(Step, 2, 1),
            mark(Step, 3, 2),
            mark(Evaluation, 4, 3),
            mark(Step, 5, 4),
            mark(Step, 6, 5),
        ];
        let found = marked("WAaBbCcDdEeX", &marks, 1).unwrap();
        assert_eq!(found, "A0 S0 A1 F1 O S1 A2 F2 O S2 A3 F3 O E A4 F4 S3 A5 F5 O");
        let found = marked("WAaBbCcDdEeX", &marks, 2).unwrap();
        assert_eq!(found, "A0 S0 A1 F1 S1 A2 F2 O S2 A3 F3 E A4 F4 S3 A5 F5 O");
    }

    #[test]
    fn marks_that_cannot_be_are_refused() {
        use MarkKind::Step;
        assert!(matches!(marked("Aa", &[], 1), Err(TraceError::NoMarks)));
        assert!(matches!(marked("Aa", &[mark(Step, 0, 0)], 1), Err(TraceError::NoMarks)));
        let beyond = [mark(Step, 0, 0), mark(Step, 2, 1)];
        assert!(matches!(marked("Aa", &beyond, 1), Err(TraceError::MarksDoNotFit { allocations: 2, frees: 1 })));
        // Going back is no harm: what was passed stays passed.
        assert_eq!(
            marked("AaB", &[mark(Step, 1, 1), mark(Step, 0, 0), mark(Step, 2, 1)], 4).unwrap(),
            "A0 F0 S0 S1 A1"
        );
    }

    const BESIDE: Beside = Beside { accumulation: 1, sampled_peak_bytes: 0 };

    #[test]
    fn a_trace_of_something_else_than_the_run_is_told_apart() {
        let events = snapshot("ABbCa").trace(0).events;
        assert_eq!(peak_live_bytes(&events), 1024);
        assert!(agree(1024, 0).is_ok() && agree(1024, 1100).is_ok());
        assert!(agree(1024, 72 << 20).is_err() && agree(72 << 20, 1024).is_err());
    }

    #[test]
    fn a_file_that_is_no_snapshot_leaves_no_trace() {
        let folder = tempfile::tempdir().unwrap();
        let (file, out) = (folder.path().join("s.pickle"), folder.path().join("p.trace"));
        std::fs::write(&file, b"no pickle").unwrap();
        assert!(matches!(convert(&file, &[], BESIDE, &out), Err(TraceError::Snapshot(_))));
        assert!(matches!(convert(&folder.path().join("none"), &[], BESIDE, &out), Err(TraceError::Io(_))));
        assert!(!out.exists());
    }
}
