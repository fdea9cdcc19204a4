//! batchtune: `tune --config model.yaml` finds the fastest batch configuration that is shown to be safe.

pub mod config;
pub mod data;
pub mod device;
pub mod exit_code;
pub mod memory;
pub mod model;
pub mod progress;
pub mod search;
pub mod train;
pub mod trial;
pub mod units;

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
