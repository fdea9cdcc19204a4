//! Exit statuses of a worker process: how it says what it can no longer say by a message.

/// Asked to end, and ended.
pub const DONE: i32 = 0;
/// Tensor memory was far over the limit, so that going on would have harmed the host.
pub const FAR_OVER_LIMIT: i32 = 70;
/// The driver went away.
pub const ORPHANED: i32 = 71;
/// Nothing was heard of the driver for as long as the worker's lease.
pub const LEASE_EXPIRED: i32 = 72;
/// The host gave no memory that could not be done without: the address space is at its limit (`ulimit -v`), or all memory
/// is promised already (`vm.overcommit_memory`).
pub const HOST_OUT_OF_MEMORY: i32 = 73;
