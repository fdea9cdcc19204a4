//! Why a journal cannot be used.

use std::io;
use std::path::PathBuf;

use super::SCHEMA;

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another run is using the study directory.
    #[error(
        "another run{} is using the study directory `{}` (hint: wait for it to end, or choose another with `--study`)",
        pid.map_or(String::new(), |pid| format!(" (process {pid})")),
        study.display()
    )]
    Locked {
        /// The study directory.
        study: PathBuf,
        /// The process, where its number could be read.
        pid: Option<u32>,
    },
    /// The study directory cannot be made or locked.
    #[error("cannot use the study directory `{}`", study.display())]
    Study {
        /// The study directory.
        study: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The journal is of another plan.
    #[error(
        "the study was begun with another configuration, which cannot be resumed under this one (hint: undo the change, \
         or leave `--resume` out to start over; budget and output may change)"
    )]
    OtherPlan,
    /// The journal cannot be read.
    #[error("cannot read the journal `{}`", path.display())]
    Read {
        /// The journal.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The journal cannot be written, such as on a full disk. The trials before are safe.
    #[error("cannot write the journal `{}` (hint: the finished trials in it are kept; go on with `--resume`)", path.display())]
    Write {
        /// The journal.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// An entry has no JSON form.
    #[error("cannot encode an entry of the journal `{}`", path.display())]
    Encode {
        /// The journal.
        path: PathBuf,
        /// Why not.
        #[source]
        source: serde_json::Error,
    },
    /// An entry is over [`MAX_ENTRY_BYTES`](super::MAX_ENTRY_BYTES).
    #[error("an entry of {bytes} bytes is too long for the journal `{}`", path.display())]
    EntryTooLong {
        /// The journal.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
    /// It has no header: it is empty, or was cut off within its first line.
    #[error("the journal `{}` has no whole line (hint: without `--resume` a search starts over)", path.display())]
    NoHeader {
        /// The journal.
        path: PathBuf,
    },
    /// It is of a version that this one does not know.
    #[error("the journal `{}` has schema `{found}`, expected `{SCHEMA}` (hint: without `--resume` a search starts over)", path.display())]
    Schema {
        /// The journal.
        path: PathBuf,
        /// What it says.
        found: String,
    },
    /// A line other than a torn last one is not an entry.
    #[error("the journal `{}` is damaged at line {line}: {reason} (hint: without `--resume` a search starts over)", path.display())]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
}
