//! The process of one rank, watched from outside: a launcher between the tuner and the ranks knows how each of them ended,
//! and tells it in words alone.
//!
//! A rank says its process number in its `hello`. Where that is a process of the command, on this machine, it is looked
//! at. One that has ended waits for its parent for a moment as a zombie, whose status is in `/proc`; after that only its
//! absence is seen.

use std::fs;

use crate::trial::spawn::{Exit, Kin, Place};

/// Where the exit status stands behind a process's name in `/proc/PID/stat` (proc_pid_stat(5), field 52).
const EXIT_CODE: usize = 49;

/// A rank's process.
#[derive(Debug)]
pub(super) struct RankProcess {
    pid: u32,
    place: Place,
}

impl RankProcess {
    /// The process `pid`, if it is one of the command's.
    pub(super) fn of(pid: u32, kin: &mut Kin) -> Option<Self> {
        if !kin.includes(pid) {
            return None;
        }
        Some(Self { pid, place: Place::of(pid)? })
    }

    /// What can be seen of it now. How it ended, where nobody saw, is unknown.
    pub(super) fn look(&self) -> Sight {
        let now = Place::of(self.pid).filter(|now| now.started == self.place.started);
        match now {
            Some(now) if !now.ended && !now.is_leaving => Sight::Runs,
            Some(now) if !now.ended => Sight::Leaves,
            Some(_) => Sight::Ended(wait_status(self.pid).map_or(Exit { status: None, signal: None }, exit_of)),
            None => Sight::Ended(Exit { status: None, signal: None }),
        }
    }
}

/// What is seen of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sight {
    Runs,
    /// It is being taken apart, which takes a moment where it had a device, and others may have lost it already.
    Leaves,
    Ended(Exit),
}

fn wait_status(pid: u32) -> Option<i32> {
    status_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn status_in(stat: &str) -> Option<i32> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    // Of a process that has not ended yet it means nothing.
    matches!(fields.next()?, "Z" | "X").then(|| fields.nth(EXIT_CODE - 1)?.parse().ok()).flatten()
}

/// A wait status in its parts (wait(2)): the signal in the lowest seven bits, else the status in the next byte.
fn exit_of(status: i32) -> Exit {
    match status & 0x7f {
        0 => Exit { status: Some((status >> 8) & 0xff), signal: None },
        signal => Exit { status: None, signal: Some(signal) },
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    /// How a process of this script is seen to have ended while its parent has not asked.
    fn seen(script: &str) -> Exit {
        let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let mut kin = Kin::of(std::process::id());
        let process = RankProcess::of(child.id(), &mut kin).unwrap();
        let by = Instant::now() + Duration::from_secs(20);
        let exit = loop {
            if let Sight::Ended(exit) = process.look() {
                break exit;
            }
            assert!(Instant::now() < by);
            std::thread::sleep(Duration::from_millis(2));
        };
        child.wait().unwrap();
        assert_eq!(process.look(), Sight::Ended(Exit { status: None, signal: None }), "it is gone");
        exit
    }

    #[test]
    fn how_a_process_ended_is_seen_before_its_parent_asks() {
        assert_eq!(seen("sleep 0.1; exit 7"), Exit { status: Some(7), signal: None });
        assert_eq!(seen("sleep 0.1; kill -9 $$"), Exit { status: None, signal: Some(9) });
    }

    #[test]
    fn a_process_that_is_not_the_command_s_is_not_looked_at() {
        let mut kin = Kin::of(u32::MAX);
        assert!(RankProcess::of(std::process::id(), &mut kin).is_none());
        assert!(RankProcess::of(u32::MAX, &mut Kin::of(std::process::id())).is_none());
    }

    #[test]
    fn a_status_is_read_of_one_that_has_ended_alone() {
        let stat = |state: &str| format!("7 (a) b) {state} {} 256", vec!["0"; EXIT_CODE - 1].join(" "));
        assert_eq!((status_in(&stat("Z")), status_in(&stat("S")), status_in("junk")), (Some(256), None, None));
    }
}
