//! `data:`, what to train on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::leaf::choice::{Choice, Pinning};
use crate::config::leaf::memory::Size;
use crate::config::leaf::number::{MANY, Whole};
use crate::config::leaf::text::Text;
use crate::config::leaf::time::Time;
use crate::config::leaf::varying::{Range, Varying};
use crate::config::plan::PinMemory;
use crate::data::{LastBatch, LengthDistribution, OnBadSample, Padding, SourceKind};

/// What to train on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DataFile {
    /// Where samples come from.
    pub source: Choice<SourceKind>,
    /// The file or folder to read, relative to the configuration file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<Text>,
    /// Tokens per sample; the model's by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence_length: Option<Length>,
    /// Pixels of an image's side; the model's by default. With bounds all images of a batch have one side, drawn anew
    /// every so many batches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_size: Option<ImageSize>,
    /// How far samples of varying length are padded. Trials run the longest batch there can be in any case.
    pub padding: Choice<Padding>,
    /// Rows of `padding: longest` are filled up to a multiple of so many tokens, no further than the longest length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pad_to_multiple_of: Option<Tokens>,
    /// For text: the tokenizer.json that cuts it, relative to the configuration file; by default each byte is a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<Text>,
    /// Whether the samples at an epoch's end that do not fill a batch make a smaller one.
    pub last_batch: Choice<LastBatch>,
    /// What becomes of a sample that cannot be read: it ends the trial, or the next one takes its place.
    pub on_bad_sample: Choice<OnBadSample>,
    /// For synthetic samples: processor time that each one takes, to imitate a heavier pipeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Time>,
    /// For synthetic samples: host memory that each one holds beside its values, to imitate a heavier pipeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_bytes: Option<Size>,
    /// Whether host batches are page-locked; auto makes it part of the search. Means nothing on the CPU.
    pub pin_memory: Pinning,
}

impl Default for DataFile {
    fn default() -> Self {
        Self {
            source: Choice::default(),
            path: None,
            sequence_length: None,
            image_size: None,
            padding: Choice::default(),
            pad_to_multiple_of: None,
            tokenizer: None,
            last_batch: Choice::default(),
            on_bad_sample: Choice::default(),
            cost: None,
            sample_bytes: None,
            pin_memory: Pinning(PinMemory::Always),
        }
    }
}

/// How many tokens a sample may have.
pub type Tokens = Whole<1, 16_777_216>;

/// One length for all samples, or lengths between two bounds.
pub type Length = Varying<LengthRange>;

/// Lengths between two bounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LengthRange {
    /// The shortest.
    pub min: Option<Tokens>,
    /// The longest.
    pub max: Option<Tokens>,
    /// How lengths are drawn.
    pub distribution: Choice<LengthDistribution>,
}

impl Range for LengthRange {
    type One = Tokens;
    const NAME: &'static str = "Length";
    const EXPECTED: &'static str =
        "a number of tokens such as `512`, or a range such as `{min: 64, max: 512, distribution: uniform}`";
}

/// How many pixels the side of an image may have.
pub type Pixels = Whole<1, 16_384>;

/// One side for all images, or sides between two bounds.
pub type ImageSize = Varying<SideRange>;

/// Sides between two bounds, one for all images of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SideRange {
    /// Sides are no smaller.
    pub min: Option<Pixels>,
    /// Sides are no larger.
    pub max: Option<Pixels>,
    /// Sides are multiples of so many pixels: of those by which the net divides an image.
    pub multiple_of: Pixels,
    /// Batches until the side is drawn anew.
    pub every: Whole<1, MANY>,
}

impl Default for SideRange {
    fn default() -> Self {
        Self { min: None, max: None, multiple_of: Whole::clamped(32), every: Whole::clamped(1) }
    }
}

impl Range for SideRange {
    type One = Pixels;
    const NAME: &'static str = "ImageSize";
    const EXPECTED: &'static str =
        "a number of pixels such as `224`, or a range such as `{min: 160, max: 320, multiple_of: 32, every: 10}`";
}
