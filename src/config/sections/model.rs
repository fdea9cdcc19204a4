//! `model:`, what to train.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::leaf::number::Whole;
use crate::config::leaf::text::Text;

/// What to train: a family, and its dimensions from a preset or one by one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelFile {
    /// The family: gpt, llama, bert or another that `tune models` lists, your own binary's among them. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<Text>,
    /// A named set of dimensions of the family; the keys below override it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Text>,
    /// Tokens per sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence_length: Option<Whole<1, 16_777_216>>,
    /// Blocks, one after the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<Whole<1, 65_536>>,
    /// Attention heads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heads: Option<Whole<1, 65_536>>,
    /// Width of the residual stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_size: Option<Whole<1, 16_777_216>>,
    /// Distinct tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocabulary_size: Option<Whole<1, 16_777_216>>,
    /// Heads of keys and values, where several heads of queries share one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_value_heads: Option<Whole<1, 65_536>>,
    /// Width of the hidden layer of a block's network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intermediate_size: Option<Whole<1, 16_777_216>>,
    /// Pixels of an image's side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_size: Option<Whole<1, 65_536>>,
    /// Pixels of a patch's side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch_size: Option<Whole<1, 65_536>>,
    /// Distinct classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<Whole<1, 16_777_216>>,
    /// Safetensors with values for the parameters, relative to the configuration file: a file, the index of several, or
    /// the folder of either. By default they are drawn from the seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<Text>,
    /// A config.json of Hugging Face's, relative to the configuration file; it stands where a preset would.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<Text>,
    /// Settings of a family that batchtune does not know, handed to it unread.
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    pub options: serde_json::Map<String, serde_json::Value>,
}
