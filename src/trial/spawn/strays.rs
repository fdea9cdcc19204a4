//! Descendants of a command that have left its process group, as the workers of `torchrun` do: each has a session of
//! its own, and a signal to the command's group does not reach them.
//!
//! They are ended one by one, and the number of each must be its own while that is done. A number is given back when
//! the parent reaps, so the parents are stopped first: the group, then each stray that is found, until no more are.
//! What has no living parent in the group any more (a daemon) is init's, and nobody can tell whose it was.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::kinship::Place;

/// A stray that starts strays faster than they are found is left alone after so many rounds.
const ROUNDS: usize = 16;
/// Between two looks at whether they have ended.
const POLL: Duration = Duration::from_millis(5);

/// Descendants that were sent SIGKILL.
#[derive(Debug, Default)]
pub(super) struct Strays(Vec<(u32, Place)>);

impl Strays {
    /// Ends those of `group`, whose number must be held, and leaves the group stopped if there are any: it is to be sent
    /// SIGKILL next.
    pub(super) fn end_those_of(group: Pid) -> Self {
        let number = group.as_raw().unsigned_abs();
        let mut strays: Vec<(u32, Place)> = Vec::new();
        if found(number, &strays).is_empty() {
            return Self(strays);
        }
        let _ = killpg(group, Signal::SIGSTOP);
        for _ in 0..ROUNDS {
            let more = found(number, &strays);
            if more.is_empty() {
                break;
            }
            send(&more, Signal::SIGSTOP);
            strays.extend(more);
        }
        send(&strays, Signal::SIGKILL);
        Self(strays)
    }

    /// Waits for their end, but for no longer than `until`.
    pub(super) fn await_end(&self, until: Instant) {
        while self.0.iter().any(|(stray, place)| place.is_of_living(*stray)) && Instant::now() < until {
            thread::sleep(POLL);
        }
    }
}

/// Children of the group's members or of `known` strays that are neither.
fn found(group: u32, known: &[(u32, Place)]) -> Vec<(u32, Place)> {
    let all = Place::of_all();
    let strays: HashSet<u32> = known.iter().map(|(stray, _)| *stray).collect();
    let parents: HashSet<u32> = all
        .iter()
        .filter(|(_, place)| place.group == group)
        .map(|(member, _)| *member)
        .chain(strays.iter().copied())
        .collect();
    all.into_iter()
        .filter(|(process, place)| parents.contains(&place.parent) && place.group != group && !strays.contains(process))
        .collect()
}

fn send(strays: &[(u32, Place)], signal: Signal) {
    for number in strays.iter().filter_map(|(stray, _)| i32::try_from(*stray).ok()) {
        let _ = kill(Pid::from_raw(number), signal);
    }
}
