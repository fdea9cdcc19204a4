//! Where the workers of several replicas wait for each other before they open their devices.
//!
//! Behind a launcher the job of each rank begins when the scheduler likes; minutes may lie between the first and the last.
//! A rank that opened its device at once would count them as the silence of the others. So a worker that has said where it
//! runs is told nothing more until all of them have. Then it is known whether they are on one machine, where they find each
//! other by themselves, or not: what they have for each other is passed on here then, by the thread that hears the one to
//! that which speaks to the other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_channel::Sender;

use crate::device::collective::{Apart, Meeting};
use crate::trial::launcher::Place;
use crate::trial::protocol::ToWorker;

/// How long a worker may take to read what is passed on to it. One that is dead is found out by whoever follows it.
const READING: Duration = Duration::from_secs(2);

/// What is known of each rank's worker, once it has said where it runs. All ranks hold the same.
#[derive(Clone, Debug)]
pub(in crate::trial) struct Muster(Arc<Mutex<Vec<Option<Present>>>>);

/// A rank whose worker is there.
#[derive(Clone, Debug)]
struct Present {
    place: Place,
    /// What is said to it.
    lines: Sender<Vec<u8>>,
}

impl Muster {
    /// One of `world` ranks, none of them there yet.
    pub(in crate::trial) fn of(world: usize) -> Self {
        Self(Arc::new(Mutex::new(vec![None; world])))
    }

    fn ranks(&self) -> MutexGuard<'_, Vec<Option<Present>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes where a rank's worker runs, and how it is spoken to.
    pub(super) fn arrive(&self, rank: usize, place: &Place, lines: Sender<Vec<u8>>) -> Seat {
        if let Some(known) = self.ranks().get_mut(rank) {
            *known = Some(Present { place: place.clone(), lines });
        }
        Seat { muster: self.clone(), rank, is_relayed: false }
    }
}

/// A worker's place in the muster, which it leaves when it ends.
#[derive(Debug)]
pub(super) struct Seat {
    muster: Muster,
    rank: usize,
    is_relayed: bool,
}

impl Seat {
    /// How the ranks meet, once all are there: in `folder` if they are on one machine.
    pub(super) fn meeting(&mut self, folder: &Meeting) -> Option<Meeting> {
        let ranks = self.muster.ranks();
        let places: Vec<&Place> =
            ranks.iter().map(|rank| rank.as_ref().map(|rank| &rank.place)).collect::<Option<_>>()?;
        let first = places.first()?;
        let Some((rank, other)) = places.iter().enumerate().find(|(_, place)| !place.is_with(first)) else {
            return Some(folder.clone());
        };
        let node = |place: &Place| place.node.clone().unwrap_or_else(|| "another machine".to_owned());
        let apart = Apart { first: node(first), rank, other: node(other) };
        drop(ranks);
        self.is_relayed = true;
        Some(Meeting::Driver(apart))
    }

    /// Passes on what this rank has for another.
    pub(super) fn pass_on(&self, to: usize, bytes: Vec<u8>) {
        let lines = |rank: usize| Some(self.muster.ranks().get(rank)?.as_ref()?.lines.clone());
        match lines(to) {
            Some(lines) => tell(&lines, self.rank, bytes),
            // It is gone.
            None => {
                if let Some(lines) = lines(self.rank) {
                    tell(&lines, to, Vec::new());
                }
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut ranks = self.muster.ranks();
        if let Some(own) = ranks.get_mut(self.rank) {
            *own = None;
        }
        if !self.is_relayed {
            return;
        }
        let others: Vec<Sender<Vec<u8>>> = ranks.iter().flatten().map(|other| other.lines.clone()).collect();
        drop(ranks);
        for lines in &others {
            tell(lines, self.rank, Vec::new());
        }
    }
}

/// Tells a worker what `rank` said.
fn tell(lines: &Sender<Vec<u8>>, rank: usize, bytes: Vec<u8>) {
    let Ok(mut line) = serde_json::to_vec(&ToWorker::Relay { rank, bytes }) else { return };
    line.push(b'\n');
    let _ = lines.send_timeout(line, READING);
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, unbounded};

    use super::*;

    fn on(machine: &str, node: &str) -> Place {
        Place { machine: Some(machine.to_owned()), node: Some(node.to_owned()), ..Place::default() }
    }

    fn folder() -> Meeting {
        Meeting::Folder("/meeting".into())
    }

    fn heard(lines: &Receiver<Vec<u8>>) -> Vec<(usize, Vec<u8>)> {
        let relayed = |line: Vec<u8>| match serde_json::from_slice(&line).unwrap() {
            ToWorker::Relay { rank, bytes } => (rank, bytes),
            other => panic!("{other:?}"),
        };
        lines.try_iter().map(relayed).collect()
    }

    #[test]
    fn ranks_of_one_machine_go_on_once_all_are_there_and_hear_nothing_of_each_other() {
        let (muster, (lines, received)) = (Muster::of(3), unbounded());
        let mut seat = muster.arrive(2, &on("a", "n1"), lines.clone());
        assert_eq!(seat.meeting(&folder()), None);
        let zeroth = muster.clone().arrive(0, &on("a", "n2"), lines.clone());
        assert_eq!(seat.meeting(&folder()), None);
        let _first = muster.arrive(1, &on("a", "n1"), lines);
        assert_eq!(seat.meeting(&folder()), Some(folder()), "two nodes of one machine");
        drop(zeroth);
        assert_eq!(heard(&received), []);
    }

    #[test]
    fn ranks_on_two_machines_hear_each_other_and_who_is_gone() {
        let muster = Muster::of(3);
        let (to_zeroth, zeroth) = unbounded();
        let (to_second, second) = unbounded();
        let mut seats = [
            muster.arrive(0, &on("a", "n1"), to_zeroth),
            muster.arrive(1, &on("a", "n1"), unbounded().0),
            muster.arrive(2, &on("b", "n7"), to_second),
        ];
        let apart = Apart { first: "n1".to_owned(), rank: 2, other: "n7".to_owned() };
        for seat in &mut seats {
            assert_eq!(seat.meeting(&folder()), Some(Meeting::Driver(apart.clone())));
        }
        seats[0].pass_on(2, vec![1, 2]);
        assert_eq!(heard(&second), [(0, vec![1, 2])]);
        let [zeroth_seat, first, second_seat] = seats;
        drop(first);
        assert_eq!((heard(&zeroth), heard(&second)), (vec![(1, vec![])], vec![(1, vec![])]));
        second_seat.pass_on(1, vec![3]);
        assert_eq!(heard(&second), [(1, vec![])], "to whom nobody listens");
        drop(zeroth_seat);
        assert_eq!(heard(&second), [(0, vec![])]);
    }
}
