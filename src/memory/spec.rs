//! Settings of the memory room as a plan holds them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Fraction};

/// The allocator of the planned run.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum AllocatorKind {
    /// The one that the device itself uses: the driver pool for candle on CUDA, `native` on the CPU device.
    #[default]
    Auto,
    /// The CUDA driver's stream-ordered pool (`cuMemAllocAsync`).
    CudaMallocAsync,
    /// PyTorch's caching allocator.
    Native,
    /// PyTorch's caching allocator with `expandable_segments:True`.
    Expandable,
}

impl fmt::Display for AllocatorKind {
    /// The name as a configuration writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::CudaMallocAsync => "cuda_malloc_async",
            Self::Native => "native",
            Self::Expandable => "expandable",
        })
    }
}

/// When cached memory is handed back to the device (`empty_cache`, `cuMemPoolTrimTo`).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Trim {
    /// Never.
    #[default]
    Never,
    /// After every optimizer step.
    AfterUpdate,
    /// After every evaluation pass.
    AfterEval,
    /// Every few steps.
    EveryK,
}

impl fmt::Display for Trim {
    /// The name as a configuration writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Never => "never",
            Self::AfterUpdate => "after_update",
            Self::AfterEval => "after_eval",
            Self::EveryK => "every_k",
        })
    }
}

/// What tensors may use at most (C in the documents).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitSpec {
    /// The device's default: on CUDA the smaller of 85 % of the total and the free memory at the start less 1 GiB; on
    /// the CPU device half of the memory that the cgroup has available.
    #[default]
    Auto,
    /// A share of the device's memory.
    Fraction(Fraction),
    /// A number of bytes.
    Bytes(Bytes),
}

/// The fragmentation rate that the safety rule reads (see [`crate::memory::fragmentation`]).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum FragmentationMetric {
    /// 1 − peak allocated / peak reserved.
    #[default]
    Peak,
    /// 1 − largest satisfiable request / free bytes.
    External,
    /// 1 − allocated / reserved at the instant.
    Reserved,
}

/// Whose fragmentation rate the safety rule reads.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum FragmentationSource {
    /// The device's own allocator.
    Device,
    /// The replay of the same events under the planned run's allocator.
    Shadow,
    /// The worse of the two.
    #[default]
    Worst,
}
