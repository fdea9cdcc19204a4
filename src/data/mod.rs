//! The data room: datasets, and a loader with workers and prefetch.
//!
//! A [`Dataset`] is a length and one sample by index. The [`loader`] collates samples into [`HostBatch`]es on worker
//! threads, in an order that depends on the seed alone. The training thread turns a host batch into a [`Batch`] of
//! tensors on its device.
//!
//! # To add a dataset
//! Create `data/<kind>.rs` with a type that implements [`Dataset`], add one variant to [`SourceKind`] and one line
//! to [`open`].

use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};

pub mod loader;
pub mod synthetic;
pub mod text;

/// Where samples come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// Seeded random samples of the right shape.
    #[default]
    Synthetic,
    /// UTF-8 files, one token a byte.
    Text,
    /// Memory-mapped token files.
    Tokens,
    /// Class folders of JPEG or PNG files.
    ImageFolder,
    /// CIFAR-10's binary files.
    Cifar10,
}

/// How long samples are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LengthSpec {
    /// All the same.
    Fixed(usize),
    /// Drawn between two bounds.
    Range {
        /// The shortest.
        min: usize,
        /// The longest.
        max: usize,
        /// How they are drawn.
        distribution: LengthDistribution,
    },
}

/// How sample lengths are drawn between their bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LengthDistribution {
    /// Every length equally often.
    #[default]
    Uniform,
}

/// Which data to train on, as a plan holds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataSpec {
    /// The kind of source.
    pub source: SourceKind,
    /// The file or folder, for the kinds that read one. Absolute, or relative to the working directory.
    pub path: Option<PathBuf>,
    /// Tokens per sample; the model's where it is `None`.
    pub sequence_length: Option<LengthSpec>,
}

/// What a batch must look like for a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputSpec {
    /// Next-token prediction: inputs and targets are token ids [B, T], targets shifted by one.
    Tokens {
        /// Distinct tokens.
        vocabulary_size: usize,
        /// T.
        sequence_length: usize,
    },
    /// Classification of feature tensors: inputs are floats [B, shape…], targets class ids \[B\].
    Features {
        /// The shape of one sample.
        shape: Vec<usize>,
        /// Distinct classes.
        classes: usize,
    },
}

/// Values of one sample or one collated field, in host memory.
#[derive(Clone, Debug, PartialEq)]
pub enum HostValues {
    /// Token or class ids.
    U32(Vec<u32>),
    /// Features.
    F32(Vec<f32>),
}

impl HostValues {
    /// Bytes of the values.
    pub fn bytes(&self) -> u64 {
        4 * match self {
            Self::U32(values) => values.len(),
            Self::F32(values) => values.len(),
        } as u64
    }
}

/// One training sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The model's input.
    pub input: HostValues,
    /// What it should answer.
    pub target: HostValues,
}

/// A collated batch in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct HostBatch {
    /// Inputs, row-major.
    pub input: HostValues,
    /// Shape of the inputs, batch first.
    pub input_shape: Vec<usize>,
    /// Targets, row-major.
    pub target: HostValues,
    /// Shape of the targets, batch first.
    pub target_shape: Vec<usize>,
    /// Samples in the batch.
    pub samples: usize,
}

impl HostBatch {
    /// Copies the batch to a device.
    ///
    /// On the CPU this is a real copy too, as a transfer to a card would be: the virtual device must see it.
    pub fn to_device(&self, device: &Device) -> candle_core::Result<Batch> {
        let tensor = |values: &HostValues, shape: &[usize]| match values {
            HostValues::U32(values) => Tensor::from_slice(values, shape, device),
            HostValues::F32(values) => Tensor::from_slice(values, shape, device),
        };
        Ok(Batch {
            input: tensor(&self.input, &self.input_shape)?,
            target: tensor(&self.target, &self.target_shape)?,
            samples: self.samples,
        })
    }

    /// Bytes of the batch.
    pub fn bytes(&self) -> u64 {
        self.input.bytes() + self.target.bytes()
    }
}

/// A batch on the training device.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The model's input, batch first.
    pub input: Tensor,
    /// What it should answer, batch first.
    pub target: Tensor,
    /// Samples in the batch.
    pub samples: usize,
}

/// A source of samples. Shared by the loader's workers.
pub trait Dataset: Send + Sync {
    /// Samples in one epoch; never 0.
    fn len(&self) -> usize;

    /// Whether it has no samples (a dataset without any refuses to open).
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sample at `index`, always the same for the same index.
    fn sample(&self, index: usize) -> Result<Sample, DataError>;

    /// The shape of one input.
    fn input_shape(&self) -> Vec<usize>;

    /// The shape of one target.
    fn target_shape(&self) -> Vec<usize>;
}

/// Opens the dataset of a specification, made to fit what the model takes.
pub fn open(spec: &DataSpec, input: &InputSpec, seed: u64) -> Result<Arc<dyn Dataset>, DataError> {
    match spec.source {
        SourceKind::Synthetic => Ok(Arc::new(synthetic::Synthetic::new(input.clone(), seed))),
        SourceKind::Text => Ok(Arc::new(text::Text::open(spec.path.as_deref(), input)?)),
        kind @ (SourceKind::Tokens | SourceKind::ImageFolder | SourceKind::Cifar10) => {
            Err(DataError::NotSupported(kind))
        }
    }
}

/// Why data cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The kind is not built yet.
    #[error("`data.source: {0:?}` is not supported yet")]
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
    #[error("`{}` holds {found}, and one sample needs {needed} (hint: a shorter `sequence_length` or more text)", path.display())]
    TooSmall {
        /// Which.
        path: PathBuf,
        /// Tokens found.
        found: usize,
        /// Tokens needed.
        needed: usize,
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
    /// A loader worker panicked.
    #[error("a loader worker panicked: {0}")]
    WorkerPanicked(String),
}
