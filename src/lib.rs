//! batchtune: `tune --config model.yaml` runs real training steps before a training launch and writes the fastest
//! batch configuration that it has shown to be safe.
//!
//! # The rooms
//!
//! | room | owns |
//! |---|---|
//! | [`cli`] | the command line, one file a command |
//! | [`config`] | `model.yaml` in, a [`config::Plan`] out |
//! | [`search`] | which trial runs next, what is safe, what is best; the driver's loop |
//! | [`progress`] | events in; bars, plain lines or JSON lines out |
//! | [`report`] | the recommendation, its table, its page and its exports |
//! | [`trial`] | one configuration run for real in a worker process; its outcome, its journal |
//! | [`train`] | one step: forward, backward, accumulate, update |
//! | [`model`] | workloads, one file a family |
//! | [`data`] | datasets and the loader |
//! | [`device`] | devices with their memory instrumented |
//! | [`watch`] | a card's memory seen from outside, and what may be concluded; knows no NVML where it concludes |
//! | [`doctor`] | whether this machine is fit for a run: facts first, then a pure verdict |
//! | [`memory`] | events, allocator policies, fragmentation: pure |
//! | [`units`], [`text`], [`error`], [`exit_code`] | what all of them share |
//!
//! Dependencies point one way: `cli → {config, search, report, progress, watch, doctor} → trial → train → {model, data,
//! device, memory}`.
//!
//! # Invariants
//!
//! 1. Only a worker process opens a device. The driver learns about it from [`device::DeviceFacts`].
//! 2. Strategies do no I/O and read no clock: the same history gets the same answer, so a study resumes by replaying
//!    its journal.
//! 3. A report is a function of the journal: plan, finished trials, device facts.
//! 4. [`memory`] knows no trial, no model and no device, and holds no `unsafe`.
//! 5. `unsafe` is in [`device`], and for mapped memory in one file of [`data`], each block with its SAFETY line (lints:
//!    `unsafe_code`, `undocumented_unsafe_blocks`).
//! 6. Only [`cli`] and [`progress`] print (lints: `print_stdout`, `print_stderr`).
//! 7. Every trial ends in exactly one named [`trial::Outcome`], told apart by typed messages, exit status and signal,
//!    never by searching text.
//! 8. A result is written so that a reader sees the old file or the new one, never a part; a finished trial is in the
//!    journal before anything else is done with it.
//!
//! # A tuner for your own model
//!
//! ```no_run
//! batchtune::declare_allocator!();
//!
//! fn main() -> std::process::ExitCode {
//!     batchtune::main(batchtune::Registry::builtin()) // `.with(MyFamily)` adds yours
//! }
//! ```

pub mod cli;
pub mod config;
pub mod data;
pub mod device;
pub mod doctor;
pub mod error;
pub mod exit_code;
pub mod memory;
pub mod model;
pub mod progress;
pub mod report;
pub mod search;
pub mod suggest;
pub mod text;
pub mod train;
pub mod trial;
pub mod units;
pub mod watch;

pub use error::Error;
pub use model::Registry;

/// The whole program over the families of `registry`: what `fn main` of a tuner returns.
///
/// The same program is its own worker: it starts itself once more for the trials.
#[expect(clippy::needless_pass_by_value, reason = "`main(Registry::builtin().with(…))` is what users write")]
pub fn main(registry: Registry) -> std::process::ExitCode {
    cli::main(&registry)
}

/// Gives this program the memory that a recommendation was measured with: a driver pool of our own that never holds more
/// than the recommendation's limit and keeps what it has. Call it before the first tensor is made on the device, and
/// keep the guard for as long as the program trains (`examples/apply_allocator.rs`).
///
/// A recommendation that was not made on a CUDA device, or has no configuration, is refused: there is nothing to apply.
#[cfg(feature = "cuda")]
pub fn apply_allocator(recommendation: &report::Recommendation) -> Result<device::cuda::PoolGuard, Error> {
    let Ok(device::DeviceChoice::Cuda(ordinal)) = recommendation.environment.device.parse() else {
        return Err(Error::NotForCuda { device: recommendation.environment.device.clone() });
    };
    let Some(recommended) = &recommendation.recommended else {
        return Err(Error::Export(report::export::ExportError::NotSafe(recommendation.status.name())));
    };
    Ok(device::cuda::apply_pool(ordinal, recommended.allocator.limit_bytes)?)
}

/// Declares the global allocator through which the CPU device sees tensor memory. Write it once, beside `fn main`, in
/// a binary that tunes: a library must not choose an allocator for the programs that use it.
#[macro_export]
macro_rules! declare_allocator {
    () => {
        #[global_allocator]
        static BATCHTUNE_TENSOR_ALLOCATOR: $crate::device::cpu::TensorAllocator = $crate::device::cpu::TensorAllocator;
    };
}

#[cfg(test)]
declare_allocator!();
