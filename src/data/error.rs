//! What can go wrong with data: every message names the file, and where it helps the offset.

use std::path::PathBuf;

use crate::units::Bytes;

/// Why data cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
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
    /// A batch cannot be page-locked.
    #[error("a batch cannot be page-locked: {reason}")]
    PageLock {
        /// Why not.
        reason: String,
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
    /// Samples of varying length for a model that takes none.
    #[error("a `data.sequence_length` with `min` and `max` is for tokens, and the model takes features")]
    LengthsOfFeatures,
    /// Bounds that no length lies between.
    #[error("`data.sequence_length` cannot lie between {min} and {max}")]
    InvalidLengths {
        /// The shortest.
        min: usize,
        /// The longest.
        max: usize,
    },
    /// Samples longer than the model takes.
    #[error("`data.sequence_length: {length}` is over the model's {limit} (hint: raise `model.sequence_length`)")]
    SequenceTooLong {
        /// What the data asks for.
        length: usize,
        /// What the model takes.
        limit: usize,
    },
    /// Images of a side for a model that takes none.
    #[error("`data.image_size` is for images, and the model takes tokens")]
    SidesOfTokens,
    /// The same for a model whose features are no images.
    #[error("`data.image_size` is for images, and the model takes features of shape {shape:?}")]
    SidesOfFeatures {
        /// What it takes.
        shape: Vec<usize>,
    },
    /// Images of one side that is not the model's.
    #[error(
        "images of {side} × {side} pixels do not fit the model, which takes shape {takes:?} (hint: set `model.image_size`)"
    )]
    OtherSide {
        /// What the data asks for.
        side: usize,
        /// What the model takes.
        takes: Vec<usize>,
    },
    /// Bounds that no side lies between.
    #[error("no multiple of `data.image_size.multiple_of` lies between its `min` and `max`")]
    InvalidSides,
    /// Images that are made of one side alone.
    #[error(
        "its samples cannot be made as images of {side} × {side} pixels (hint: `source: image_folder` has images of any side)"
    )]
    OneSide {
        /// What is asked for.
        side: usize,
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
    /// A tokenizer cannot be had or used.
    #[error("tokenizer `{}`: {reason}", path.display())]
    Tokenizer {
        /// Its file.
        path: PathBuf,
        /// What it says itself.
        reason: String,
    },
    /// A token file, or a file of records, is not what it should be.
    #[error("`{}` is broken at offset {offset}: {reason}", path.display())]
    BrokenFile {
        /// Which.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// A file became shorter after it was opened.
    #[error("`{}` ends at {found} bytes and is read up to {needed} (hint: it became shorter while it was in use)", path.display())]
    Shortened {
        /// Which.
        path: PathBuf,
        /// Bytes that there are.
        found: u64,
        /// Bytes that there were.
        needed: u64,
    },
    /// An image cannot be decoded.
    #[error("`{}` is no image that can be read: {reason}", path.display())]
    BrokenImage {
        /// Which.
        path: PathBuf,
        /// What the decoder says.
        reason: String,
    },
    /// A folder of classes has none.
    #[error("`{}` has no class folders (hint: one folder a class, with the images in it)", path.display())]
    NoClasses {
        /// Which.
        path: PathBuf,
    },
    /// A class has no images.
    #[error("class folder `{}` has no `.jpg`, `.jpeg` or `.png` files", path.display())]
    EmptyClass {
        /// Which.
        path: PathBuf,
    },
    /// More classes than the model tells apart.
    #[error("`{}` has {found} classes, and the model tells {limit} apart", path.display())]
    TooManyClasses {
        /// Which.
        path: PathBuf,
        /// Class folders found.
        found: usize,
        /// The model's classes.
        limit: usize,
    },
    /// The model takes images of another shape.
    #[error("`data.source: {source_kind}` gives images of {gives}, and the model takes shape {takes:?}")]
    ImageShape {
        /// The kind of source.
        source_kind: &'static str,
        /// What it gives.
        gives: &'static str,
        /// What the model takes.
        takes: Vec<usize>,
    },
    /// Skipping found no end.
    #[error("{tries} samples in a row are bad, the last of them")]
    AllBad {
        /// How many were tried.
        tries: usize,
        /// What is wrong with the last.
        #[source]
        last: Box<DataError>,
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

impl DataError {
    /// Whether it is about one sample, so that training can go on with the others.
    pub fn is_of_one_sample(&self) -> bool {
        match self {
            Self::Read { .. }
            | Self::NotAFile { .. }
            | Self::TooLarge { .. }
            | Self::TokenOutOfVocabulary { .. }
            | Self::BrokenFile { .. }
            | Self::Shortened { .. }
            | Self::BrokenImage { .. } => true,
            Self::PathMissing
            | Self::PageLock { .. }
            | Self::TooSmall { .. }
            | Self::NoFiles { .. }
            | Self::TooManyFiles { .. }
            | Self::NotUtf8 { .. }
            | Self::LengthsOfFeatures
            | Self::InvalidLengths { .. }
            | Self::SequenceTooLong { .. }
            | Self::SidesOfTokens
            | Self::SidesOfFeatures { .. }
            | Self::OtherSide { .. }
            | Self::InvalidSides
            | Self::OneSide { .. }
            | Self::InvalidInput { .. }
            | Self::NoSuchSample { .. }
            | Self::SampleShape { .. }
            | Self::SampleType { .. }
            | Self::Mismatch { .. }
            | Self::Tokenizer { .. }
            | Self::NoClasses { .. }
            | Self::EmptyClass { .. }
            | Self::TooManyClasses { .. }
            | Self::ImageShape { .. }
            | Self::AllBad { .. }
            | Self::WorkerPanicked(_)
            | Self::WorkerNotStarted { .. }
            | Self::WorkerEnded => false,
        }
    }
}
