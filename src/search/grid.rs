//! The grid strategy: every point of the space, then a soak of the best. Slow and thorough, it is the yardstick that
//! the staged strategy is judged against.

use super::recommend::ranked;
use super::staged::end_of_smallest;
use super::{Ask, Conclusion, History, Knowledge, Space, Strategy};
use crate::train::GradientCheckpointing;
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

/// What is known of the smallest trials, one of each way to keep activations.
enum Smallest {
    /// This one has not run yet.
    Missing(Point),
    /// These ways run; none of them where the search has ended.
    Run(Vec<GradientCheckpointing>, Option<Conclusion>),
}

impl Grid {
    fn smallest(&self, history: &History) -> Smallest {
        let mut running = Vec::new();
        let mut end = None;
        for smallest in self.points.iter().take(self.space.modes().len()) {
            let Some(trial) = history.measured(smallest) else { return Smallest::Missing(smallest.clone()) };
            match end_of_smallest(trial) {
                None => running.push(smallest.gradient_checkpointing),
                // Another way to keep activations may need less, or run at all.
                Some(ended) => end = end.or(Some(ended)),
            }
        }
        Smallest::Run(running, end)
    }
}

impl Strategy for Grid {
    fn ask(&mut self, history: &History, _knowledge: &dyn Knowledge) -> Ask {
        let running = match self.smallest(history) {
            Smallest::Missing(point) => return Ask::Run { point, purpose: Purpose::Smallest },
            Smallest::Run(running, Some(end)) if running.is_empty() => return Ask::Finished(end),
            Smallest::Run(running, _) => running,
        };
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

    /// The next point of the same kind that is not under way: every point is measured, whatever becomes of the others. Only
    /// whether the workload runs at all is waited for, and the soak, which needs all of them.
    fn ask_while(&mut self, history: &History, _knowledge: &dyn Knowledge, under_way: &[Ask]) -> Option<Ask> {
        let begun =
            |point: &Point| under_way.iter().any(|ask| matches!(ask, Ask::Run { point: of, .. } if of == point));
        let is_new = |point: &&Point| history.measured(point).is_none() && !begun(point);
        let (point, purpose) = match self.smallest(history) {
            Smallest::Missing(_) => {
                let smallest = self.points.iter().take(self.space.modes().len()).find(is_new);
                (smallest, Purpose::Smallest)
            }
            Smallest::Run(running, _) => {
                let runs = |point: &&Point| running.contains(&point.gradient_checkpointing);
                (self.points.iter().filter(runs).find(is_new), Purpose::Grid)
            }
        };
        Some(Ask::Run { point: point?.clone(), purpose })
    }
}
