//! The grid strategy: every point of the space, then a soak of the best. Slow and thorough, it is the yardstick that
//! the staged strategy is judged against.

use super::recommend::ranked;
use super::staged::end_of_smallest;
use super::{Ask, Conclusion, History, Knowledge, Space, Strategy};
use crate::trial::{Point, Purpose};

/// The grid strategy.
#[derive(Debug)]
pub struct Grid {
    space: Space,
    points: Vec<Point>,
}

impl Grid {
    /// Searches every point of `space`, the smallest micro-batch first.
    pub fn new(space: Space) -> Self {
        let loaders = space.loaders();
        let modes = space.modes();
        let points = space
            .pairs()
            .iter()
            .rev()
            .flat_map(|pair| loaders.iter().map(|loader| space.point(*pair, *loader)))
            .flat_map(|point| modes.iter().map(move |mode| Point { gradient_checkpointing: *mode, ..point.clone() }))
            .collect();
        Self { space, points }
    }
}

impl Strategy for Grid {
    fn ask(&mut self, history: &History, _knowledge: &dyn Knowledge) -> Ask {
        let mut running = Vec::new();
        let mut end = None;
        for smallest in self.points.iter().take(self.space.modes().len()) {
            let Some(trial) = history.measured(smallest) else {
                return Ask::Run { point: smallest.clone(), purpose: Purpose::Smallest };
            };
            match end_of_smallest(trial) {
                None => running.push(smallest.gradient_checkpointing),
                // Another way to keep activations may need less, or run at all.
                Some(ended) => end = end.or(Some(ended)),
            }
        }
        if let Some(end) = end.filter(|_| running.is_empty()) {
            return Ask::Finished(end);
        }
        let is_missing =
            |point: &&Point| running.contains(&point.gradient_checkpointing) && history.measured(point).is_none();
        if let Some(point) = self.points.iter().find(is_missing) {
            return Ask::Run { point: point.clone(), purpose: Purpose::Grid };
        }
        for trial in ranked(history, &self.space) {
            let point = trial.record.spec.point.clone();
            match history.soaked(&point) {
                None => return Ask::Run { point, purpose: Purpose::Soak },
                Some(soak) if soak.is_safe() => return Ask::Finished(Conclusion::Safe(point)),
                Some(_) => {}
            }
        }
        Ask::Finished(Conclusion::NoSafePoint)
    }
}
