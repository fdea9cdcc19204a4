//! The memory of a program's processes on the host, for a device that is the host itself.
//!
//! There an allocator that does not report is seen like one on a card: by what its processes hold. Resident memory that the
//! kernel could drop (pages of mapped files) does not count; what a fork shares with its parent counts for both.

use std::fs;
use std::path::Path;

use crate::device::facts;
use crate::trial::spawn::{CardReader, CardReading};

/// Reads `/proc`.
#[derive(Debug)]
pub(super) struct HostReader;

impl CardReader for HostReader {
    fn read(&mut self) -> Option<CardReading> {
        let host = facts::memory(Path::new("/"));
        let pids = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let processes = pids.filter_map(|pid: u32| Some((pid, Some(held_bytes(pid)?)))).collect();
        Some(CardReading { used_bytes: host.total_bytes.saturating_sub(host.available_bytes), processes })
    }
}

/// What a process holds; `None` where it is gone, or holds nothing, as the kernel's own threads do.
fn held_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    let kibibytes = field("RssAnon:")?.saturating_add(field("RssShmem:").unwrap_or(0));
    Some(kibibytes.saturating_mul(1024)).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_holds_memory() {
        let reading = HostReader.read().unwrap();
        let own = reading.processes.iter().find(|(pid, _)| *pid == std::process::id()).unwrap();
        assert!(own.1.unwrap() > 1 << 20);
        assert_eq!(held_bytes(u32::MAX), None);
    }
}
