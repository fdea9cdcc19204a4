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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::plan::PinMemory;
    use crate::memory::MemorySample;
    use crate::search::knowledge::Nothing;
    use crate::search::rules::testing::{completed, sample};
    use crate::search::scripted::plan;
    use crate::search::{History, Space, Strategy, Verdict};
    use crate::trial::outcome::StepTimes;
    use crate::trial::{Measurement, TrialRecord};
    use crate::units::MIB;

    /// What the stage asks for and skips on a host with so much memory left, where half of a step copies a batch of
    /// 100 MiB.
    fn staged(available_bytes: u64) -> (Result<Point, Ask>, Vec<String>) {
        let mut plan = plan(8);
        plan.search.device_prefetch = vec![0, 2];
        plan.pin_memory = PinMemory::Always;
        let space = Space::new(&plan);
        let point = space.point(space.pair_of(8), space.first_loader());
        let left = MemorySample { host_available_bytes: Some(available_bytes), ..sample(4) };
        let record = completed(point.clone(), vec![left]);
        let phases = StepTimes { load_ms: 50.0, total_ms: 100.0, ..StepTimes::default() };
        let measurement = record.measurement.map(|found| Measurement { phases, batch_bytes: Some(100 * MIB), ..found });
        let trial = JudgedTrial { record: TrialRecord { measurement, ..record }, verdict: Verdict::default() };
        let mut strategy = Staged::new(space);
        let history = History::default();
        let asked = strategy.best_staging(View { history: &history, knowledge: &Nothing }, (point, &trial));
        (asked, strategy.skipped().into_iter().map(|skip| skip.reason).collect())
    }

    #[test]
    fn a_ring_of_page_locked_buffers_that_would_fill_the_host_is_left_out() {
        // The batch, two staged ones, the one that is copied and the next.
        let (asked, skipped) = staged(625 * MIB);
        assert!(matches!(&asked, Err(Ask::Run { point, .. }) if point.device_prefetch == 2), "{asked:?}");
        assert!(skipped.is_empty(), "{skipped:?}");
        let (asked, skipped) = staged(624 * MIB);
        assert!(matches!(&asked, Ok(point) if point.device_prefetch == 0), "{asked:?}");
        assert!(skipped[0].contains("(0 workers × 0 + 1 + 4 pinned)"), "{skipped:?}");
    }
}
