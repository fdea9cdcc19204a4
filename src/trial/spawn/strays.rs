//! Processes of a command that have left its process group: a signal to the group does not reach them.
//!
//! They are found in two ways. The workers of `torchrun`, each with a session of its own, have a living parent in the
//! group. A daemon has none any more, and is known by the [mark](super::mark) that it inherited; so is everything else
//! that was started later than the command and carries it. What has neither is out of reach.
//!
//! They are ended one by one, and the number of each must be its own while that is done. A process that is stopped does
//! not end by itself, so each is stopped first, then looked at again, and let go if the number has passed to another.
//! The group is stopped before: its members could start more.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::kinship::Place;
use super::mark::Mark;

/// A stray that starts strays faster than they are found is left alone after so many rounds.
const ROUNDS: usize = 16;
/// Between two looks at whether they have ended.
const POLL: Duration = Duration::from_millis(5);
/// Whether a user was told. Programs leave strays behind in every run or in none.
static TOLD: AtomicBool = AtomicBool::new(false);

/// What tells a command's processes from all others.
#[derive(Clone, Debug)]
pub(super) struct Family {
    /// The number of its leader, and of the group that the leader was started in.
    group: Pid,
    mark: Mark,
    /// When the leader was started: nobody else is older.
    since: u64,
    /// Those that were outside the group when it was looked at last.
    seen: Vec<(u32, Place)>,
}

impl Family {
    /// That of the process `group`, which leads a group and is not reaped.
    pub(super) fn of(group: Pid, mark: Mark) -> Self {
        let leader = Place::of(group.as_raw().unsigned_abs());
        Self { group, mark, since: leader.map_or(0, |place| place.started), seen: Vec::new() }
    }

    pub(super) fn group(&self) -> Pid {
        self.group
    }

    /// Whether the leader itself has gone into another group. Its number must be held.
    pub(super) fn leader_has_left(&self) -> bool {
        let number = self.group.as_raw().unsigned_abs();
        Place::of(number).is_some_and(|place| place.group != number && !place.ended)
    }

    /// Remembers who is outside the group, whose number must be held, before anybody in it is asked to end: a child that
    /// nothing marks is not known any more when its parent has gone.
    pub(super) fn look(&mut self) {
        self.seen = self.found(Place::of_all(), &HashSet::new());
    }

    /// Ends those outside the group, whose number must be held, and leaves the group stopped if there are any: it is to
    /// be sent SIGKILL next.
    pub(super) fn end_strays(&self) -> Strays {
        let stop_the_group = || {
            let _ = killpg(self.group, Signal::SIGSTOP);
        };
        let all = Place::of_all();
        let older = all.iter().filter(|(_, place)| place.started < self.since).map(|(process, _)| *process).collect();
        let first = self.found(all, &HashSet::new());
        let ended = self.end(first, |known| self.found(Place::of_all(), known), stop_the_group);
        Strays { older, ..ended }
    }

    /// Ends those that still carry the mark when the group is gone and its number may be another's. `earlier` saves most
    /// of a second look at a machine with thousands of processes.
    pub(super) fn end_the_marked(&self, earlier: &Strays) -> Strays {
        let find = |known: &HashSet<u32>| self.marked(Place::of_all_but(&earlier.older), known);
        self.end(find(&HashSet::new()), find, || ())
    }

    /// Ends the `first`, and those that are found while that is done.
    fn end(
        &self,
        first: Vec<(u32, Place)>,
        find: impl Fn(&HashSet<u32>) -> Vec<(u32, Place)>,
        stop_the_rest: impl FnOnce(),
    ) -> Strays {
        let (mut known, mut more) = (HashSet::new(), first);
        let mut strays = Strays::default();
        if more.is_empty() {
            return strays;
        }
        stop_the_rest();
        for _ in 0..ROUNDS {
            known.extend(more.iter().map(|(stray, _)| *stray));
            strays.ended.extend(more.into_iter().filter(|(stray, place)| is_stopped(*stray, place)));
            more = find(&known);
            if more.is_empty() {
                break;
            }
        }
        for (stray, place) in &strays.ended {
            if place.is_of_living(*stray) {
                send(*stray, Signal::SIGKILL);
            }
        }
        tracing::debug!("process group {}: {} processes outside it were ended", self.group, strays.ended.len());
        strays
    }

    /// Living children of the group's members, of its leader or of `known` strays, and whoever is marked.
    fn found(&self, all: Vec<(u32, Place)>, known: &HashSet<u32>) -> Vec<(u32, Place)> {
        let leader = self.group.as_raw().unsigned_abs();
        let members = all.iter().filter(|(_, place)| place.group == leader).map(|(member, _)| *member);
        let parents: HashSet<u32> = members.chain(known.iter().copied()).chain([leader]).collect();
        let (kin, others): (Vec<_>, Vec<_>) = all
            .into_iter()
            .filter(|(_, place)| place.group != leader)
            .partition(|(process, place)| parents.contains(&place.parent) || *process == leader);
        let seen = |process: u32, place: &Place| {
            self.seen.iter().any(|(earlier, was)| *earlier == process && was.started == place.started)
        };
        let (remembered, others): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|(process, place)| seen(*process, place));
        let kin = kin.into_iter().chain(remembered);
        let kin = kin.filter(|(process, place)| !place.ended && !known.contains(process));
        kin.chain(self.marked(others, known)).collect()
    }

    fn marked(&self, mut all: Vec<(u32, Place)>, known: &HashSet<u32>) -> Vec<(u32, Place)> {
        // Few are younger than the command, so few environments are read.
        all.retain(|(process, place)| {
            place.started >= self.since && !place.ended && !known.contains(process) && self.mark.is_on(*process)
        });
        all
    }
}

/// Processes outside the group that were sent SIGKILL.
#[derive(Debug, Default)]
pub(super) struct Strays {
    ended: Vec<(u32, Place)>,
    /// Processes older than the command, which it cannot have started.
    older: HashSet<u32>,
}

impl Strays {
    /// Adds others.
    pub(super) fn extend(&mut self, more: Self) {
        self.ended.extend(more.ended);
    }

    /// Waits for their end, but for no longer than `until`.
    pub(super) fn await_end(&self, until: Instant) {
        while self.ended.iter().any(|(stray, place)| place.is_of_living(*stray)) && Instant::now() < until {
            thread::sleep(POLL);
        }
    }

    /// Tells the user, once.
    pub(super) fn tell(&self) {
        if !self.ended.is_empty() && !TOLD.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "what a command left outside its process group was ended: {} of its processes (told once)",
                self.ended.len()
            );
        }
    }
}

/// Stops a process, unless its number has passed to another since it was found.
fn is_stopped(process: u32, place: &Place) -> bool {
    if !place.is_of_living(process) || !send(process, Signal::SIGSTOP) {
        return false;
    }
    let is_itself = place.is_of_living(process);
    if !is_itself {
        send(process, Signal::SIGCONT);
    }
    is_itself
}

fn send(process: u32, signal: Signal) -> bool {
    i32::try_from(process).is_ok_and(|number| kill(Pid::from_raw(number), signal).is_ok())
}
