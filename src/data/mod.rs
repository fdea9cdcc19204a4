//! The data room: datasets, and a loader with workers and prefetch.
//!
//! A [`Dataset`] is a length and one sample by index. The [`loader`] collates samples into [`HostBatch`]es on worker
//! threads, in an [`order`] that depends on the seed alone; [`rules`] say what a batch may be like (its last one, its
//! bad samples, its [`lengths`] or its images' [`sides`]), and [`run_shapes`] foretells the shapes of a whole run. The
//! training thread turns a host batch into a [`Batch`] of tensors on its device.
//! Samples for the evaluation pass are kept apart: see [`held_out`]. [`throughput()`] is the loader without a device.
//!
//! # To add a dataset
//! Create `data/<kind>.rs` with a type that implements [`Dataset`], add one variant to [`SourceKind`] and one line
//! to [`open`].

use std::sync::Arc;

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};

pub mod cifar10;
mod collate;
mod error;
mod files;
pub mod held_out;
mod image;
pub mod image_folder;
pub mod lengths;
pub mod loader;
pub(crate) mod mapped;
pub mod masked;
pub mod order;
pub mod pinned;
pub mod rules;
pub mod run_shapes;
mod sample_size;
pub mod sides;
mod spec;
pub mod synthetic;
pub mod text;
mod throughput;
mod tokenized;
pub mod tokens;

pub use error::DataError;
pub use order::Place;
pub use sample_size::SampleSize;
pub use spec::{DataSpec, ImageSizeSpec, LastBatch, LengthDistribution, LengthSpec, OnBadSample, Padding, SourceKind};
pub use throughput::{Extent, Throughput, throughput};

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
    /// Masked-token prediction: inputs are token ids [B, T] of which some are hidden, targets [B, T] what was there, and
    /// [`masked::IGNORED`] everywhere else.
    MaskedTokens {
        /// Distinct tokens.
        vocabulary_size: usize,
        /// T.
        sequence_length: usize,
        /// The token that stands for a hidden one.
        mask_token: u32,
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
    /// Bytes that are held beside the values and reach no device: what a heavy pipeline keeps with its samples.
    pub ballast: Vec<u8>,
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

    /// Bytes of the batch in host memory.
    pub fn bytes(&self) -> u64 {
        self.input.bytes() + self.target.bytes() + self.ballast.len() as u64
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

    /// The sample as an epoch shows it, always the same for the same place: what is done to it by chance (the crop of an
    /// image) depends on the dataset's seed, the epoch, and the index.
    fn sample_at(&self, place: Place) -> Result<Sample, DataError> {
        self.sample(place.index)
    }

    /// The same where samples are images that can be made of any side ([`DataSpec::image_size`]): an input of
    /// [`side_shape`](Self::side_shape).
    fn sample_of_side(&self, _place: Place, side: usize) -> Result<Sample, DataError> {
        Err(DataError::OneSide { side })
    }

    /// The shape of one input with another side: its last two dimensions are that.
    fn side_shape(&self, side: usize) -> Vec<usize> {
        let mut shape = self.input_shape();
        shape.iter_mut().rev().take(2).for_each(|size| *size = side);
        shape
    }

    /// The shape of one input.
    fn input_shape(&self) -> Vec<usize>;

    /// The shape of one target.
    fn target_shape(&self) -> Vec<usize>;

    /// What the target of a place behind the end of a sample is, where samples are padded.
    fn target_padding(&self) -> u32 {
        lengths::PADDING
    }

    /// Host memory that each sample holds beside its values.
    fn ballast_bytes(&self) -> u64 {
        0
    }
}

/// Opens the dataset of a specification, made to fit what the model takes.
pub fn open(spec: &DataSpec, input: &InputSpec, seed: u64) -> Result<Arc<dyn Dataset>, DataError> {
    let input = with_side(with_length(input, spec.sequence_length)?, spec)?;
    let InputSpec::MaskedTokens { vocabulary_size, sequence_length, mask_token } = input else {
        return open_source(spec, &input, seed);
    };
    let whole = open_source(spec, &InputSpec::Tokens { vocabulary_size, sequence_length }, seed)?;
    let shortest = match spec.sequence_length {
        Some(LengthSpec::Range { min, .. }) => min,
        Some(LengthSpec::Fixed(_)) | None => sequence_length,
    };
    let rules = masked::MaskRules { vocabulary_size, mask_token, shortest };
    Ok(Arc::new(masked::Masked::new(whole, rules, seed)))
}

fn open_source(spec: &DataSpec, input: &InputSpec, seed: u64) -> Result<Arc<dyn Dataset>, DataError> {
    let path = spec.path.as_deref();
    Ok(match spec.source {
        SourceKind::Synthetic => {
            Arc::new(synthetic::Synthetic::new(input, seed)?.with_load(spec.cost, spec.sample_bytes))
        }
        SourceKind::Text => Arc::new(text::Text::open(path, spec.tokenizer.as_deref(), input)?),
        SourceKind::Tokens => Arc::new(tokens::Tokens::open(path, input)?),
        SourceKind::ImageFolder => Arc::new(image_folder::ImageFolder::open(path, input, seed)?),
        SourceKind::Cifar10 => Arc::new(cifar10::Cifar10::open(path, input, seed)?),
    })
}

/// What the model takes, at the length that the data asks for.
fn with_length(input: &InputSpec, length: Option<LengthSpec>) -> Result<InputSpec, DataError> {
    let longest = match length {
        None => return Ok(input.clone()),
        Some(LengthSpec::Fixed(length)) => length,
        Some(LengthSpec::Range { min, max, .. }) if 0 < min && min <= max => max,
        Some(LengthSpec::Range { min, max, .. }) => return Err(DataError::InvalidLengths { min, max }),
    };
    let mut fitted = input.clone();
    match &mut fitted {
        InputSpec::Tokens { sequence_length, .. } | InputSpec::MaskedTokens { sequence_length, .. } => {
            if longest > *sequence_length {
                return Err(DataError::SequenceTooLong { length: longest, limit: *sequence_length });
            }
            *sequence_length = longest;
        }
        InputSpec::Features { .. } if matches!(length, Some(LengthSpec::Range { .. })) => {
            return Err(DataError::LengthsOfFeatures);
        }
        InputSpec::Features { .. } => {}
    }
    Ok(fitted)
}

/// The same with images of the largest side that the data asks for.
fn with_side(mut input: InputSpec, spec: &DataSpec) -> Result<InputSpec, DataError> {
    let Some(asked) = spec.image_size else { return Ok(input) };
    let side = asked.largest().ok_or(DataError::InvalidSides)?;
    let InputSpec::Features { shape, .. } = &mut input else { return Err(DataError::SidesOfTokens) };
    let [_, height, width] = shape.as_mut_slice() else {
        return Err(DataError::SidesOfFeatures { shape: shape.clone() });
    };
    match asked {
        ImageSizeSpec::Fixed(_) if [*height, *width] != [side, side] => {
            return Err(DataError::OtherSide { side, takes: shape.clone() });
        }
        ImageSizeSpec::Fixed(_) => {}
        ImageSizeSpec::Range { .. } if !spec.source.has_images_of_any_side() => {
            return Err(DataError::OneSide { side });
        }
        ImageSizeSpec::Range { .. } => (*height, *width) = (side, side),
    }
    Ok(input)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(sequence_length: Option<LengthSpec>) -> DataSpec {
        DataSpec { sequence_length, ..DataSpec::default() }
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
    fn varying_lengths_open_the_dataset_at_the_longest() {
        let range = |min, max| Some(LengthSpec::Range { min, max, distribution: LengthDistribution::Uniform });
        let shape = |length| open(&spec(length), &INPUT, 0).map(|dataset| dataset.input_shape());
        assert_eq!(shape(range(1, 6)).unwrap(), [6]);
        assert!(matches!(shape(range(1, 9)), Err(DataError::SequenceTooLong { length: 9, limit: 8 })));
        assert!(matches!(shape(range(5, 4)), Err(DataError::InvalidLengths { min: 5, max: 4 })));
        assert!(matches!(shape(range(0, 4)), Err(DataError::InvalidLengths { .. })));
        let features = InputSpec::Features { shape: vec![2], classes: 2 };
        let error = open(&spec(range(1, 2)), &features, 0).err();
        assert!(matches!(error, Some(DataError::LengthsOfFeatures)));
    }

    #[test]
    fn images_of_varying_side_open_the_dataset_at_the_largest() {
        let range = |min, max| Some(ImageSizeSpec::Range { min, max, multiple_of: 8, every: 1 });
        let spec = |image_size| DataSpec { image_size, ..DataSpec::default() };
        let images = InputSpec::Features { shape: vec![3, 32, 32], classes: 2 };
        let shape = |size| open(&spec(size), &images, 0).map(|dataset| dataset.input_shape());
        assert_eq!(shape(range(16, 70)).unwrap(), [3, 64, 64]);
        assert_eq!(shape(Some(ImageSizeSpec::Fixed(32))).unwrap(), [3, 32, 32]);
        let error = shape(Some(ImageSizeSpec::Fixed(48)));
        assert!(matches!(error, Err(DataError::OtherSide { side: 48, .. })), "{error:?}");
        assert!(matches!(shape(range(3, 7)), Err(DataError::InvalidSides)));
        let other = |input: &InputSpec, source| open(&DataSpec { source, ..spec(range(16, 64)) }, input, 0).err();
        assert!(matches!(other(&INPUT, SourceKind::Synthetic), Some(DataError::SidesOfTokens)));
        let features = InputSpec::Features { shape: vec![9], classes: 2 };
        assert!(matches!(other(&features, SourceKind::Synthetic), Some(DataError::SidesOfFeatures { .. })));
        assert!(matches!(other(&images, SourceKind::Cifar10), Some(DataError::OneSide { .. })));
    }

    #[test]
    fn masked_tokens_come_from_any_source_of_tokens() {
        let input = InputSpec::MaskedTokens { vocabulary_size: 10, sequence_length: 8, mask_token: 9 };
        let dataset = open(&spec(Some(LengthSpec::Fixed(6))), &input, 0).unwrap();
        assert_eq!((dataset.input_shape(), dataset.target_shape()), (vec![6], vec![6]));
        assert_eq!(dataset.target_padding(), masked::IGNORED);
        let error = open(&DataSpec { source: SourceKind::Text, ..spec(None) }, &input, 0).err();
        assert!(matches!(error, Some(DataError::PathMissing)), "{error:?}");
        let error = open(&DataSpec { source: SourceKind::Cifar10, ..spec(None) }, &input, 0).err();
        assert!(matches!(error, Some(DataError::Mismatch { .. })), "{error:?}");
    }

    #[test]
    fn sources_with_files_need_a_path() {
        for source in [SourceKind::Text, SourceKind::Tokens, SourceKind::ImageFolder, SourceKind::Cifar10] {
            let shape = if source == SourceKind::Cifar10 { vec![3, 32, 32] } else { vec![3, 8, 8] };
            let features = InputSpec::Features { shape, classes: 10 };
            let tokens = matches!(source, SourceKind::Text | SourceKind::Tokens);
            let input = if tokens { &INPUT } else { &features };
            let error = open(&DataSpec { source, ..spec(None) }, input, 0).err();
            assert!(matches!(error, Some(DataError::PathMissing)), "{source}: {error:?}");
            let other = if tokens { &features } else { &INPUT };
            let error = open(&DataSpec { source, ..spec(None) }, other, 0).err();
            assert!(matches!(error, Some(DataError::Mismatch { .. })), "{source}: {error:?}");
        }
    }

    #[test]
    fn a_batch_reaches_the_device_as_it_is() {
        let batch = HostBatch {
            input: HostValues::F32(vec![1.0, 2.0]),
            input_shape: vec![2, 1],
            target: HostValues::U32(vec![3, 4]),
            target_shape: vec![2],
            samples: 2,
            ballast: vec![0; 100],
        };
        let moved = batch.to_device(&Device::Cpu).unwrap();
        assert_eq!(moved.input.to_vec2::<f32>().unwrap(), [[1.0], [2.0]]);
        assert_eq!(moved.target.to_vec1::<u32>().unwrap(), [3, 4]);
    }
}
