//! What the host is: memory left to this process, processors, names.
//!
//! In a container the machine's own figures mislead, so memory is what the control groups leave: the smallest limit
//! on the way from this process's group to the root, less what that group uses and the kernel cannot drop (page cache
//! that is not in use does not count). Where the addresses that a process may map are limited (`ulimit -v`), those that
//! are left bound it too. Both hierarchies of Linux are read, version 2 (`memory.max`) and version 1
//! (`memory.limit_in_bytes`), and `/proc/meminfo` bounds either.
//!
//! Every function takes the root directory of the files it reads, `/` outside of tests, and answers something sensible
//! where a file is missing.

use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

mod limits;

use limits::address_space;
pub use limits::{HostLimits, Room, Usage, limits};

/// The most that is read of any one file: they are short, and their content is the kernel's.
const READ_LIMIT_BYTES: u64 = 1 << 20;

/// The host's memory as this process may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// The smallest limit that holds for this process.
    pub total_bytes: u64,
    /// What is left of it.
    pub available_bytes: u64,
}

impl HostMemory {
    /// The same under one more limit.
    fn under(self, limit: Self) -> Self {
        Self {
            total_bytes: self.total_bytes.min(limit.total_bytes),
            available_bytes: self.available_bytes.min(limit.available_bytes),
        }
    }
}

/// This process's memory, and what it could have beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    /// What the process holds and the kernel cannot drop.
    pub resident_bytes: u64,
    /// What is left to it, as in [`HostMemory`].
    pub available_bytes: u64,
}

/// The memory of this process; `None` where the kernel does not tell all of it.
pub fn process_memory(root: &Path) -> Option<ProcessMemory> {
    let resident_bytes = resident_bytes(root, "self")?;
    let available_bytes = known_memory(root)?.available_bytes;
    Some(ProcessMemory { resident_bytes, available_bytes })
}

/// What a process (its number, or `self`) holds and the kernel cannot drop; `None` where it is gone, or is the kernel's.
///
/// Resident is anonymous and shared memory (`RssAnon` and `RssShmem` of `/proc/self/status`, in proc(5) since Linux 4.5),
/// and not the whole resident set that `/proc/self/statm` gives: pages of mapped files, such as a tokenised data set, are
/// dropped when somebody needs the room, and already count as available. Older kernels give the whole only.
pub fn resident_bytes(root: &Path, process: &str) -> Option<u64> {
    let status = read(&root.join("proc").join(process).join("status"));
    let held = bytes_of(&status, "RssAnon:").zip(bytes_of(&status, "RssShmem:"));
    held.map(|(own, shared)| own.saturating_add(shared)).or_else(|| bytes_of(&status, "VmRSS:"))
}

/// Memory limit and what is left of it; nothing where the kernel does not tell.
pub fn memory(root: &Path) -> HostMemory {
    known_memory(root).unwrap_or(HostMemory { total_bytes: 0, available_bytes: 0 })
}

/// What the host leaves, and the addresses that this process may still map.
fn known_memory(root: &Path) -> Option<HostMemory> {
    let host = host_memory(root)?;
    Some(address_space(root).map_or(host, |addresses| host.under(addresses)))
}

fn host_memory(root: &Path) -> Option<HostMemory> {
    let meminfo = read(&root.join("proc/meminfo"));
    let total_bytes = bytes_of(&meminfo, "MemTotal:")?;
    let available_bytes = bytes_of(&meminfo, "MemAvailable:").or_else(|| bytes_of(&meminfo, "MemFree:"))?;
    let groups = control_groups(root, "memory");
    let groups = groups.iter().filter_map(|group| group_memory(group));
    Some(groups.fold(HostMemory { total_bytes, available_bytes }, HostMemory::under))
}

/// The names of one hierarchy's files.
struct Hierarchy {
    limit: &'static str,
    usage: &'static str,
    inactive_file: &'static str,
}

const VERSION_1: Hierarchy =
    Hierarchy { limit: "memory.limit_in_bytes", usage: "memory.usage_in_bytes", inactive_file: "total_inactive_file" };
const VERSION_2: Hierarchy = Hierarchy { limit: "memory.max", usage: "memory.current", inactive_file: "inactive_file" };

/// The directories of this process's control groups of one controller, from its own up to the root of each hierarchy.
fn control_groups(root: &Path, controller: &str) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    let version_1 = format!("sys/fs/cgroup/{controller}");
    for line in read(&root.join("proc/self/cgroup")).lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let mounts: &[&str] = if controllers.is_empty() {
            &["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        } else if controllers.split(',').any(|name| name == controller) {
            &[&version_1]
        } else {
            &[]
        };
        for mount in mounts {
            let mount = root.join(mount);
            // Within a container the mount may be the group itself, so that its path does not exist below.
            let own: PathBuf =
                Path::new(path).components().filter(|part| matches!(part, Component::Normal(_))).collect();
            let ancestors = own.ancestors().map(|group| mount.join(group));
            directories.extend(ancestors.filter(|directory| directory.is_dir()));
        }
    }
    directories
}

/// The memory of one group; `None` where it has no limit.
fn group_memory(directory: &Path) -> Option<HostMemory> {
    [VERSION_2, VERSION_1].iter().find_map(|names| {
        // `max` (version 2) does not parse; version 1 says "none" by a number near 2^63, which the minimum drops.
        let total_bytes: u64 = read(&directory.join(names.limit)).trim().parse().ok()?;
        let usage: u64 = read(&directory.join(names.usage)).trim().parse().ok()?;
        let statistics = read(&directory.join("memory.stat"));
        let droppable = field(&statistics, names.inactive_file).and_then(|value| value.parse().ok()).unwrap_or(0);
        let available_bytes = total_bytes.saturating_sub(usage.saturating_sub(droppable));
        Some(HostMemory { total_bytes, available_bytes })
    })
}

/// Processors that this process may run on; at least 1.
pub fn cpus(root: &Path) -> usize {
    let status = read(&root.join("proc/self/status"));
    field(&status, "Cpus_allowed_list:")
        .and_then(count_list)
        .or_else(|| std::thread::available_parallelism().ok().map(usize::from))
        .unwrap_or(1)
}

/// The number of elements of a list such as `0-3,8`; `None` where it is none.
fn count_list(list: &str) -> Option<usize> {
    let mut count = 0_usize;
    for range in list.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (low, high): (usize, usize) = (low.trim().parse().ok()?, high.trim().parse().ok()?);
        count = count.checked_add(high.checked_sub(low)?.checked_add(1)?)?;
    }
    Some(count)
}

/// The host's name.
pub fn hostname(root: &Path) -> String {
    named(read(&root.join("proc/sys/kernel/hostname")).trim())
}

/// The processor's product name.
pub fn processor_name(root: &Path) -> String {
    let cpuinfo = read(&root.join("proc/cpuinfo"));
    // x86 says `model name`, some Arm kernels `Model` or `Hardware`, POWER `cpu`.
    let name = ["model name", "Model", "Hardware", "cpu"].iter().find_map(|key| {
        cpuinfo
            .lines()
            .find_map(|line| line.split_once(':').filter(|(name, _)| name.trim() == *key).map(|(_, v)| v.trim()))
    });
    named(name.unwrap_or(std::env::consts::ARCH))
}

fn named(name: &str) -> String {
    if name.is_empty() { "unknown".to_owned() } else { name.to_owned() }
}

/// The text after `key` on the line that starts with it.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(key)?;
        (rest.starts_with(char::is_whitespace)).then(|| rest.trim())
    })
}

/// The size after `key`, which the kernel writes as `1234 kB`.
fn bytes_of(text: &str, key: &str) -> Option<u64> {
    let kibibytes: u64 = field(text, key)?.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes.saturating_mul(1024))
}

/// The start of a file as text; empty where it cannot be read.
fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        // What was read before an error still counts.
        let _ = file.take(READ_LIMIT_BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{GIB, MIB};

    /// A root directory with these files.
    pub(super) fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n");

    #[test]
    fn without_control_groups_the_machine_counts() {
        let root = root(&[MEMINFO]);
        assert_eq!(memory(root.path()), HostMemory { total_bytes: 16 * GIB, available_bytes: 8 * GIB });
    }

    #[test]
    fn version_2_takes_the_smallest_limit_on_the_way_to_the_root() {
        let root = root(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/user.slice/job\n"),
            ("sys/fs/cgroup/user.slice/job/memory.max", "max\n"),
            ("sys/fs/cgroup/user.slice/job/memory.current", "1048576\n"),
            ("sys/fs/cgroup/user.slice/memory.max", "4294967296\n"),
            ("sys/fs/cgroup/user.slice/memory.current", "3221225472\n"),
            ("sys/fs/cgroup/user.slice/memory.stat", "anon 5\ninactive_file 1073741824\n"),
        ]);
        assert_eq!(memory(root.path()), HostMemory { total_bytes: 4 * GIB, available_bytes: 2 * GIB });
    }

    #[test]
    fn version_1_in_a_container_reads_the_mount_itself() {
        let root = root(&[
            MEMINFO,
            ("proc/self/cgroup", "9:name=systemd:/\n4:memory:/docker/abc\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "536870912\n"),
            ("sys/fs/cgroup/memory/memory.stat", "cache 1\ntotal_inactive_file 0\n"),
        ]);
        let expected = HostMemory { total_bytes: 2 * GIB, available_bytes: 2 * GIB - 512 * MIB };
        assert_eq!(memory(root.path()), expected);
    }

    #[test]
    fn an_unlimited_version_1_group_changes_nothing() {
        let root = root(&[
            MEMINFO,
            ("proc/self/cgroup", "4:memory:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n"),
        ]);
        assert_eq!(memory(root.path()).total_bytes, 16 * GIB);
    }

    #[test]
    fn the_addresses_that_may_be_mapped_bound_the_memory() {
        let limits = |soft: &str| ("proc/self/limits", format!("Max address space         {soft}  unlimited  bytes\n"));
        let host = |soft: &str, mapped: &str| {
            let (path, text) = limits(soft);
            memory(root(&[MEMINFO, (path, &text), ("proc/self/status", mapped)]).path())
        };
        let bounded = HostMemory { total_bytes: 4 * GIB, available_bytes: 3 * GIB };
        assert_eq!(host("4294967296", "VmSize:\t 1048576 kB\n"), bounded);
        // It has more than a limit that was set later.
        assert_eq!(host("4294967296", "VmSize:\t 9437184 kB\n").available_bytes, 0);
        let free = HostMemory { total_bytes: 16 * GIB, available_bytes: 8 * GIB };
        for soft in ["unlimited", "much", "99999999999999"] {
            assert_eq!(host(soft, "VmSize:\t 1048576 kB\n"), free, "{soft}");
        }
        assert_eq!(host("4294967296", "").available_bytes, 4 * GIB);
    }

    #[test]
    fn files_that_lie_or_are_missing_do_no_harm() {
        assert_eq!(memory(root(&[]).path()), HostMemory { total_bytes: 0, available_bytes: 0 });
        let root = root(&[
            ("proc/meminfo", "MemTotal: 99999999999999999999999 kB\nMemAvailable: \u{0}\n"),
            ("proc/self/cgroup", "junk\n0::/../../etc\n:::\n"),
            ("proc/self/status", "Cpus_allowed_list:\t5-2\n"),
        ]);
        assert_eq!(memory(root.path()).available_bytes, 0);
        assert!(cpus(root.path()) >= 1);
        assert_eq!(hostname(root.path()), "unknown");
    }

    #[test]
    fn pages_of_mapped_files_are_not_held_by_the_process() {
        let status = "VmRSS:\t 5242880 kB\nRssAnon:\t 1048576 kB\nRssFile:\t 4194304 kB\nRssShmem:\t       1024 kB\n";
        let new = root(&[MEMINFO, ("proc/self/status", status)]);
        let held = ProcessMemory { resident_bytes: GIB + MIB, available_bytes: 8 * GIB };
        assert_eq!(process_memory(new.path()), Some(held));
        let old = root(&[MEMINFO, ("proc/self/status", "VmRSS:\t 2097152 kB\n")]);
        assert_eq!(process_memory(old.path()).unwrap().resident_bytes, 2 * GIB);
    }

    #[test]
    fn a_process_whose_memory_is_half_known_has_none() {
        let status = ("proc/self/status", "VmRSS:\t 2097152 kB\n");
        assert_eq!(process_memory(root(&[status]).path()), None);
        assert_eq!(process_memory(root(&[status, ("proc/meminfo", "MemTotal: 16777216 kB\n")]).path()), None);
        assert_eq!(process_memory(root(&[MEMINFO]).path()), None);
        assert_eq!(process_memory(root(&[MEMINFO, ("proc/self/status", "VmRSS:\tmuch kB\n")]).path()), None);
    }

    #[test]
    fn the_affinity_list_counts_processors() {
        assert_eq!(count_list("0-3,8"), Some(5));
        assert_eq!(count_list("7"), Some(1));
        assert_eq!(count_list("0-18446744073709551615"), None);
        let root = root(&[("proc/self/status", "Name:\ttune\nCpus_allowed_list:\t0-1,4\n")]);
        assert_eq!(cpus(root.path()), 3);
    }

    #[test]
    fn names_come_from_the_kernel() {
        let root = root(&[
            ("proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast CPU @ 3: GHz\n"),
            ("proc/sys/kernel/hostname", "node-7\n"),
        ]);
        assert_eq!(processor_name(root.path()), "Fast CPU @ 3: GHz");
        assert_eq!(hostname(root.path()), "node-7");
    }

    #[test]
    fn this_machine_has_memory_and_a_processor() {
        let host = memory(Path::new("/"));
        assert!(host.total_bytes >= host.available_bytes && host.available_bytes > 0);
        assert!(cpus(Path::new("/")) >= 1);
        assert!(process_memory(Path::new("/")).unwrap().resident_bytes > 0);
    }
}
