//! `memory:`, the limit and the allocator of the planned run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::leaf::choice::Choice;
use crate::config::leaf::memory::Limit;
use crate::memory::{AllocatorKind, Trim};

/// The memory limit, and the allocator of the planned run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryFile {
    /// What tensors may use: a share of the device's memory such as 85%, a size such as 40GiB, or auto (on CUDA the
    /// smaller of 85 % and what is free less 1 GiB; on the CPU half of what is available).
    pub limit: Limit,
    /// The allocator of the planned run; auto is the device's own.
    pub allocator: Choice<AllocatorKind>,
    /// When cached memory is handed back to the device.
    pub trim: Choice<Trim>,
}
