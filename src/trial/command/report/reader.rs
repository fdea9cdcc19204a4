//! Reads a report while it is written: whole lines, bounded, from a file of anybody's.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use super::Line;

/// The longest line that is read.
const MAX_LINE_BYTES: usize = 1 << 20;
/// A report may have so much: a hundred thousand lines of steps and samples.
const MAX_REPORT_BYTES: u64 = 64 << 20;
/// What one look at the file reads at most.
const MAX_READ_BYTES: u64 = 4 << 20;
/// Characters of a bad line that a message shows.
const EXCERPT_CHARS: usize = 80;

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
pub(in crate::trial::command) fn of_rank(first: &Path, rank: usize) -> PathBuf {
    if rank == 0 {
        return first.to_owned();
    }
    let mut name = first.as_os_str().to_owned();
    name.push(format!(".{rank}"));
    PathBuf::from(name)
}

/// Opens a file that a program wrote: a regular one, and not whatever a link or a pipe in its place leads to.
pub(in crate::trial::command) fn open_regular(path: &Path) -> io::Result<File> {
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

    use super::super::Hello;
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
