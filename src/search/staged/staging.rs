//! Stage 5, its end: batches staged on the device and page-locked ones, where copying takes time worth hiding.

use super::{DATA_WAIT_ALLOWED, Safe, Staged, View};
use crate::search::recommend::best_of;
use crate::search::{Ask, JudgedTrial};
use crate::trial::{Point, Purpose};

impl Staged {
    /// The better of staging and page-locking as preferred and otherwise, where copying to the device takes time.
    pub(super) fn best_staging(&mut self, view: View<'_>, found: Safe<'_>) -> Result<Point, Ask> {
        let (first, trial) = &found;
        if copying(trial) <= DATA_WAIT_ALLOWED {
            return Ok(found.0);
        }
        let staged = self.space.device_prefetches().iter();
        let staged = staged.map(|device_prefetch| Point { device_prefetch: *device_prefetch, ..first.clone() });
        let pinned = self.space.pins().iter().map(|pin_memory| Point { pin_memory: *pin_memory, ..first.clone() });
        let mut others: Vec<Point> = staged.chain(pinned).filter(|point| point != first).collect();
        // A ring of page-locked buffers is host memory too.
        others.retain(|point| self.is_allowed(point.clone(), &found, None));
        let mut tried = vec![found.clone()];
        for point in others {
            match view.history.measured(&point) {
                None if self.has_room(view) => return Err(Ask::Run { point, purpose: Purpose::Loader }),
                Some(trial) if trial.is_safe() => tried.push((point, trial)),
                None | Some(_) => {}
            }
        }
        Ok(best_of(&tried, JudgedTrial::samples_per_second).cloned().unwrap_or(found.0))
    }
}

/// The share of a step that copies its batch to the device.
fn copying(trial: &JudgedTrial) -> f64 {
    let Some(measurement) = &trial.record.measurement else { return 0.0 };
    let phases = &measurement.phases;
    if phases.total_ms > 0.0 { phases.load_ms / phases.total_ms } else { 0.0 }
}
