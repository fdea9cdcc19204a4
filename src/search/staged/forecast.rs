//! Stage 3 with an exact forecast: of the pairs that fit, those that could win are measured, the largest first.

use super::settle::Settled;
use super::{Safe, Staged, View, worth_measuring};
use crate::search::recommend::{EQUAL_SPEED, compute_rate};
use crate::search::space::Pair;
use crate::search::step_time::StepTime;
use crate::search::{Ask, JudgedTrial};
use crate::train::GradientCheckpointing;
use crate::trial::Purpose;

impl Staged {
    /// The safe pairs among those that could win against what is known to be safe in other modes.
    pub(super) fn pairs_by_forecast<'a>(
        &mut self,
        view: View<'a>,
        mode: GradientCheckpointing,
        others: &[Safe<'a>],
    ) -> Result<Vec<Safe<'a>>, Ask> {
        let mut safe: Vec<Safe<'a>> = Vec::new();
        for pair in self.pairs_above(others) {
            let mut point = self.base_point(pair, mode);
            if view.history.measured(&point).is_none()
                && let Some(reason) = self.expect(view, pair, mode)?.and_then(|expected| expected.breach)
            {
                // Settings under which it fits come before a smaller batch.
                let Some(conf) = self.least_alloc_conf(view, &point) else {
                    self.skip(point, reason);
                    continue;
                };
                point.alloc_conf = Some(conf);
            }
            if view.history.measured(&point).is_none()
                && let Some(reason) = cannot_win(view, pair, mode, &[others, &safe].concat())
            {
                self.skip(point, reason);
                continue;
            }
            match self.settle(view, point, self.purpose_of(pair)) {
                Settled::Safe(found) => safe.push(found),
                // Until something is safe no bound holds the search back.
                Settled::Needs(ask) if safe.is_empty() || (worth_measuring(&safe) && self.has_room(view)) => {
                    return Err(ask);
                }
                Settled::Needs(_) | Settled::Broken(_) => {}
            }
        }
        Ok(safe)
    }

    /// What the first trial of a pair is for. The smallest is measured in every mode, for no forecast reaches down to it:
    /// it alone may run out of memory.
    fn purpose_of(&self, pair: Pair) -> Purpose {
        let pairs = self.space.pairs();
        let largest = pairs.first().map_or(0, |pair| pair.batch_size);
        if pairs.len() > 1 && pairs.last() == Some(&pair) {
            Purpose::Smallest
        } else if 2 * pair.batch_size >= largest {
            Purpose::Ladder
        } else {
            Purpose::Accumulation
        }
    }
}

/// Why a pair is slower than one that is known to be safe, whatever its trial would say; `None` where it may win. What it
/// can reach is foretold from trials of its own mode, or from plain steps and what recomputation adds to them at least.
pub(super) fn cannot_win(view: View<'_>, pair: Pair, mode: GradientCheckpointing, safe: &[Safe<'_>]) -> Option<String> {
    let rated = safe.iter().filter_map(|(point, trial)| Some((point, *trial, compute_rate(trial)?)));
    let (best, trial, rate) = rated.max_by(|(.., a), (.., b)| a.total_cmp(b))?;
    let reached = |mode| Some(step_time(view, mode)?.highest_rate(pair.batch_size));
    let is_beyond_plain = mode != best.gradient_checkpointing && best.gradient_checkpointing == PLAIN;
    let plain = is_beyond_plain.then(|| Some(reached(PLAIN)? / least_recomputation(trial))).flatten();
    let highest = [reached(mode), plain].into_iter().flatten().reduce(f64::min)?;
    (highest < rate * (1.0 - EQUAL_SPEED)).then(|| {
        format!(
            "cannot win: the model of the step time gives it {highest:.1} samples/s at most, and batch size {} reached \
             {rate:.1}",
            best.batch_size
        )
    })
}

const PLAIN: GradientCheckpointing = GradientCheckpointing::None;
/// Of the forward pass, what is run a second time at least. The head with the loss is not, and may be large.
const RECOMPUTED: f64 = 0.5;

/// What recomputation multiplies a plain step's time by at least.
fn least_recomputation(plain: &JudgedTrial) -> f64 {
    let phases = plain.record.measurement.as_ref().map(|measurement| measurement.phases);
    let share = phases.map_or(0.0, |phases| phases.forward_ms / phases.total_ms.max(f64::MIN_POSITIVE));
    1.0 + RECOMPUTED * share.clamp(0.0, 1.0)
}

/// The model of the step time of one way to keep activations.
pub(super) fn step_time(view: View<'_>, mode: GradientCheckpointing) -> Option<StepTime> {
    let is_comparable = |trial: &&JudgedTrial| {
        let spec = &trial.record.spec;
        // Without accumulation the optimizer's share of a tiny probe is not that of its pair.
        let is_alike =
            spec.point.gradient_checkpointing == mode && (!spec.is_probe() || spec.point.accumulation_steps > 1);
        // Trials of another data path come later, and must not change what was decided before them.
        // Nor do tiny samples say anything of whole ones.
        let is_base = !spec.is_shape_probe()
            && !matches!(
                spec.purpose,
                Purpose::Throughput | Purpose::Loader | Purpose::Remedy | Purpose::Allocator | Purpose::Soak
            );
        is_alike && is_base && trial.record.completed()
    };
    let times: Vec<(usize, f64)> =
        view.history.trials().iter().filter(is_comparable).filter_map(seconds_a_micro_batch).collect();
    StepTime::fit(&times)
}

fn seconds_a_micro_batch(trial: &JudgedTrial) -> Option<(usize, f64)> {
    let batch_size = trial.record.spec.point.batch_size;
    Some((batch_size, batch_size as f64 / compute_rate(trial)?))
}
