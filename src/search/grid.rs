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
        if let Some(end) = history.trials().first().and_then(end_of_smallest) {
            return Ask::Finished(end);
        }
        if let Some(point) = self.points.iter().find(|point| history.measured(point).is_none()) {
            let purpose = if history.trials().is_empty() { Purpose::Smallest } else { Purpose::Grid };
            return Ask::Run { point: point.clone(), purpose };
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
