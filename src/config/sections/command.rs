//! `command:`, a program of your own to tune in place of a model.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::leaf::text::{Argument, Text};

/// A program of your own to tune in place of a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CommandFile {
    /// The program and its arguments; `{batch_size}` and its like are replaced by what is tried.
    pub run: Vec<Argument>,
    /// Environment variables to set for it.
    pub env: BTreeMap<String, Argument>,
    /// The directory to run it in; the configuration file's by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<Text>,
}
