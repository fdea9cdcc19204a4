//! Room on the disk of a study: a checkpoint must not fill it.

use std::path::Path;

use nix::sys::statvfs::statvfs;

/// The disk must have this many times a checkpoint's size.
pub const CHECKPOINT_FACTOR: u64 = 2;

/// Free bytes for us on the file system of `directory`; `None` where it does not tell.
pub fn free_bytes(directory: &Path) -> Option<u64> {
    let stat = statvfs(directory).ok()?;
    #[expect(clippy::useless_conversion, reason = "the fields are 32 bits wide on some platforms")]
    let (blocks, size) = (u64::from(stat.blocks_available()), u64::from(stat.fragment_size()));
    blocks.checked_mul(size)
}
