//! What batchtune claims of CUDA devices, checked on one.
//!
//! `cargo test --release --features cuda --test gpu` needs a card with 24 GiB or more. The tests take turns: a process
//! has one session. Those that are ignored take longer and print tables; `--include-ignored --nocapture` runs all.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "these are tests, though some lines are outside `#[test]`"
)]
#![expect(unsafe_code, reason = "a kernel that faults and memory that no pool knows of cannot be had otherwise")]

mod faults;
mod hook;
mod long_run;
mod memory;
mod models;
mod staging;
mod support;
mod tables;
mod workload;
