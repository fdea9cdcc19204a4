//! `launcher:`, a prefix that puts workers on a cluster's scheduler.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::leaf::text::Argument;

/// A prefix that puts workers on a cluster's scheduler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LauncherFile {
    /// The launcher and its arguments, such as `[srun, --ntasks=1, "--job-name={trial}"]`.
    pub command: Vec<Argument>,
}
