//! Stage 6: settings of PyTorch's allocator.
//!
//! The probes' events can be replayed under any settings, so every candidate is tried at the chosen size without running
//! it: those of a search ([`tuning`](crate::memory::forecast::tuning)) where any may be, else those that the configuration
//! lists. The one that holds the least memory is confirmed by a real trial; it wins as any point does, by speed, and within
//! half a percent by memory. The program's own settings keep a tie: a difference under 1 % of the limit is none.
//!
//! Where a size does not fit under the program's own settings, the same replay finds those under which it does.

use super::{Staged, View};
use crate::memory::forecast::Method;
use crate::search::recommend::best_of;
use crate::search::{Ask, JudgedTrial};
use crate::trial::{Point, Purpose};

/// A difference in reserved memory under this share of the limit is none.
const NEGLIGIBLE_DIVISOR: u64 = 100;

impl Staged {
    /// The point with the settings that a replay prefers, if a run confirms them; leaves with that run.
    pub(super) fn best_alloc_conf(&self, view: View<'_>, point: Point) -> Result<Point, Ask> {
        if point.alloc_conf.is_some() {
            return Ok(point);
        }
        let (Some(own), Some(conf)) = (view.history.measured(&point), self.better_alloc_conf(view, &point)) else {
            return Ok(point);
        };
        let changed = Point { alloc_conf: Some(conf), ..point.clone() };
        let trial = match view.history.measured(&changed) {
            None if self.has_room(view) => return Err(Ask::Run { point: changed, purpose: Purpose::Allocator }),
            Some(trial) if trial.is_safe() => trial,
            None | Some(_) => return Ok(point),
        };
        let tried = [(point.clone(), own), (changed, trial)];
        Ok(best_of(&tried, JudgedTrial::samples_per_second).cloned().unwrap_or(point))
    }

    /// The settings that a search finds best, where any may be tried; else of those listed the ones that hold the least, if
    /// that is less than the program's own hold.
    fn better_alloc_conf(&self, view: View<'_>, point: &Point) -> Option<String> {
        let found = self.space.may_tune_allocator().then(|| view.knowledge.tuned_alloc_conf(point)).flatten();
        if let Some(found) = found {
            return found.conf;
        }
        let kind = self.probed_kind(point.gradient_checkpointing);
        let own = view.knowledge.expect(kind, point.batch_size)?;
        let conf = self.least_alloc_conf(view, point)?;
        let least = view.knowledge.expect_under(kind, point.batch_size, &conf)?;
        let saved = own.peak_reserved_bytes.saturating_sub(least.peak_reserved_bytes);
        (saved > own.limit_bytes / NEGLIGIBLE_DIVISOR).then_some(conf)
    }

    /// The settings under which a point is safe by an exact forecast and holds the least; the earlier of equals.
    pub(super) fn least_alloc_conf(&self, view: View<'_>, point: &Point) -> Option<String> {
        let kind = self.probed_kind(point.gradient_checkpointing);
        if view.knowledge.method(kind) != Some(Method::Exact) {
            return None;
        }
        let fitting = self.space.alloc_confs().iter().filter_map(|conf| {
            let expected = view.knowledge.expect_under(kind, point.batch_size, conf)?;
            expected.breach.is_none().then_some((expected.peak_reserved_bytes, conf))
        });
        fitting.min_by_key(|(reserved_bytes, _)| *reserved_bytes).map(|(_, conf)| conf.clone())
    }
}
