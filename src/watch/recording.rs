//! What a watch saw, as JSON lines: its begin, samples, what was concluded, and its end.
//!
//! ```text
//! {"line":"begin","schema":"batchtune/watch/v1","name":"NVIDIA H200",…,"total_bytes":150754820096,"interval_seconds":1.0}
//! {"line":"sample","at_seconds":1.0,"used_bytes":…,"low_bytes":…,"high_bytes":…,"utilisation_percent":98,"processes":[…]}
//! {"line":"finding","at_seconds":31.0,"finding":"jumping","certainty":"seen","text":"…","advice":[…]}
//! {"line":"missed","at_seconds":32.0}
//! {"line":"end","ending":{"how":"process_ended","exit":{"code":1}},"seconds":41.2,…}
//! ```
//!
//! Each line is handed to the kernel whole, so that a watch that is killed leaves all but the last. A recording is bounded;
//! past the bound samples are left out and its end is still written. Who reads one judges the samples anew.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Ending, Finding, Kind, Observations, Sample, Subject, Summary};

/// The form of the file.
pub const SCHEMA: &str = "batchtune/watch/v1";
/// The most that is written: four days of a sample a second.
const MOST_BYTES: u64 = 96 << 20;

/// One line, as it is written.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub enum Line<'a> {
    /// What is watched.
    Begin {
        /// [`SCHEMA`].
        schema: &'static str,
        /// What.
        #[serde(flatten)]
        subject: &'a Subject,
    },
    /// An interval.
    Sample(&'a Sample),
    /// The card did not answer.
    Missed {
        /// When.
        at_seconds: f64,
    },
    /// Something holds.
    Finding {
        /// Since when it is known.
        at_seconds: f64,
        /// What.
        #[serde(flatten)]
        finding: &'a Finding,
    },
    /// Something that was said no longer holds.
    Withdrawn {
        /// Since when it is known.
        at_seconds: f64,
        /// What.
        finding: Kind,
    },
    /// The watch is over.
    End(&'a Summary),
}

impl Line<'_> {
    /// As JSON, with its line end.
    pub fn to_json(&self) -> String {
        // The types have string keys and finite numbers, so this cannot fail.
        let mut text = serde_json::to_string(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// Writes a recording.
#[derive(Debug)]
pub struct Recorder {
    file: File,
    written: u64,
    most_bytes: u64,
}

impl Recorder {
    /// Begins one, in place of what the file held.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::create(path)?, written: 0, most_bytes: MOST_BYTES })
    }

    /// Adds a line. Samples past the bound are left out; the answer is whether this was one of them.
    pub fn write(&mut self, line: &Line<'_>) -> io::Result<Kept> {
        let text = line.to_json();
        let is_sample = matches!(line, Line::Sample(_) | Line::Missed { .. });
        if is_sample && self.written.saturating_add(text.len() as u64) > self.most_bytes {
            return Ok(Kept::No);
        }
        // Nothing of ours is buffered, so a line is out when this returns.
        self.file.write_all(text.as_bytes())?;
        self.written += text.len() as u64;
        Ok(Kept::Yes)
    }
}

/// Whether a line was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It was.
    Yes,
    /// It was one too many.
    No,
}

/// Why a file is no recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordingProblem {
    /// Its first line is another.
    #[error("its first line does not begin one ({0})")]
    Begin(String),
    /// It is of another version.
    #[error("it has the form `{0}`, and this reads `{SCHEMA}`")]
    Schema(String),
    /// A line within cannot be read.
    #[error("line {line}: {problem}")]
    Line {
        /// Which, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// It has no card, or one without memory.
    #[error("it names no card with memory")]
    NoMemory,
}

/// A recording that was read.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// What was watched.
    pub subject: Subject,
    /// What was seen.
    pub observations: Observations,
    /// How it ended.
    pub ending: Ending,
}

/// One line, as it is read.
#[derive(Debug, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
enum ReadLine {
    Begin {
        schema: String,
        #[serde(flatten)]
        subject: Subject,
    },
    Sample(Sample),
    Missed {},
    Finding {},
    Withdrawn {},
    End {
        ending: Ending,
    },
}

impl Recorded {
    /// Reads a recording. A last line that was cut off is what a killed watch leaves, and is let be.
    pub fn read(text: &str) -> Result<Self, RecordingProblem> {
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).peekable();
        let begin = lines.next().map_or("", |(_, line)| line);
        let (schema, subject) = match serde_json::from_str(begin) {
            Ok(ReadLine::Begin { schema, subject }) => (schema, subject),
            Ok(_) => return Err(RecordingProblem::Begin("it is another line of one".to_owned())),
            Err(problem) => return Err(RecordingProblem::Begin(problem.to_string())),
        };
        if schema != SCHEMA {
            return Err(RecordingProblem::Schema(schema.chars().take(60).collect()));
        }
        if subject.total_bytes == 0 {
            return Err(RecordingProblem::NoMemory);
        }
        let mut observations = Observations::of(&subject);
        let mut ending = Ending::CutOff;
        while let Some((index, line)) = lines.next() {
            match serde_json::from_str(line) {
                Ok(ReadLine::Sample(sample)) => observations.add(&sample),
                Ok(ReadLine::Missed {}) => observations.miss(),
                Ok(ReadLine::Finding {} | ReadLine::Withdrawn {}) => {}
                Ok(ReadLine::End { ending: found }) => ending = found,
                Ok(ReadLine::Begin { .. }) => {
                    return Err(RecordingProblem::Line { line: index + 1, problem: "a second begin".to_owned() });
                }
                Err(_) if lines.peek().is_none() && !text.ends_with('\n') => {}
                Err(problem) => return Err(RecordingProblem::Line { line: index + 1, problem: problem.to_string() }),
            }
        }
        Ok(Self { subject, observations, ending })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject() -> Subject {
        Subject {
            name: "card".to_owned(),
            uuid: "GPU-1".to_owned(),
            total_bytes: 1000,
            interval_seconds: 1.0,
            ..Subject::default()
        }
    }

    fn sample(at_seconds: f64) -> Sample {
        Sample { at_seconds, used_bytes: 500, low_bytes: 400, high_bytes: 600, ..Sample::default() }
    }

    fn written(most_bytes: u64) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("watch.jsonl");
        let mut recorder = Recorder { most_bytes, ..Recorder::create(&path).unwrap() };
        let subject = subject();
        let mut observations = Observations::of(&subject);
        recorder.write(&Line::Begin { schema: SCHEMA, subject: &subject }).unwrap();
        for at in [1.0, 2.0, 3.0] {
            observations.add(&sample(at));
            recorder.write(&Line::Sample(&sample(at))).unwrap();
        }
        recorder.write(&Line::Missed { at_seconds: 4.0 }).unwrap();
        recorder.write(&Line::End(&observations.summary(Ending::Interrupted))).unwrap();
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let read = Recorded::read(&written(MOST_BYTES)).unwrap();
        assert_eq!((&read.subject, read.ending), (&subject(), Ending::Interrupted));
        let summary = read.observations.summary(read.ending);
        assert_eq!((summary.samples, summary.missed_samples, summary.peak_bytes), (3, 1, 600));
    }

    #[test]
    fn a_line_that_was_cut_off_by_a_kill_is_let_be() {
        let whole = written(MOST_BYTES);
        let lines: Vec<&str> = whole.lines().collect();
        let cut = format!("{}\n{}\n{}", lines[0], lines[1], &lines[2][..lines[2].len() / 2]);
        let read = Recorded::read(&cut).unwrap();
        assert_eq!(read.ending, Ending::CutOff);
        assert_eq!(read.observations.summary(read.ending).samples, 1);
        let within = format!("{}\n{}\n{}\n", lines[0], &lines[1][..20], lines[2]);
        assert!(matches!(Recorded::read(&within), Err(RecordingProblem::Line { line: 2, .. })));
    }

    #[test]
    fn past_the_bound_samples_are_left_out_and_the_end_is_not() {
        let text = written(300);
        assert!(text.lines().count() < 5 && text.lines().last().unwrap().starts_with(r#"{"line":"end""#), "{text}");
        assert_eq!(Recorded::read(&text).unwrap().ending, Ending::Interrupted);
    }

    #[test]
    fn another_file_is_refused_with_the_reason() {
        let message = |text: &str| Recorded::read(text).unwrap_err().to_string();
        assert!(message("").starts_with("its first line does not begin one"));
        assert!(message("{\"line\":\"end\",\"ending\":{\"how\":\"interrupted\"}}").contains("another line"));
        let begin = |schema: &str, total: &str| {
            format!(
                r#"{{"line":"begin","schema":"{schema}","name":"","uuid":"","total_bytes":{total},"interval_seconds":1.0}}"#
            )
        };
        assert!(message(&begin("x/v9", "5")).contains("`x/v9`"));
        assert_eq!(message(&begin(SCHEMA, "0")), "it names no card with memory");
        assert!(message(&begin(SCHEMA, "-1")).contains("begin"));
    }

    #[test]
    fn a_full_disk_is_an_error_of_the_write() {
        let mut recorder = Recorder::create(Path::new("/dev/full")).unwrap();
        assert!(recorder.write(&Line::Missed { at_seconds: 1.0 }).is_err());
    }
}
