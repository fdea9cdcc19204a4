//! Stage 2: which tiny batches to record, and what the forecast from them says of a pair.
//!
//! The memory of a step is the same for two micro-batches an update and for more, but not for one: then no sum of
//! gradients is held. So probes accumulate twice where any pair does, and their forecast bounds what a pair without
//! accumulation takes. Only where that bound rules such a pair out, and the pair could still fit, is it probed itself.

use super::{Staged, View};
use crate::memory::forecast::Method;
use crate::search::Ask;
use crate::search::knowledge::{Expectation, Kind};
use crate::search::space::Pair;
use crate::train::GradientCheckpointing;
use crate::trial::Purpose;

/// The batches of the probes: below 2 a step has other shapes.
const PROBES: [usize; 2] = [2, 3];
/// The batch of the probe that settles doubt.
const THIRD_PROBE: usize = 4;
/// Where the largest micro-batch is no larger than the probes would be, it is measured instead.
pub(super) const LEAST_BATCH_SIZE: usize = 4;
/// Without accumulation a step needs at least two thirds of what it needs with: the sum of gradients that it saves is as
/// large as the weights, and so are the gradients, which it needs like the weights themselves.
const ACCUMULATION_FACTOR: f64 = 1.5;

/// Whether the smallest trial's memory was seen from inside. What does not report has nothing recorded either.
fn is_observed(view: View<'_>) -> bool {
    let smallest = view.history.trials().iter().find(|trial| trial.record.spec.purpose == Purpose::Smallest);
    smallest.is_none_or(|trial| !trial.record.completed() || trial.record.is_observed())
}

impl Staged {
    /// Whether pairs of this mode are forecast exactly, once its probes have run.
    pub(super) fn is_forecast_exactly(&self, view: View<'_>, mode: GradientCheckpointing) -> Result<bool, Ask> {
        let kind = self.probed_kind(mode);
        if self.space.pairs().first().is_none_or(|pair| pair.batch_size < LEAST_BATCH_SIZE) {
            return Ok(false);
        }
        if !is_observed(view) {
            return Ok(false);
        }
        self.probe(view, kind)?;
        Ok(view.knowledge.method(kind) == Some(Method::Exact))
    }

    /// The kind of point whose probes are run first.
    pub(super) fn probed_kind(&self, mode: GradientCheckpointing) -> Kind {
        let accumulates = self.space.pairs().iter().any(|pair| pair.accumulation_steps > 1);
        Kind { accumulation: if accumulates { 2 } else { 1 }, gradient_checkpointing: mode }
    }

    /// Leaves with the next probe of a kind, if one is missing. After one that failed there is no next.
    fn probe(&self, view: View<'_>, kind: Kind) -> Result<(), Ask> {
        let third = view.knowledge.wants_a_third_probe(kind).then_some(THIRD_PROBE);
        for batch_size in PROBES.into_iter().chain(third) {
            let point = self.space.probe_point(kind, batch_size);
            match view.history.probed(&point) {
                None => return Err(Ask::Run { point, purpose: Purpose::Probe }),
                Some(trial) if trial.record.completed() => {}
                Some(_) => break,
            }
        }
        Ok(())
    }

    /// What the forecast says of a pair; leaves with a probe where only one more can tell.
    pub(super) fn expect(
        &self,
        view: View<'_>,
        pair: Pair,
        mode: GradientCheckpointing,
    ) -> Result<Option<Expectation>, Ask> {
        let probed = self.probed_kind(mode);
        let expected = view.knowledge.expect(probed, pair.batch_size);
        let Some(bound) = expected.as_ref().filter(|_| pair.accumulation_steps == 1 && probed.accumulation > 1) else {
            return Ok(expected);
        };
        let is_out_of_reach = bound.peak_reserved_bytes as f64 > bound.limit_bytes as f64 * ACCUMULATION_FACTOR;
        if bound.breach.is_none() || is_out_of_reach {
            return Ok(expected);
        }
        let own = Kind { accumulation: 1, ..probed };
        if view.knowledge.method(probed) == Some(Method::Exact) {
            self.probe(view, own)?;
        }
        Ok(match view.knowledge.method(own) {
            Some(Method::Exact) => view.knowledge.expect(own, pair.batch_size),
            // Nothing exact is known of it, so what is known stands.
            _ => expected,
        })
    }
}
