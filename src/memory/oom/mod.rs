//! What an out-of-memory error says: `tune explain-oom`.
//!
//! [`parse`] takes the figures out of the text of an error, in the several wordings of PyTorch, candle, TensorFlow, JAX,
//! CuPy, and ours; of the driver and its libraries, which print a code and no figures, it tells the source. [`classify`] applies one rule to them (allocators.md §4.2), with R the request, F the bytes that are
//! free, A allocated, V reserved by the allocator, C the device's total:
//!
//! | case | class |
//! |---|---|
//! | R ≤ F | something other than device memory refused: `host_or_driver_limit` |
//! | F < R ≤ F + V − A | the bytes are there, in pieces: `fragmentation` |
//! | R > F + V − A, and others on the device hold what is missing | `other_process` |
//! | R > F + V − A | `capacity` |
//!
//! Under a limit ("2.00 GiB allowed") F is the smaller of the device's free bytes and the limit less V. F + V − A is an
//! upper bound of what releasing the cache could give, so `fragmentation` means "at most".

use serde::Serialize;

mod advice;
mod classify;
mod parse;

#[cfg(test)]
mod tests;

/// Why there was no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OomClass {
    /// More than there is.
    Capacity,
    /// Enough bytes, in pieces.
    Fragmentation,
    /// Other processes hold the memory.
    OtherProcess,
    /// The device had the bytes: the driver or the host refused.
    HostOrDriverLimit,
    /// The text does not say enough.
    Unknown,
}

/// Who wrote the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OomSource {
    /// PyTorch's caching allocator.
    Pytorch,
    /// candle, with the driver's code alone.
    Candle,
    /// TensorFlow's or XLA's BFC allocator.
    Bfc,
    /// cuBLAS or cuDNN, which could not have a workspace.
    Library,
    /// The code of CUDA's or HIP's driver, whoever passed it on.
    Driver,
    /// CuPy's pool.
    Cupy,
    /// batchtune.
    Batchtune,
    /// Nobody known.
    Unknown,
}

/// The figures of an error, as far as its text gives them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OomFigures {
    /// R, as printed: PyTorch rounds it up to the segment.
    pub requested_bytes: Option<u64>,
    /// What the device has free, whatever the limit.
    pub device_free_bytes: Option<u64>,
    /// A.
    pub allocated_bytes: Option<u64>,
    /// V.
    pub reserved_bytes: Option<u64>,
    /// C.
    pub total_bytes: Option<u64>,
    /// What this process is allowed.
    pub limit_bytes: Option<u64>,
    /// What other processes hold, where the text names them.
    pub others_bytes: Option<u64>,
    /// The largest free block.
    pub largest_free_bytes: Option<u64>,
}

/// An error explained. The names are those of the JSON that `tune explain-oom --json` prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OomExplanation {
    /// Why there was no memory.
    pub class: OomClass,
    /// Who wrote the error.
    pub source: OomSource,
    /// R.
    pub requested_bytes: Option<u64>,
    /// F: what was free for this process.
    pub free_bytes: Option<u64>,
    /// A.
    pub allocated_bytes: Option<u64>,
    /// V.
    pub reserved_bytes: Option<u64>,
    /// C.
    pub total_bytes: Option<u64>,
    /// What this process is allowed.
    pub limit_bytes: Option<u64>,
    /// Memory outside this allocator: C less what the device has free, less V.
    pub external_bytes: Option<u64>,
    /// The arithmetic in plain words.
    pub explanation: Vec<String>,
    /// What to change, the most promising first.
    pub advice: Vec<String>,
}

/// Explains the text of an error. `conf` is the allocator configuration of the process, where it is known, so that
/// nothing is advised that is already on; a configuration set within the text counts too.
pub fn explain(text: &str, conf: Option<&str>) -> OomExplanation {
    let (source, figures) = parse::figures(text);
    let verdict = classify::classify(&figures);
    OomExplanation {
        class: verdict.class,
        source,
        requested_bytes: figures.requested_bytes,
        free_bytes: verdict.free_bytes,
        allocated_bytes: figures.allocated_bytes,
        reserved_bytes: figures.reserved_bytes,
        total_bytes: figures.total_bytes,
        limit_bytes: figures.limit_bytes,
        external_bytes: verdict.external_bytes,
        explanation: classify::explanation(source, &figures, &verdict),
        advice: advice::advice(source, &figures, &verdict, advice::Active::of(text, conf)),
    }
}
