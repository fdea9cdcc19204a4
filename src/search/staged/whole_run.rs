//! Before the soak: whether the whole run of a point lasts, by forecast.
//!
//! A soak sees fifty steps, and a run that breaks does so later. So before a point is soaked its coming run is played:
//! where samples have varying lengths, tiny probes at a handful of shapes come first. A point whose run breaks is ruled out
//! with the step, and the next best is looked at. What could not be forecast is left to the soak.
//!
//! These probes are asked for when a point is known, and at no other time: they come last, so that nothing that was
//! decided before depends on them, and they do not count among the trials that a search may take.

use super::{Staged, View};
use crate::search::Ask;
use crate::trial::Point;

impl Staged {
    /// Whether a point may be soaked; leaves with what it takes to tell.
    pub(super) fn lasts(&mut self, view: View<'_>, point: &Point) -> Result<bool, Ask> {
        if let Some(outlook) = view.history.outlook(point) {
            let Some(breach) = &outlook.breach else { return Ok(true) };
            self.skip(point.clone(), format!("its whole run breaks by forecast: {}", breach.reason));
            return Ok(false);
        }
        if !view.knowledge.can_play(point) {
            return Ok(true);
        }
        for (batch_size, length) in self.space.probe_shapes() {
            let probe = self.space.length_probe_point(point, *batch_size);
            match view.history.length_probed(&probe, *length) {
                None => return Err(Ask::ProbeLength { point: probe, length: *length }),
                Some(trial) if trial.record.completed() => {}
                // The others would not make up for it; the forecast says so.
                Some(_) => break,
            }
        }
        Err(Ask::Play { point: point.clone() })
    }
}
