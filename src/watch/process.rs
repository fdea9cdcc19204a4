//! The process whose end is waited for, known by its number and its start: numbers are used again.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Holder, Whose};
use crate::device::nvml::process_name;
use crate::trial::spawn::{Kin, Place};

/// A process of somebody's.
#[derive(Debug)]
pub struct Watched {
    pid: u32,
    started: u64,
    name: Option<String>,
    kin: Kin,
    is_on_the_host: bool,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It does.
    Running,
    /// It does not; how it ended, where the kernel still showed it.
    Ended(Option<Exit>),
}

impl Watched {
    /// The process of this number; `None` where none runs.
    pub fn find(pid: u32) -> Option<Self> {
        let place = Place::of(pid).filter(|place| !place.ended)?;
        Some(Self {
            pid,
            started: place.started,
            name: process_name(pid),
            kin: Kin::of(pid),
            is_on_the_host: is_on_the_host(),
        })
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its name when it was found.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether it still runs.
    pub fn state(&self) -> State {
        let folder = format!("/proc/{}", self.pid);
        let Ok(stat) = fs::read_to_string(format!("{folder}/stat")) else { return State::Ended(None) };
        match Place::parse(&stat) {
            Some(place) if place.started != self.started => State::Ended(None),
            Some(place) if place.ended => {
                State::Ended(exit_status(&stat).filter(|_| may_know(Path::new(&folder))).map(exit))
            }
            Some(_) => State::Running,
            None => State::Ended(None),
        }
    }

    /// Says of each holder whose it is. In a container the driver may count processes as the host does: then its numbers
    /// mean others here, and nobody is named unless the watched one is found among them.
    pub fn assign(&mut self, holders: &mut [Holder]) {
        for holder in &mut *holders {
            holder.whose = self.whose(holder.pid);
        }
        let is_found = holders.iter().any(|holder| holder.whose == Whose::Watched);
        if !is_found && !self.is_on_the_host {
            for holder in holders {
                (holder.whose, holder.name) = (Whose::Unknown, None);
            }
        }
    }

    fn whose(&mut self, pid: u32) -> Whose {
        if pid == self.pid || self.kin.includes(pid) {
            Whose::Watched
        } else if Place::of(pid).is_some() {
            Whose::Other
        } else {
            Whose::Unknown
        }
    }
}

/// Whether processes are counted here as the host counts them: there, and only there, the second is the kernel's.
fn is_on_the_host() -> bool {
    process_name(2).is_some_and(|name| name == "kthreadd")
}

/// The last field, `exit_code`, of a process that has ended and whose parent has not asked yet.
fn exit_status(stat: &str) -> Option<i32> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(49)?.parse().ok()
}

/// The kernel shows 0 to those who may not know (proc_pid_stat(5)): who is neither root nor the owner.
fn may_know(folder: &Path) -> bool {
    // The owner of the folder in `/proc` is the process's effective user.
    let owner = |folder: &Path| fs::metadata(folder).ok().map(|folder| folder.uid());
    let own = owner(Path::new("/proc/self"));
    own == Some(0) || own.is_some() && own == owner(folder)
}

/// A status as wait(2) gives it.
fn exit(status: i32) -> Exit {
    match status & 0x7f {
        0 => Exit::Code(status >> 8 & 0xff),
        signal => Exit::Signal(signal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// A shell that ends with `code` once its input ends.
    fn shell(code: u8) -> Child {
        let script = format!("read line; exit {code}");
        Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap()
    }

    fn ended(watched: &Watched) -> State {
        loop {
            match watched.state() {
                State::Running => std::thread::yield_now(),
                ended @ State::Ended(_) => return ended,
            }
        }
    }

    #[test]
    fn the_exit_code_is_known_until_the_parent_takes_it() {
        let mut child = shell(7);
        let watched = Watched::find(child.id()).unwrap();
        assert_eq!((watched.state(), watched.name()), (State::Running, Some("sh")));
        drop(child.stdin.take());
        assert_eq!(ended(&watched), State::Ended(Some(Exit::Code(7))));
        child.wait().unwrap();
        assert_eq!(watched.state(), State::Ended(None));
        assert!(Watched::find(child.id()).is_none());
    }

    #[test]
    fn a_signal_is_told_from_a_code() {
        let mut child = shell(0);
        let watched = Watched::find(child.id()).unwrap();
        child.kill().unwrap();
        assert_eq!(ended(&watched), State::Ended(Some(Exit::Signal(9))));
        child.wait().unwrap();
        assert_eq!((exit(0), exit(256), exit(134)), (Exit::Code(0), Exit::Code(1), Exit::Signal(6)));
    }

    #[test]
    fn a_number_that_is_used_again_is_another_process() {
        let own = std::process::id();
        let mut watched = Watched::find(own).unwrap();
        assert_eq!(watched.whose(own), Whose::Watched);
        assert_eq!(watched.whose(u32::MAX), Whose::Unknown);
        watched.started += 1;
        assert_eq!(watched.state(), State::Ended(None));
    }

    #[test]
    fn the_numbers_of_another_namespace_accuse_nobody() {
        let own = std::process::id();
        let mut watched = Watched::find(own).unwrap();
        let holder = |pid| Holder { pid, name: Some("python".to_owned()), ..Holder::default() };
        let mut assigned = |is_on_the_host, pids: &[u32]| {
            watched.is_on_the_host = is_on_the_host;
            let mut holders: Vec<Holder> = pids.iter().copied().map(holder).collect();
            watched.assign(&mut holders);
            holders.iter().map(|holder| holder.whose).collect::<Vec<_>>()
        };
        // The first process runs everywhere.
        assert_eq!(assigned(true, &[1, u32::MAX]), [Whose::Other, Whose::Unknown]);
        assert_eq!(assigned(false, &[1, u32::MAX]), [Whose::Unknown, Whose::Unknown]);
        assert_eq!(assigned(false, &[1, own]), [Whose::Other, Whose::Watched]);
    }

    #[test]
    fn a_process_that_never_was_is_not_found() {
        assert!(Watched::find(u32::MAX).is_none());
        assert_eq!(exit_status("7 (sh) Z 1 2"), None);
    }
}
