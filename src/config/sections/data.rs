//! `data:`, what to train on.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::config::leaf::choice::{Choice, Pinning};
use crate::config::leaf::memory::Size;
use crate::config::leaf::number::Whole;
use crate::config::leaf::text::Text;
use crate::config::leaf::time::Time;
use crate::config::leaf::{Leaf, LeafVisitor};
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
#[derive(Clone, Debug, PartialEq)]
pub enum Length {
    /// All the same.
    Fixed(Tokens),
    /// Drawn between two bounds.
    Range(LengthRange),
}

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

impl Leaf for Length {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of tokens such as `512`, or a range such as `{min: 64, max: 512, distribution: uniform}`")
    }

    fn from_whole(number: u64) -> Option<Self> {
        Tokens::from_whole(number).map(Self::Fixed)
    }
}

struct LengthVisitor;

impl<'de> Visitor<'de> for LengthVisitor {
    type Value = Length;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Length::expecting(f)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Length, E> {
        LeafVisitor::new().visit_u64(number)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Length, A::Error> {
        LengthRange::deserialize(MapAccessDeserializer::new(map)).map(Length::Range)
    }
}

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LengthVisitor)
    }
}

impl Serialize for Length {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(tokens) => tokens.serialize(serializer),
            Self::Range(range) => range.serialize(serializer),
        }
    }
}

impl JsonSchema for Length {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Length".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [generator.subschema_for::<Tokens>(), generator.subschema_for::<LengthRange>()] })
    }
}
