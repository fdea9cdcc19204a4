//! Stage 3 again, with activations recomputed: `gradient_checkpointing: auto`.
//!
//! Recomputation buys memory with time. A step with it is never faster than a plain one of the same size, so it is of use
//! only for micro-batches that do not fit without: it is left alone where the whole target fits, and no size that is safe
//! without is tried with it. For the larger ones it has probes of its own, since what is allocated is not the same; their
//! forecast tells what fits, and the largest of it is measured. What decides in the end is measured speed.

use super::forecast::cannot_win;
use super::{Safe, Staged, View};
use crate::search::JudgedTrial;
use crate::search::space::Pair;
use crate::train::GradientCheckpointing;
use crate::trial::Outcome;

/// The largest micro-batch among safe points.
pub(super) fn largest_of(safe: &[Safe<'_>]) -> Option<usize> {
    safe.iter().map(|(point, _)| point.batch_size).max()
}

impl Staged {
    /// The pairs with a larger micro-batch than any that is known to be safe in another mode, the largest first.
    pub(super) fn pairs_above(&self, others: &[Safe<'_>]) -> Vec<Pair> {
        let floor = largest_of(others).unwrap_or(0);
        self.space.pairs().iter().copied().filter(|pair| pair.batch_size > floor).collect()
    }

    /// Whether a mode is worth its probes beside what is safe in others.
    pub(super) fn may_help(&mut self, view: View<'_>, mode: GradientCheckpointing, others: &[Safe<'_>]) -> bool {
        if others.is_empty() {
            return true;
        }
        let mut may_win = false;
        for pair in self.pairs_above(others) {
            let point = self.base_point(pair, mode);
            match cannot_win(view, pair, mode, others).filter(|_| view.history.measured(&point).is_none()) {
                Some(reason) => self.skip(point, reason),
                None => may_win = true,
            }
        }
        may_win
    }

    /// Whether the workload cannot run in a mode at all, whatever the size: a model of one piece cannot recompute its
    /// blocks. That is no reason to end a search that has another mode.
    pub(super) fn fails(&mut self, view: View<'_>, mode: GradientCheckpointing) -> bool {
        if self.space.modes().first() == Some(&mode) {
            return false;
        }
        let is_of_mode = |trial: &&JudgedTrial| trial.record.spec.point.gradient_checkpointing == mode;
        let Some(first) = view.history.trials().iter().find(is_of_mode) else { return false };
        let fails = matches!(first.record.outcome, Outcome::Failed { .. });
        if fails && first.record.spec.is_probe() {
            // A probe is no candidate, so nothing else would tell of it.
            self.skip(first.record.spec.point.clone(), first.record.ending());
        }
        fails
    }
}
