//! What can go wrong with data: every message names the file, and where it helps the offset.

use std::path::PathBuf;

use super::SourceKind;
use crate::units::Bytes;

/// Why data cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The kind is not built yet.
    #[error("`data.source: {0}` is not supported yet (hint: `synthetic` or `text`)")]
    NotSupported(SourceKind),
    /// The kind needs a path.
    #[error("`data.path` is missing (hint: name a file or a folder)")]
    PathMissing,
    /// A file or folder cannot be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// There is too little in it.
    #[error("`{}` holds {found} tokens, and one sample needs {needed} (hint: a shorter `sequence_length` or more text)", path.display())]
    TooSmall {
        /// Which.
        path: PathBuf,
        /// Tokens found.
        found: usize,
        /// Tokens needed.
        needed: usize,
    },
    /// There is too much in it.
    #[error("`{}` holds more than {limit} (hint: name a part of it)", path.display())]
    TooLarge {
        /// Which.
        path: PathBuf,
        /// What is allowed.
        limit: Bytes,
    },
    /// A folder has no files.
    #[error("`{}` has no files to read (hint: files in its subfolders, and those whose names begin with a dot, are left out)", path.display())]
    NoFiles {
        /// Which.
        path: PathBuf,
    },
    /// A folder has more files than anybody means to train on.
    #[error("`{}` has more than {limit} files (hint: name a part of it)", path.display())]
    TooManyFiles {
        /// Which.
        path: PathBuf,
        /// What is allowed.
        limit: usize,
    },
    /// A pipe, a socket or a device, which could be read for ever.
    #[error("`{}` is neither a file nor a folder", path.display())]
    NotAFile {
        /// Which.
        path: PathBuf,
    },
    /// A text file is not UTF-8.
    #[error("`{}` is not UTF-8 text: byte {byte:#04x} at offset {offset}", path.display())]
    NotUtf8 {
        /// Which.
        path: PathBuf,
        /// The byte that does not belong there.
        byte: u8,
        /// Where, counted from 0.
        offset: u64,
    },
    /// Samples of varying length.
    #[error("a `data.sequence_length` with `min` and `max` is not supported yet")]
    LengthsNotSupported,
    /// Samples longer than the model takes.
    #[error("`data.sequence_length: {length}` is over the model's {limit} (hint: raise `model.sequence_length`)")]
    SequenceTooLong {
        /// What the data asks for.
        length: usize,
        /// What the model takes.
        limit: usize,
    },
    /// The model asks for samples that cannot be.
    #[error("the model takes samples that cannot be made: {reason}")]
    InvalidInput {
        /// Why not.
        reason: &'static str,
    },
    /// The dataset has no such sample.
    #[error("there is no sample {index}, the dataset has {samples}")]
    NoSuchSample {
        /// Which was asked for.
        index: usize,
        /// How many there are, the held-out ones included.
        samples: usize,
    },
    /// A sample is not of the shape that its dataset names.
    #[error("sample {index} has {found} values where its dataset promises {needed}")]
    SampleShape {
        /// Which.
        index: usize,
        /// Its values.
        found: usize,
        /// The values of the promised shape.
        needed: usize,
    },
    /// A sample has integers where the others have floats, or the other way round.
    #[error("sample {index} has values of another type than those before it in the batch")]
    SampleType {
        /// Which.
        index: usize,
    },
    /// The model cannot take this kind of data.
    #[error("`data.source: {source_kind}` gives {gives}, and the model takes {takes}")]
    Mismatch {
        /// The kind of source.
        source_kind: &'static str,
        /// What it gives.
        gives: &'static str,
        /// What the model takes.
        takes: &'static str,
    },
    /// A token the model does not know.
    #[error("`{}` holds token {token} at offset {offset}, beyond the vocabulary of {vocabulary_size}", path.display())]
    TokenOutOfVocabulary {
        /// Which file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What.
        token: u32,
        /// The model's vocabulary.
        vocabulary_size: usize,
    },
    /// The dataset panicked while it made a sample.
    #[error("a loader worker panicked: {0}")]
    WorkerPanicked(String),
    /// The system gives no more threads.
    #[error("cannot start loader worker {worker} of {workers} (hint: fewer `search.loader_workers`)")]
    WorkerNotStarted {
        /// Which, counted from 1.
        worker: usize,
        /// How many were asked for.
        workers: usize,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A worker thread ended, which it never does on its own.
    #[error("a loader worker ended without an answer")]
    WorkerEnded,
}
