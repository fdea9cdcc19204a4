//! Telling a kill for want of host memory from any other: the cgroup counts them.
//!
//! cgroup v2 has `oom_kill N` in `memory.events`, v1 in `memory.oom_control`. The kernel raises the count before it
//! sends SIGKILL (`__oom_kill_process` in `mm/oom_kill.c`), so a count that rose while a trial ran, and a worker that
//! died of SIGKILL, belong together; without the count SIGKILL could be anybody's.

use std::fs;
use std::path::{Path, PathBuf};

/// The kernel's count of processes in this cgroup that it ended for want of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OomKills {
    file: Option<PathBuf>,
}

impl OomKills {
    /// The counter of the cgroup that this process is in; workers are in the same.
    pub fn of_this_process() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self {
            file: candidates(&groups, Path::new("/sys/fs/cgroup")).into_iter().find(|file| count_in(file).is_some()),
        }
    }

    /// The counter in a given file.
    pub fn in_file(file: PathBuf) -> Self {
        Self { file: Some(file) }
    }

    /// The count now; `None` where the kernel does not tell.
    pub fn count(&self) -> Option<u64> {
        self.file.as_deref().and_then(count_in)
    }
}

fn count_in(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// Where the counter may be, the most specific place first. In a container the path in `/proc/self/cgroup` may be the
/// host's while the mount shows the container's own group at its root, so the root comes last.
fn candidates(groups: &str, mount: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let path = path.trim_start_matches('/');
        if controllers.is_empty() {
            files.extend([mount, &mount.join("unified")].map(|root| root.join(path).join("memory.events")));
        } else if controllers.split(',').any(|controller| controller == "memory") {
            files.extend([path, ""].map(|path| mount.join("memory").join(path).join("memory.oom_control")));
        }
    }
    files.push(mount.join("memory.events"));
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_both_cgroup_versions_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("memory.events");
        fs::write(&file, "low 0\nhigh 2\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n").unwrap();
        assert_eq!(OomKills::in_file(file.clone()).count(), Some(2));
        fs::write(&file, "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n").unwrap();
        assert_eq!(OomKills::in_file(file.clone()).count(), Some(7));
        fs::write(&file, "oom_kill many\n").unwrap();
        assert_eq!(OomKills::in_file(file).count(), None);
        assert_eq!(OomKills::default().count(), None);
    }

    #[test]
    fn the_own_group_is_looked_at_before_the_root() {
        let mount = Path::new("/m");
        let v2 = candidates("0::/user.slice/job\n", mount);
        assert_eq!(v2[0], Path::new("/m/user.slice/job/memory.events"));
        assert_eq!(v2.last().unwrap(), Path::new("/m/memory.events"));
        let v1 = candidates("5:cpu,cpuacct:/x\n4:hugetlb,memory:/job\nnonsense\n", mount);
        assert_eq!(v1[0], Path::new("/m/memory/job/memory.oom_control"));
        assert_eq!(v1[1], Path::new("/m/memory/memory.oom_control"));
    }
}
