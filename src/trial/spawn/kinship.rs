//! Which processes a command started: those of its process group, and their descendants wherever they went.
//!
//! Asked of one process at a time, by its ancestors in `/proc`, since few processes hold a card's memory and a host may
//! run thousands. A descendant whose parent has ended is init's child; it is known still if it was asked about before.

use std::collections::{HashMap, HashSet};
use std::fs;

/// Ancestors that are looked at.
const GENERATIONS: usize = 64;

/// The processes of a command.
#[derive(Clone, Debug)]
pub(crate) struct Kin {
    group: u32,
    /// Those found so far, with the time they started at: a number may be used again.
    known: HashMap<u32, u64>,
}

impl Kin {
    /// Those of the process group `group`, which a process of that number leads.
    pub(crate) fn of(group: u32) -> Self {
        Self { group, known: HashMap::new() }
    }

    /// Whether `process` is one of them.
    pub(crate) fn includes(&mut self, process: u32) -> bool {
        let Some(first) = Place::of(process) else { return false };
        if self.known.get(&process) == Some(&first.started) {
            return true;
        }
        let mut place = Some(first);
        for _ in 0..GENERATIONS {
            let Some(Place { parent, group, .. }) = place else { return false };
            if group == self.group || parent == self.group {
                self.known.insert(process, first.started);
                return true;
            }
            if parent <= 1 {
                return false;
            }
            place = Place::of(parent);
        }
        false
    }
}

/// Where a process stands among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) parent: u32,
    pub(crate) group: u32,
    /// In clock ticks since the machine started: with its number, what names a process.
    pub(crate) started: u64,
    /// Whether it has ended, and only waits to be reaped.
    pub(crate) ended: bool,
    /// Whether it is on its way to that: the kernel takes apart what it had, its connections among it.
    pub(crate) is_leaving: bool,
}

/// The kernel's flag of a process that is being taken apart (`PF_EXITING` in `include/linux/sched.h`).
const EXITING: u32 = 4;

impl Place {
    pub(crate) fn of(process: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }

    /// Those of all processes that can be seen.
    pub(crate) fn of_all() -> Vec<(u32, Self)> {
        Self::of_all_but(&HashSet::new())
    }

    /// Those of all processes that can be seen, without some.
    pub(crate) fn of_all_but(known: &HashSet<u32>) -> Vec<(u32, Self)> {
        let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
        processes
            .filter_map(|entry| {
                let process =
                    entry.ok()?.file_name().to_str()?.parse().ok().filter(|process| !known.contains(process))?;
                Some((process, Self::of(process)?))
            })
            .collect()
    }

    /// Whether `process` still is the one that was here, and has not ended.
    pub(crate) fn is_of_living(&self, process: u32) -> bool {
        Self::of(process).is_some_and(|now| now.started == self.started && !now.ended)
    }

    /// The fields `state`, `ppid`, `pgrp`, `flags` and `starttime`. The name before them may itself hold parentheses and spaces.
    pub(crate) fn parse(stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let ended = matches!(fields.next()?, "Z" | "X");
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        let flags: u32 = fields.nth(3)?.parse().ok()?;
        let started = fields.nth(12)?.parse().ok()?;
        Some(Self { parent, group, started, ended, is_leaving: flags & EXITING != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    #[test]
    fn names_with_parentheses_do_not_shift_the_fields() {
        let rest = "S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 777 9";
        let place = Some(Place { parent: 1, group: 42, started: 777, ended: false, is_leaving: false });
        assert_eq!(Place::parse(&format!("7 (sleep) {rest}")), place);
        assert_eq!(Place::parse(&format!("7 (a) S 1 (b)) {rest}")), place);
        assert!(Place::parse(&format!("7 (sleep) {}", rest.replacen('S', "Z", 1))).is_some_and(|place| place.ended));
        assert!(
            Place::parse(&format!("7 (sleep) {}", rest.replacen("560", "564", 1)))
                .is_some_and(|place| place.is_leaving)
        );
        for bad in ["", "7 (sleep)", "7 (sleep) S 1 42", "7 (sleep) S one 42 42 0 -1"] {
            assert_eq!(Place::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_group_and_its_descendants_are_kin_and_their_parents_are_not() {
        // A shell that leads a group, and a child of it with a group of its own.
        let script = "set -m; sleep 600 & echo $!; read line";
        let mut shell: Child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(shell.stdout.take().unwrap()), &mut line).unwrap();
        let child: u32 = line.trim().parse().unwrap();
        let mut kin = Kin::of(shell.id());
        assert!(kin.includes(shell.id()) && kin.includes(child));
        assert!(!kin.includes(std::process::id()) && !kin.includes(1) && !kin.includes(u32::MAX));
        // Its parent ends; it was seen before, so it is known still.
        shell.kill().unwrap();
        shell.wait().unwrap();
        assert!(kin.includes(child));
        assert!(!Kin::of(u32::MAX).includes(child));
        let own = nix::unistd::Pid::from_raw(i32::try_from(child).unwrap());
        nix::sys::signal::kill(own, nix::sys::signal::Signal::SIGKILL).unwrap();
    }
}
