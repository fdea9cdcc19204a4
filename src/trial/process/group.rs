//! Watching a process, and the group it leads, to their end.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use nix::errno::Errno;
use nix::sys::signal::killpg;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

/// Between two looks at whether the group has vanished.
const GROUP_POLL: Duration = Duration::from_millis(5);

/// Says once when the child `process` has ended, and leaves it a zombie, so that its number stays its own.
pub(in crate::trial) fn watch_end(process: Pid) -> Receiver<()> {
    let (exit, exits) = bounded(1);
    thread::spawn(move || {
        // An error other than an interruption also means that there is no running child to wait for.
        while waitid(Id::Pid(process), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
        let _ = exit.send(());
    });
    exits
}

/// Waits until nothing in `group` lives any more, which SIGKILL has decided already, but for no longer than `until`.
pub(in crate::trial) fn await_vanishing(group: Pid, until: Instant) {
    while has_living_member(group) && Instant::now() < until {
        thread::sleep(GROUP_POLL);
    }
}

/// Whether any member of `group` still runs. A zombie does not: its memory and its devices are given back, and it only
/// waits for its parent (often init, which may take its time) to ask for its status.
fn has_living_member(group: Pid) -> bool {
    // Signal 0 only asks.
    if killpg(group, None) == Err(Errno::ESRCH) {
        return false;
    }
    let Ok(processes) = fs::read_dir("/proc") else { return true };
    processes.filter_map(|process| fs::read_to_string(process.ok()?.path().join("stat")).ok()).any(|stat| {
        state_and_group(&stat).is_some_and(|(state, of)| of == group.as_raw() && !matches!(state, 'Z' | 'X'))
    })
}

/// The fields `state` and `pgrp` of `/proc/PID/stat`. The name before them may itself hold parentheses and spaces.
fn state_and_group(stat: &str) -> Option<(char, i32)> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let group = fields.nth(1)?.parse().ok()?;
    Some((state, group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses_do_not_shift_the_fields() {
        assert_eq!(state_and_group("7 (a) S 1 (b)) Z 1 42 42 0 -1"), Some(('Z', 42)));
        assert_eq!(state_and_group("7 (sleep) S 6 5 5 0"), Some(('S', 5)));
        assert_eq!(state_and_group("7 (sleep) S"), None);
        assert_eq!(state_and_group(""), None);
    }

    #[test]
    fn the_own_group_lives() {
        assert!(has_living_member(nix::unistd::getpgrp()));
    }
}
