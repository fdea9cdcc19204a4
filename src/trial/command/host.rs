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
        let held = |pid: u32| facts::resident_bytes(Path::new("/"), &pid.to_string()).filter(|bytes| *bytes > 0);
        let processes = pids.filter_map(|pid: u32| Some((pid, Some(held(pid)?)))).collect();
        Some(CardReading { used_bytes: host.total_bytes.saturating_sub(host.available_bytes), processes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_holds_memory() {
        let reading = HostReader.read().unwrap();
        let own = reading.processes.iter().find(|(pid, _)| *pid == std::process::id()).unwrap();
        assert!(own.1.unwrap() > 1 << 20);
        assert!(reading.processes.iter().all(|(pid, _)| *pid != u32::MAX));
        assert_eq!(facts::resident_bytes(Path::new("/"), &u32::MAX.to_string()), None);
    }
}
