//! The exit codes of `tune`, documented and stable: job scripts branch on them.

/// A safe recommendation was written, or the command did what it was asked.
pub const SAFE: u8 = 0;
/// A bug in batchtune itself.
pub const BUG: u8 = 1;
/// The command line or the configuration is wrong, or an input cannot be read.
pub const USAGE: u8 = 2;
/// No safe configuration exists within the search space; for `tune doctor`, something will break a run.
pub const NO_SAFE_CONFIGURATION: u8 = 3;
/// The device is not there, or this build cannot use it.
pub const DEVICE_UNAVAILABLE: u8 = 4;
/// No point was verified: the budget ended first, or the soak did not show all of it: a rank, or that the program takes the
/// batch size.
pub const BUDGET_ENDED: u8 = 5;
/// The workload fails whatever the batch size.
pub const WORKLOAD_FAILS: u8 = 6;
/// Interrupted by the user.
pub const INTERRUPTED: u8 = 130;
