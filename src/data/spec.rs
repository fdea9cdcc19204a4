//! Which data to train on, as a plan holds it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where samples come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// Seeded random samples of the right shape.
    #[default]
    Synthetic,
    /// UTF-8 files, one token a byte or as a tokenizer cuts them.
    Text,
    /// Memory-mapped token files.
    Tokens,
    /// Class folders of JPEG or PNG files.
    ImageFolder,
    /// CIFAR-10's binary files.
    Cifar10,
}

impl SourceKind {
    /// Whether its images can be made of any side.
    pub fn has_images_of_any_side(self) -> bool {
        match self {
            Self::Synthetic | Self::ImageFolder => true,
            Self::Text | Self::Tokens | Self::Cifar10 => false,
        }
    }
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

/// How large images are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageSizeSpec {
    /// All of so many pixels a side.
    Fixed(usize),
    /// All of a batch alike, of a side between two bounds.
    Range {
        /// Sides are no smaller.
        min: usize,
        /// Sides are no larger.
        max: usize,
        /// Sides are multiples of it.
        multiple_of: usize,
        /// Batches until the side is drawn anew.
        every: u32,
    },
}

impl ImageSizeSpec {
    /// The largest side; `None` where there is none between the bounds.
    pub fn largest(self) -> Option<usize> {
        match self {
            Self::Fixed(side) => Some(side),
            Self::Range { min, max, multiple_of, .. } => {
                let largest = max - max.checked_rem(multiple_of)?;
                (largest > 0 && largest >= min).then_some(largest)
            }
        }
    }
}

/// How sample lengths are drawn between their bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LengthDistribution {
    /// Every length equally often.
    #[default]
    Uniform,
}

/// How far samples of varying length are padded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Padding {
    /// To the longest sample of their batch.
    #[default]
    Longest,
    /// To the longest that any sample may be.
    Maximum,
}

/// What becomes of the samples at an epoch's end that do not fill a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LastBatch {
    /// They make a smaller batch.
    Keep,
    /// They are left out of the epoch.
    #[default]
    Drop,
}

/// What becomes of a sample that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnBadSample {
    /// It ends the trial.
    #[default]
    Error,
    /// The next one takes its place, and it is counted.
    Skip,
}

/// Which data to train on, as a plan holds it.
///
/// What came later than the first version of the format is left out where it is the default, so that the hash of an
/// older plan stays what it was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DataSpec {
    /// The kind of source.
    pub source: SourceKind,
    /// The file or folder, for the kinds that read one. Absolute, or relative to the working directory.
    pub path: Option<PathBuf>,
    /// Tokens per sample; the model's where it is `None`.
    pub sequence_length: Option<LengthSpec>,
    /// Pixels of an image's side; the model's where it is `None`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub image_size: Option<ImageSizeSpec>,
    /// The `tokenizer.json` that cuts a text; its bytes are the tokens where it is `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<PathBuf>,
    /// How far samples of varying length are padded.
    #[serde(default, skip_serializing_if = "is_default")]
    pub padding: Padding,
    /// The rows of a batch that is padded to its longest sample are filled up to a multiple of so many tokens, no further
    /// than the longest length.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pad_to_multiple_of: Option<usize>,
    /// Whether an epoch ends with a smaller batch.
    #[serde(default, skip_serializing_if = "is_default")]
    pub last_batch: LastBatch,
    /// What becomes of a sample that cannot be read.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_bad_sample: OnBadSample,
    /// Processor time that a synthetic sample takes beside its making.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cost: Duration,
    /// Host memory that a synthetic sample holds beside its values.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sample_bytes: u64,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_specification_that_says_nothing_new_is_written_as_it_always_was() {
        let written = serde_json::to_string(&DataSpec::default()).unwrap();
        assert_eq!(written, r#"{"source":"synthetic","path":null,"sequence_length":null}"#);
        assert_eq!(serde_json::from_str::<DataSpec>(&written).unwrap(), DataSpec::default());
        let new = DataSpec {
            image_size: Some(ImageSizeSpec::Range { min: 160, max: 320, multiple_of: 32, every: 10 }),
            tokenizer: Some("tokenizer.json".into()),
            padding: Padding::Maximum,
            pad_to_multiple_of: Some(8),
            last_batch: LastBatch::Keep,
            on_bad_sample: OnBadSample::Skip,
            cost: Duration::from_millis(5),
            sample_bytes: 9,
            ..DataSpec::default()
        };
        let written = serde_json::to_string(&new).unwrap();
        assert_eq!(serde_json::from_str::<DataSpec>(&written).unwrap(), new);
    }
}
