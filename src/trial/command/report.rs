//! The report protocol, version 1: what a program that is being tuned says of itself.
//!
//! The program appends JSON lines to the file named in `TUNE_REPORT`: one object a line, each written whole. A path, since
//! a launcher between the tuner and the program (`srun`, `torchrun`, a container) passes no descriptors on. Any language
//! can write it; `examples/pytorch/tune_report.py` does for PyTorch.
//!
//! | `event` | when | fields (those in brackets may be absent) |
//! |---|---|---|
//! | `hello` | first | `protocol`: 1, \[`framework`, `pid`, `rank`, `world_size`, `device`, `uuid`, `name`, `allocator`, `total_bytes`, `limit_bytes`\] |
//! | `reached` | with several ranks: the end of a step is reached, the device's work perhaps not done | `step`: this one, counted from 1 |
//! | `step` | a micro-batch is done, the device synchronised | `step`: finished so far, `samples`, `total_ms`, \[`loss`, `data_wait_ms`, `load_ms`, `forward_ms`, `backward_ms`, `optimizer_ms`\] |
//! | `sample` | every `TUNE_SAMPLE_EVERY` steps, and after the last | `step`, `allocated_bytes`, `reserved_bytes`, \[`requested_bytes`, `peak_allocated_bytes`, `peak_reserved_bytes`, `largest_free_bytes`, `unreleasable_bytes`, `allocated_blocks`, `largest_request_bytes`, `host_bytes`\] |
//! | `mark` | in a probe: a step begins, or the last has ended; an evaluation or a checkpoint begins | `mark`: `step`, `evaluation` or `checkpoint`, `allocations` and `frees` since recording began, \[`step`\] |
//! | `trace` | in a probe: the trace is written | |
//! | `evaluation` | after the pass | \[`loss`, `seconds`\] |
//! | `checkpoint` | after it was written | \[`bytes`, `seconds`\] |
//! | `warning` | at any time | `text` |
//! | `end` | last | `outcome`: `completed`, `out_of_memory`, `failed` or `diverged`, \[`message`, `requested_bytes`, `step`\] |
//!
//! `total_ms` runs from the end of one step to the end of the next, the wait for data included and the reporter's own work
//! left out. Peaks count since the last sample. A loss that is not finite is the text `nan`, `inf` or `-inf`, since JSON
//! has no such numbers. Unknown events and fields are ignored, so that a newer program can say more.
//!
//! # Several ranks
//! Where `TUNE_REPLICAS` is N > 1 every rank has a report of its own, so that no line of one can get into another's and a
//! rank that says nothing is known from one that does: rank 0 the file `$TUNE_REPORT`, rank R > 0 the file
//! `$TUNE_REPORT.R`, and likewise `$TUNE_TRACE.R`. All are there before the program starts; a launcher needs to pass on
//! the environment and a shared file system, and nothing else. Each is a report as above. In `hello`, which every rank
//! writes as soon as it can, `world_size` is how many ranks there really are, and a `pid` of this machine lets the end
//! of a rank be seen that says nothing of it. With `TUNE_REPLICAS` 1, or without it, there is one report: rank 0 writes
//! it, and others add a failure of theirs at most.
//!
//! A reader is strict about what it knows: a line that is no such object spoils the report.

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};

mod reader;

pub use reader::{Chunk, Reader, ReportError};
pub(super) use reader::{of_rank, open_regular};

/// The protocol's version.
pub const PROTOCOL: u32 = 1;

/// One line of a report.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Line {
    /// The program speaks the protocol.
    Hello(Hello),
    /// The end of a step is reached.
    Reached {
        /// Which, counted from 1.
        step: u32,
    },
    /// A micro-batch is done.
    Step(StepLine),
    /// The allocator's figures.
    Sample(SampleLine),
    /// Something begins, at a place in the trace.
    Mark(MarkLine),
    /// The trace is written.
    Trace {},
    /// An evaluation pass is done.
    Evaluation {
        /// Its loss.
        #[serde(default, deserialize_with = "loss")]
        loss: Option<f64>,
    },
    /// A checkpoint is written.
    Checkpoint {
        /// Its size.
        #[serde(default)]
        bytes: Option<u64>,
    },
    /// The user should know.
    Warning {
        /// What.
        text: String,
    },
    /// The run is over.
    End(EndLine),
    /// Something newer.
    #[serde(other)]
    Other,
}

/// Who reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Hello {
    /// The version that it speaks.
    pub protocol: u32,
    /// The framework and its version.
    #[serde(default)]
    pub framework: Option<String>,
    /// The number of its process.
    #[serde(default)]
    pub pid: Option<u32>,
    /// How many ranks train together.
    #[serde(default)]
    pub world_size: Option<u32>,
    /// Its allocator: `native`, `expandable` or `cuda_malloc_async`.
    #[serde(default)]
    pub allocator: Option<String>,
    /// The limit that it holds itself to.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
}

/// A finished micro-batch.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct StepLine {
    /// Steps finished so far.
    pub step: u32,
    /// Its samples.
    pub samples: u64,
    /// Its loss.
    #[serde(default, deserialize_with = "loss")]
    pub loss: Option<f64>,
    /// The whole step.
    pub total_ms: f64,
    /// Blocked on the loader.
    #[serde(default)]
    pub data_wait_ms: f64,
    /// Copy to the device.
    #[serde(default)]
    pub load_ms: f64,
    /// Forward pass.
    #[serde(default)]
    pub forward_ms: f64,
    /// Backward pass.
    #[serde(default)]
    pub backward_ms: f64,
    /// Optimizer step.
    #[serde(default)]
    pub optimizer_ms: f64,
}

/// The allocator's figures between two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct SampleLine {
    /// Steps finished so far.
    pub step: u32,
    /// A.
    pub allocated_bytes: u64,
    /// V.
    pub reserved_bytes: u64,
    /// What live blocks were asked for.
    #[serde(default)]
    pub requested_bytes: Option<u64>,
    /// The highest A since the last sample.
    #[serde(default)]
    pub peak_allocated_bytes: Option<u64>,
    /// The highest V since the last sample.
    #[serde(default)]
    pub peak_reserved_bytes: Option<u64>,
    /// The largest free block.
    #[serde(default)]
    pub largest_free_bytes: Option<u64>,
    /// Free bytes that releasing the cache could not give back.
    #[serde(default)]
    pub unreleasable_bytes: Option<u64>,
    /// Live blocks.
    #[serde(default)]
    pub allocated_blocks: Option<u64>,
    /// The largest request.
    #[serde(default)]
    pub largest_request_bytes: Option<u64>,
    /// Host memory of the process.
    #[serde(default)]
    pub host_bytes: Option<u64>,
}

/// What begins at a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkKind {
    /// A step, or what comes after the last.
    Step,
    /// An evaluation pass.
    Evaluation,
    /// A checkpoint.
    Checkpoint,
}

/// A place in the trace: after so many allocations and so many completed frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct MarkLine {
    /// What begins.
    pub mark: MarkKind,
    /// Allocations since recording began.
    pub allocations: u64,
    /// Completed frees since recording began.
    pub frees: u64,
}

/// How the run ended.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct EndLine {
    /// In a word.
    pub outcome: EndOutcome,
    /// The error's own text.
    #[serde(default)]
    pub message: Option<String>,
    /// The request that was not met.
    #[serde(default)]
    pub requested_bytes: Option<u64>,
    /// The step, counted from 0.
    #[serde(default)]
    pub step: Option<u32>,
}

/// How a run can end by its own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndOutcome {
    /// All steps ran.
    Completed,
    /// The framework's allocator refused a request.
    OutOfMemory,
    /// An error of the program's own.
    Failed,
    /// The loss is not finite.
    Diverged,
}

/// A loss: a number, or the name of one that JSON cannot hold.
fn loss<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(f64),
        Name(String),
    }
    match Option::<Written>::deserialize(deserializer)? {
        None => Ok(None),
        Some(Written::Number(loss)) => Ok(Some(loss)),
        // Rust reads the names that C, Python and JavaScript print.
        Some(Written::Name(name)) => {
            name.parse().map(Some).map_err(|_| D::Error::custom(format!("`{name}` is no number")))
        }
    }
}
