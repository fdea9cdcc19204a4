//! The report protocol, version 1: what a program that is being tuned says of itself.
//!
//! The program appends JSON lines to the file named in `TUNE_REPORT`: one object a line, each written whole. A path, since
//! a launcher between the tuner and the program (`srun`, `torchrun`, a container) passes no descriptors on. Any language
//! can write it; `examples/pytorch/tune_report.py` does for PyTorch.
//!
//! | `event` | when | fields (those in brackets may be absent) |
//! |---|---|---|
//! | `hello` | first | `protocol`: 1, \[`framework`, `pid`, `rank`, `world_size`, `device`, `uuid`, `name`, `allocator`, `total_bytes`, `limit_bytes`\] |
//! | `reached` | with several ranks: the end of a step is reached, the device's work perhaps not done | `step`: this one, counted from 1 |
//! | `step` | a micro-batch is done, the device synchronised | `step`: finished so far, `samples`, `total_ms`, \[`loss`, `data_wait_ms`, `load_ms`, `forward_ms`, `backward_ms`, `optimizer_ms`\] |
//! | `sample` | every `TUNE_SAMPLE_EVERY` steps, and after the last | `step`, `allocated_bytes`, `reserved_bytes`, \[`requested_bytes`, `peak_allocated_bytes`, `peak_reserved_bytes`, `largest_free_bytes`, `unreleasable_bytes`, `allocated_blocks`, `largest_request_bytes`, `host_bytes`\] |
//! | `mark` | in a probe: a step begins, or the last has ended; an evaluation or a checkpoint begins | `mark`: `step`, `evaluation` or `checkpoint`, `allocations` and `frees` since recording began, \[`step`\] |
//! | `trace` | in a probe: the trace is written | |
//! | `evaluation` | after the pass | \[`loss`, `seconds`\] |
//! | `checkpoint` | after it was written | \[`bytes`, `seconds`\] |
//! | `warning` | at any time | `text` |
//! | `end` | last | `outcome`: `completed`, `out_of_memory`, `failed` or `diverged`, \[`message`, `requested_bytes`, `step`\] |
//!
//! `total_ms` runs from the end of one step to the end of the next, the wait for data included and the reporter's own work
//! left out. Peaks count since the last sample. A loss that is not finite is the text `nan`, `inf` or `-inf`, since JSON
//! has no such numbers. Unknown events and fields are ignored, so that a newer program can say more.
//!
//! # Several ranks
//! Where `TUNE_REPLICAS` is N > 1 every rank has a report of its own, so that no line of one can get into another's and a
//! rank that says nothing is known from one that does: rank 0 the file `$TUNE_REPORT`, rank R > 0 the file
//! `$TUNE_REPORT.R`, and likewise `$TUNE_TRACE.R`. All are there before the program starts; a launcher needs to pass on
//! the environment and a shared file system, and nothing else. Each is a report as above. In `hello`, which every rank
//! writes as soon as it can, `world_size` is how many ranks there really are, and a `pid` of this machine lets the end
//! of a rank be seen that says nothing of it. With `TUNE_REPLICAS` 1, or without it, there is one report: rank 0 writes
//! it, and others add a failure of theirs at most.
//!
//! A reader is strict about what it knows: a line that is no such object spoils the report.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};

/// The protocol's version.
pub const PROTOCOL: u32 = 1;
/// The longest line that is read.
const MAX_LINE_BYTES: usize = 1 << 20;
/// A report may have so much: a hundred thousand lines of steps and samples.
const MAX_REPORT_BYTES: u64 = 64 << 20;
/// What one look at the file reads at most.
const MAX_READ_BYTES: u64 = 4 << 20;
/// Characters of a bad line that a message shows.
const EXCERPT_CHARS: usize = 80;

/// One line of a report.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Line {
    /// The program speaks the protocol.
    Hello(Hello),
    /// The end of a step is reached.
    Reached {
        /// Which, counted from 1.
        step: u32,
    },
    /// A micro-batch is done.
    Step(StepLine),
    /// The allocator's figures.
    Sample(SampleLine),
    /// Something begins, at a place in the trace.
    Mark(MarkLine),
    /// The trace is written.
    Trace {},
    /// An evaluation pass is done.
    Evaluation {
        /// Its loss.
        #[serde(default, deserialize_with = "loss")]
        loss: Option<f64>,
    },
    /// A checkpoint is written.
    Checkpoint {
        /// Its size.
        #[serde(default)]
        bytes: Option<u64>,
    },
    /// The user should know.
    Warning {
        /// What.
        text: String,
    },
    /// The run is over.
    End(EndLine),
    /// Something newer.
    #[serde(other)]
    Other,
}

/// Who reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Hello {
    /// The version that it speaks.
    pub protocol: u32,
    /// The framework and its version.
    #[serde(default)]
    pub framework: Option<String>,
    /// The number of its process.
    #[serde(default)]
    pub pid: Option<u32>,
    /// How many ranks train together.
    #[serde(default)]
    pub world_size: Option<u32>,
    /// Its allocator: `native`, `expandable` or `cuda_malloc_async`.
    #[serde(default)]
    pub allocator: Option<String>,
    /// The limit that it holds itself to.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
}

/// A finished micro-batch.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct StepLine {
    /// Steps finished so far.
    pub step: u32,
    /// Its samples.
    pub samples: u64,
    /// Its loss.
    #[serde(default, deserialize_with = "loss")]
    pub loss: Option<f64>,
    /// The whole step.
    pub total_ms: f64,
    /// Blocked on the loader.
    #[serde(default)]
    pub data_wait_ms: f64,
    /// Copy to the device.
    #[serde(default)]
    pub load_ms: f64,
    /// Forward pass.
    #[serde(default)]
    pub forward_ms: f64,
    /// Backward pass.
    #[serde(default)]
    pub backward_ms: f64,
    /// Optimizer step.
    #[serde(default)]
    pub optimizer_ms: f64,
}

/// The allocator's figures between two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct SampleLine {
    /// Steps finished so far.
    pub step: u32,
    /// A.
    pub allocated_bytes: u64,
    /// V.
    pub reserved_bytes: u64,
    /// What live blocks were asked for.
    #[serde(default)]
    pub requested_bytes: Option<u64>,
    /// The highest A since the last sample.
    #[serde(default)]
    pub peak_allocated_bytes: Option<u64>,
    /// The highest V since the last sample.
    #[serde(default)]
    pub peak_reserved_bytes: Option<u64>,
    /// The largest free block.
    #[serde(default)]
    pub largest_free_bytes: Option<u64>,
    /// Free bytes that releasing the cache could not give back.
    #[serde(default)]
    pub unreleasable_bytes: Option<u64>,
    /// Live blocks.
    #[serde(default)]
    pub allocated_blocks: Option<u64>,
    /// The largest request.
    #[serde(default)]
    pub largest_request_bytes: Option<u64>,
    /// Host memory of the process.
    #[serde(default)]
    pub host_bytes: Option<u64>,
}

/// What begins at a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkKind {
    /// A step, or what comes after the last.
    Step,
    /// An evaluation pass.
    Evaluation,
    /// A checkpoint.
    Checkpoint,
}

/// A place in the trace: after so many allocations and so many completed frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct MarkLine {
    /// What begins.
    pub mark: MarkKind,
    /// Allocations since recording began.
    pub allocations: u64,
    /// Completed frees since recording began.
    pub frees: u64,
}

/// How the run ended.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct EndLine {
    /// In a word.
    pub outcome: EndOutcome,
    /// The error's own text.
    #[serde(default)]
    pub message: Option<String>,
    /// The request that was not met.
    #[serde(default)]
    pub requested_bytes: Option<u64>,
    /// The step, counted from 0.
    #[serde(default)]
    pub step: Option<u32>,
}

/// How a run can end by its own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndOutcome {
    /// All steps ran.
    Completed,
    /// The framework's allocator refused a request.
    OutOfMemory,
    /// An error of the program's own.
    Failed,
    /// The loss is not finite.
    Diverged,
}

/// A loss: a number, or the name of one that JSON cannot hold.
fn loss<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(f64),
        Name(String),
    }
    match Option::<Written>::deserialize(deserializer)? {
        None => Ok(None),
        Some(Written::Number(loss)) => Ok(Some(loss)),
        // Rust reads the names that C, Python and JavaScript print.
        Some(Written::Name(name)) => {
            name.parse().map(Some).map_err(|_| D::Error::custom(format!("`{name}` is no number")))
        }
    }
}

/// Why a report cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The file cannot be read.
    #[error("the report cannot be read: {0}")]
    Read(#[from] io::Error),
    /// A line is no message.
    #[error("line {line} of the report, `{excerpt}`, is no message of the protocol: {reason}")]
    Spoiled {
        /// Its number.
        line: u64,
        /// How it begins.
        excerpt: String,
        /// What is wrong.
        reason: String,
    },
    /// More than any number of steps explains.
    #[error("the report is larger than {}", crate::units::Bytes(MAX_REPORT_BYTES))]
    TooLarge,
    /// A line without end.
    #[error("line {line} of the report is longer than {MAX_LINE_BYTES} bytes")]
    TooLong {
        /// Its number.
        line: u64,
    },
}

/// Reads a report while it is written.
#[derive(Debug)]
pub struct Reader {
    file: File,
    /// The start of a line whose end is not there yet.
    pending: Vec<u8>,
    lines: u64,
    read_bytes: u64,
}

/// What one look at a report took in.
#[derive(Debug)]
pub struct Chunk {
    /// The lines that are whole.
    pub lines: Vec<Line>,
    /// Whether that was all there is.
    pub is_last: bool,
}

impl Reader {
    /// Makes the file, empty, and reads it from its start. What an earlier run left in its place goes: it may be anything.
    pub fn create(path: &Path) -> io::Result<Self> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        File::create_new(path)?;
        Ok(Self { file: open_regular(path)?, pending: Vec::new(), lines: 0, read_bytes: 0 })
    }

    /// The lines that have been written whole since the last call. Bounded: the rest comes with the next call.
    pub fn read(&mut self) -> Result<Chunk, ReportError> {
        let mut bytes = Vec::new();
        self.file.by_ref().take(MAX_READ_BYTES).read_to_end(&mut bytes)?;
        let is_last = (bytes.len() as u64) < MAX_READ_BYTES;
        self.read_bytes = self.read_bytes.saturating_add(bytes.len() as u64);
        if self.read_bytes > MAX_REPORT_BYTES {
            return Err(ReportError::TooLarge);
        }
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.pending.extend_from_slice(piece);
            if self.pending.len() > MAX_LINE_BYTES {
                return Err(ReportError::TooLong { line: self.lines + 1 });
            }
            if let Some(line) = self.pending.strip_suffix(b"\n") {
                self.lines += 1;
                if !line.trim_ascii().is_empty() {
                    lines.push(parse(self.lines, line)?);
                }
                self.pending.clear();
            }
        }
        Ok(Chunk { lines, is_last })
    }
}

/// The file of a rank, where `first` is that of rank 0.
pub(super) fn of_rank(first: &Path, rank: usize) -> PathBuf {
    if rank == 0 {
        return first.to_owned();
    }
    let mut name = first.as_os_str().to_owned();
    name.push(format!(".{rank}"));
    PathBuf::from(name)
}

/// Opens a file that a program wrote: a regular one, and not whatever a link or a pipe in its place leads to.
pub(super) fn open_regular(path: &Path) -> io::Result<File> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
}

fn parse(number: u64, line: &[u8]) -> Result<Line, ReportError> {
    serde_json::from_slice(line).map_err(|error| {
        let text = String::from_utf8_lossy(line.get(..EXCERPT_CHARS * 4).unwrap_or(line));
        let excerpt: String = text.chars().take(EXCERPT_CHARS).collect();
        ReportError::Spoiled { line: number, excerpt: crate::text::harmless(&excerpt), reason: error.to_string() }
    })
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the numbers are read as they were written")]
mod tests {
    use std::io::Write;

    use super::*;

    fn report() -> (tempfile::TempDir, File, Reader) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.jsonl");
        let reader = Reader::create(&path).unwrap();
        let file = File::options().append(true).open(&path).unwrap();
        (folder, file, reader)
    }

    #[test]
    fn lines_come_whole_however_they_are_written() {
        let (_folder, mut file, mut reader) = report();
        assert_eq!(reader.read().unwrap().lines, []);
        file.write_all(b"{\"event\":\"hello\",\"protocol\":1,\"new\":[]}\n{\"event\":\"step\",\"st").unwrap();
        let hello = Hello { protocol: 1, ..Hello::default() };
        assert_eq!(reader.read().unwrap().lines, [Line::Hello(hello)]);
        file.write_all(b"ep\":1,\"samples\":8,\"total_ms\":2.5}\n\n").unwrap();
        let lines = reader.read().unwrap().lines;
        assert!(
            matches!(&lines[..], [Line::Step(step)] if step.step == 1 && step.total_ms == 2.5 && step.loss.is_none())
        );
    }

    #[test]
    fn a_loss_that_is_no_number_has_a_name() {
        for (written, expected) in
            [("2.5", 2.5), ("\"nan\"", f64::NAN), ("\"inf\"", f64::INFINITY), ("\"-inf\"", f64::NEG_INFINITY)]
        {
            let line = format!("{{\"event\":\"step\",\"step\":1,\"samples\":1,\"total_ms\":1,\"loss\":{written}}}");
            let Line::Step(step) = parse(1, line.as_bytes()).unwrap() else { panic!("{line}") };
            let loss = step.loss.unwrap();
            assert!(loss == expected || (loss.is_nan() && expected.is_nan()), "{written}");
        }
        assert!(parse(1, b"{\"event\":\"evaluation\",\"loss\":\"low\"}").is_err());
        assert_eq!(parse(1, b"{\"event\":\"evaluation\",\"loss\":null}").unwrap(), Line::Evaluation { loss: None });
    }

    #[test]
    fn what_is_newer_is_ignored() {
        assert_eq!(parse(1, b"{\"event\":\"sing\",\"song\":{}}").unwrap(), Line::Other);
        assert_eq!(parse(1, b"{\"event\":\"trace\",\"path\":\"/x\"}").unwrap(), Line::Trace {});
    }

    #[test]
    fn a_line_that_is_no_message_names_its_number_and_shows_itself_harmlessly() {
        for bad in
            ["nonsense", "[]", "{}", "{\"event\":1}", "{\"event\":\"step\"}", "{\"event\":\"hello\",\"protocol\":-1}"]
        {
            assert!(matches!(parse(1, bad.as_bytes()), Err(ReportError::Spoiled { .. })), "{bad}");
        }
        let (_folder, mut file, mut reader) = report();
        file.write_all(b"{\"event\":\"trace\"}\n\x1b[2J\xff\n").unwrap();
        let error = reader.read().unwrap_err().to_string();
        assert!(error.starts_with("line 2 of the report") && !error.contains('\u{1b}'), "{error}");
    }

    #[test]
    fn a_rank_s_file_is_the_first_one_s_with_its_number() {
        let first = Path::new("/study/report.jsonl");
        assert_eq!(of_rank(first, 0), first);
        assert_eq!(of_rank(first, 12), Path::new("/study/report.jsonl.12"));
    }

    #[test]
    fn a_line_without_end_is_given_up_at_the_bound() {
        let (_folder, mut file, mut reader) = report();
        file.write_all(&vec![b'x'; 3 * MAX_LINE_BYTES]).unwrap();
        assert!(matches!(reader.read(), Err(ReportError::TooLong { line: 1 })));
    }
}
