//! Where the workers of several replicas wait for each other before they open their devices.
//!
//! Behind a launcher the job of each rank begins when the scheduler likes; minutes may lie between the first and the last.
//! A rank that opened its device at once would count them as the silence of the others. So a worker that has said where it
//! runs is told nothing more until all of them have. Then they are on one machine, where they can meet, or the error says
//! which are not.

use std::sync::{Arc, Mutex, PoisonError};

use crate::trial::executor::ExecutorError;
use crate::trial::launcher::Place;

/// The place of each rank's worker, once it has said it. All ranks hold the same.
#[derive(Clone, Debug)]
pub(in crate::trial) struct Muster(Arc<Mutex<Vec<Option<Place>>>>);

impl Muster {
    /// One of `world` ranks, none of them there yet.
    pub(in crate::trial) fn of(world: usize) -> Self {
        Self(Arc::new(Mutex::new(vec![None; world])))
    }

    /// Notes where a rank's worker runs.
    pub(super) fn arrive(&self, rank: usize, place: &Place) {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = places.get_mut(rank) {
            *known = Some(place.clone());
        }
    }

    /// Whether all are there; an error where they are not on one machine.
    pub(super) fn is_complete(&self) -> Result<bool, ExecutorError> {
        let places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let present: Vec<&Place> = places.iter().flatten().collect();
        if present.len() < places.len() {
            return Ok(false);
        }
        let Some((first, others)) = present.split_first() else { return Ok(true) };
        let Some(apart) = others.iter().position(|place| !place.is_with(first)) else { return Ok(true) };
        let node = |place: &Place| place.node.clone().unwrap_or_else(|| "another machine".to_owned());
        let other = others.get(apart).map_or_else(String::new, |place| node(place));
        Err(ExecutorError::Apart { first: node(first), rank: apart + 1, other })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(machine: &str, node: &str) -> Place {
        Place { machine: Some(machine.to_owned()), node: Some(node.to_owned()), ..Place::default() }
    }

    #[test]
    fn ranks_go_on_once_all_are_there() {
        let muster = Muster::of(3);
        for (rank, node) in [(2, "n1"), (0, "n2"), (2, "n2")] {
            muster.arrive(rank, &on("a", node));
            assert!(!muster.is_complete().unwrap());
        }
        muster.clone().arrive(1, &on("a", "n1"));
        assert!(muster.is_complete().unwrap(), "two nodes of one machine");
    }

    #[test]
    fn ranks_on_two_machines_are_named_with_their_nodes() {
        let muster = Muster::of(3);
        for (rank, place) in [on("a", "n1"), on("a", "n1"), on("b", "n7")].iter().enumerate() {
            muster.arrive(rank, place);
        }
        let text = muster.is_complete().unwrap_err().to_string();
        assert!(
            text.starts_with(
                "the replicas of a trial meet on one machine, and rank 0 is on `n1`, rank 2 on `n7` (hint:"
            ),
            "{text}"
        );
    }
}
