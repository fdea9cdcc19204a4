//! The data room: datasets, and a loader with workers and prefetch.
//!
//! A [`Dataset`] is a length and one sample by index. The [`loader`] collates samples into [`HostBatch`]es on worker
//! threads, in an [`order`] that depends on the seed alone. The training thread turns a host batch into a [`Batch`] of
//! tensors on its device. Samples for the evaluation pass are kept apart: see [`held_out`].
//!
//! # To add a dataset
//! Create `data/<kind>.rs` with a type that implements [`Dataset`], add one variant to [`SourceKind`] and one line
//! to [`open`].

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};

mod collate;
mod error;
pub mod held_out;
pub mod loader;
pub mod order;
pub mod synthetic;
pub mod text;

pub use error::DataError;

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

impl fmt::Display for SourceKind {
    /// As the configuration writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Synthetic => "synthetic",
            Self::Text => "text",
            Self::Tokens => "tokens",
            Self::ImageFolder => "image_folder",
            Self::Cifar10 => "cifar10",
        })
    }
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
///
/// Indices from 0 to [`len`](Self::len) are the training samples; [`held_out_len`](Self::held_out_len) more follow,
/// which training never sees.
pub trait Dataset: Send + Sync {
    /// Samples in one epoch; never 0.
    fn len(&self) -> usize;

    /// Samples kept back for evaluation.
    fn held_out_len(&self) -> usize {
        0
    }

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
    let input = &with_length(input, spec.sequence_length)?;
    match spec.source {
        SourceKind::Synthetic => Ok(Arc::new(synthetic::Synthetic::new(input, seed)?)),
        SourceKind::Text => Ok(Arc::new(text::Text::open(spec.path.as_deref(), input)?)),
        kind @ (SourceKind::Tokens | SourceKind::ImageFolder | SourceKind::Cifar10) => {
            Err(DataError::NotSupported(kind))
        }
    }
}

/// What the model takes, at the length that the data asks for.
fn with_length(input: &InputSpec, length: Option<LengthSpec>) -> Result<InputSpec, DataError> {
    match (input, length) {
        (InputSpec::Tokens { vocabulary_size, sequence_length }, Some(LengthSpec::Fixed(length))) => {
            if length > *sequence_length {
                return Err(DataError::SequenceTooLong { length, limit: *sequence_length });
            }
            Ok(InputSpec::Tokens { vocabulary_size: *vocabulary_size, sequence_length: length })
        }
        (_, Some(LengthSpec::Range { .. })) => Err(DataError::LengthsNotSupported),
        (input, _) => Ok(input.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(sequence_length: Option<LengthSpec>) -> DataSpec {
        DataSpec { source: SourceKind::Synthetic, path: None, sequence_length }
    }

    const INPUT: InputSpec = InputSpec::Tokens { vocabulary_size: 10, sequence_length: 8 };

    #[test]
    fn the_data_may_ask_for_shorter_samples_than_the_model_takes() {
        let shape = |length| open(&spec(length), &INPUT, 0).map(|dataset| dataset.input_shape());
        assert_eq!(shape(None).unwrap(), [8]);
        assert_eq!(shape(Some(LengthSpec::Fixed(5))).unwrap(), [5]);
        let error = shape(Some(LengthSpec::Fixed(9)));
        assert!(matches!(error, Err(DataError::SequenceTooLong { length: 9, limit: 8 })));
        assert!(shape(Some(LengthSpec::Fixed(0))).is_err());
    }

    #[test]
    fn what_is_not_built_yet_says_so() {
        for source in [SourceKind::Tokens, SourceKind::ImageFolder, SourceKind::Cifar10] {
            let error = open(&DataSpec { source, ..spec(None) }, &INPUT, 0).err().map(|error| error.to_string());
            assert!(error.is_some_and(|error| error.contains("not supported yet")));
        }
        let range = LengthSpec::Range { min: 1, max: 8, distribution: LengthDistribution::Uniform };
        assert!(matches!(open(&spec(Some(range)), &INPUT, 0), Err(DataError::LengthsNotSupported)));
    }

    #[test]
    fn a_batch_reaches_the_device_as_it_is() {
        let batch = HostBatch {
            input: HostValues::F32(vec![1.0, 2.0]),
            input_shape: vec![2, 1],
            target: HostValues::U32(vec![3, 4]),
            target_shape: vec![2],
            samples: 2,
        };
        let moved = batch.to_device(&Device::Cpu).unwrap();
        assert_eq!(moved.input.to_vec2::<f32>().unwrap(), [[1.0], [2.0]]);
        assert_eq!(moved.target.to_vec1::<u32>().unwrap(), [3, 4]);
    }
}
