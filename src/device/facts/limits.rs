//! What bounds a training program on its host beside memory: shared memory, processes, processors, files, locked pages.
//!
//! The control groups' limits are the smallest on the way to the root, as for memory; `ulimit`'s are those of this
//! process (`/proc/self/limits`, proc_pid_limits(5)), which a program started from here inherits.

use std::path::Path;

use nix::sys::statvfs::statvfs;

use super::{HostMemory, bytes_of, control_groups, cpus, host_memory, read};

/// The row of `ulimit -v`.
const ADDRESS_SPACE: &str = "Max address space";

/// The host's limits, each `None` where the kernel does not tell it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostLimits {
    /// Memory, as the control groups leave it.
    pub memory: Option<HostMemory>,
    /// Addresses that a process may map, in bytes; `u64::MAX` without a limit.
    pub address_space_bytes: Option<u64>,
    /// `/dev/shm`.
    pub shared_memory: Option<Room>,
    /// Processes and threads under the control groups' limit; `None` without one.
    pub processes: Option<Usage>,
    /// Bytes that may be locked, `u64::MAX` without a limit.
    pub locked_bytes: Option<u64>,
    /// Files that may be open at once, `u64::MAX` without a limit.
    pub open_files: Option<u64>,
    /// Processors that the affinity mask names.
    pub cpus: usize,
    /// Processors that the control groups' quota is worth; `None` without one.
    pub quota_cpus: Option<f64>,
}

/// The room of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// All of it.
    pub total_bytes: u64,
    /// What is free.
    pub free_bytes: u64,
}

/// A count under a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// What there is.
    pub used: u64,
    /// What there may be.
    pub limit: u64,
}

/// The limits of this process on the host whose root directory is `root`.
pub fn limits(root: &Path) -> HostLimits {
    let own = read(&root.join("proc/self/limits"));
    HostLimits {
        memory: host_memory(root),
        address_space_bytes: soft_limit(&own, ADDRESS_SPACE),
        shared_memory: room(&root.join("dev/shm")),
        processes: processes(root),
        locked_bytes: soft_limit(&own, "Max locked memory"),
        open_files: soft_limit(&own, "Max open files"),
        cpus: cpus(root),
        quota_cpus: quota_cpus(root),
    }
}

/// The addresses that this process may map, and those that are left of them; `None` without a limit. Mapped is more than
/// used: every thread has a stack and may have an arena.
pub(super) fn address_space(root: &Path) -> Option<HostMemory> {
    let total_bytes =
        soft_limit(&read(&root.join("proc/self/limits")), ADDRESS_SPACE).filter(|&bytes| bytes != u64::MAX)?;
    let mapped_bytes = bytes_of(&read(&root.join("proc/self/status")), "VmSize:").unwrap_or(0);
    Some(HostMemory { total_bytes, available_bytes: total_bytes.saturating_sub(mapped_bytes) })
}

fn room(directory: &Path) -> Option<Room> {
    let stat = statvfs(directory).ok()?;
    #[expect(clippy::useless_conversion, reason = "the fields are 32 bits wide on some platforms")]
    let bytes = |blocks| u64::from(blocks).saturating_mul(u64::from(stat.fragment_size()));
    Some(Room { total_bytes: bytes(stat.blocks()), free_bytes: bytes(stat.blocks_available()) })
}

/// The group with the least left. The files have the same names in both versions.
fn processes(root: &Path) -> Option<Usage> {
    let groups = control_groups(root, "pids");
    let usages = groups.iter().filter_map(|group| {
        // `max` does not parse.
        let limit = read(&group.join("pids.max")).trim().parse().ok()?;
        let used = read(&group.join("pids.current")).trim().parse().ok()?;
        Some(Usage { used, limit })
    });
    usages.min_by_key(|usage| usage.limit.saturating_sub(usage.used))
}

fn quota_cpus(root: &Path) -> Option<f64> {
    let quota_of = |group: &Path| {
        let version_2 = read(&group.join("cpu.max"));
        let (quota, period) = match version_2.split_once(' ') {
            Some((quota, period)) => (quota.to_owned(), period.to_owned()),
            None => (read(&group.join("cpu.cfs_quota_us")), read(&group.join("cpu.cfs_period_us"))),
        };
        // No quota is `max` in version 2 and -1 in version 1.
        let (quota, period): (u64, u64) = (quota.trim().parse().ok()?, period.trim().parse().ok()?);
        (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
    };
    control_groups(root, "cpu").iter().filter_map(|group| quota_of(group)).min_by(f64::total_cmp)
}

/// The soft limit of a row such as `Max open files   1024   524288   files`.
fn soft_limit(limits: &str, name: &str) -> Option<u64> {
    let row = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match row.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::root;
    use super::*;

    const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units\n\
                          Max open files            1024                 524288               files\n\
                          Max locked memory         unlimited            unlimited            bytes\n\
                              Max address space         8589934592           unlimited            bytes\n";

    #[test]
    fn version_2_takes_the_tightest_group() {
        let root = root(&[
            ("proc/self/cgroup", "0::/job/step\n"),
            ("proc/self/limits", LIMITS),
            ("sys/fs/cgroup/job/step/pids.max", "max\n"),
            ("sys/fs/cgroup/job/pids.max", "512\n"),
            ("sys/fs/cgroup/job/pids.current", "500\n"),
            ("sys/fs/cgroup/job/step/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/job/cpu.max", "250000 100000\n"),
            ("sys/fs/cgroup/cpu.max", "800000 100000\n"),
        ]);
        let found = limits(root.path());
        assert_eq!(found.processes, Some(Usage { used: 500, limit: 512 }));
        assert_eq!(found.quota_cpus, Some(2.5));
        assert_eq!((found.open_files, found.locked_bytes), (Some(1024), Some(u64::MAX)));
        assert_eq!(found.address_space_bytes, Some(8 << 30));
    }

    #[test]
    fn version_1_reads_each_controllers_own_hierarchy() {
        let root = root(&[
            ("proc/self/cgroup", "8:pids:/\n4:memory:/docker/a\n3:cpuacct,cpu:/docker/a\n"),
            ("sys/fs/cgroup/pids/pids.max", "100\n"),
            ("sys/fs/cgroup/pids/pids.current", "7\n"),
            ("sys/fs/cgroup/cpu/docker/a/cpu.cfs_quota_us", "400000\n"),
            ("sys/fs/cgroup/cpu/docker/a/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ]);
        let found = limits(root.path());
        assert_eq!((found.processes, found.quota_cpus), (Some(Usage { used: 7, limit: 100 }), Some(4.0)));
        assert_eq!((found.memory, found.shared_memory, found.open_files), (None, None, None));
    }

    #[test]
    fn files_that_lie_give_no_limit() {
        let root = root(&[
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/limits", "Max open files\nMax locked memory  much  more  bytes\n"),
            ("sys/fs/cgroup/cpu.max", "100000 0\n"),
            ("sys/fs/cgroup/pids.max", "-5\n"),
        ]);
        let found = limits(root.path());
        assert_eq!((found.processes, found.quota_cpus), (None, None));
        assert_eq!((found.open_files, found.locked_bytes), (None, None));
    }

    #[test]
    fn this_machine_tells_its_limits() {
        let found = limits(Path::new("/"));
        assert!(found.open_files.is_some_and(|files| files > 0) && found.memory.is_some());
        assert!(found.shared_memory.is_none_or(|room| room.free_bytes <= room.total_bytes));
    }
}
