//! `command:`, a program of your own to tune in place of a model.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::leaf::text::{Argument, Arguments, Text};
use crate::config::leaf::time::Time;

/// A program of your own to tune in place of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CommandFile {
    /// The program and its arguments; `{batch_size}` and its like are replaced by what is tried.
    pub run: Arguments,
    /// Environment variables to set for it.
    pub env: BTreeMap<String, Argument>,
    /// The directory to run it in, relative to this file; where you are by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<Text>,
    /// Python modules to import once and for all trials, such as torch: each trial forks from there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preload: Vec<Text>,
    /// The longest that one run may take. A program that reports has timed out then; one that does not is stopped, and
    /// fits if it held memory of the card until then.
    pub timeout: Time,
}

impl Default for CommandFile {
    fn default() -> Self {
        Self {
            run: Arguments::default(),
            env: BTreeMap::new(),
            cwd: None,
            preload: Vec::new(),
            timeout: Time::clamped(Duration::from_secs(600)),
        }
    }
}
