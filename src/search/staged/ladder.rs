//! Stage 3 without an exact forecast: the largest safe size by measuring, then the pairs under it.
//!
//! An affine forecast still helps: a rung that breaks a rule even if the forecast is as far off as it may be is not run.

use super::settle::Settled;
use super::{Safe, Staged, View, breach_reason, largest_of, worth_measuring};
use crate::search::Ask;
use crate::search::space::Pair;
use crate::train::GradientCheckpointing;
use crate::trial::Purpose;

impl Staged {
    /// The safe ones among the largest pairs up to the largest safe size, above those known to be safe in other modes.
    pub(super) fn pairs_by_ladder<'a>(
        &mut self,
        view: View<'a>,
        mode: GradientCheckpointing,
        others: &[Safe<'a>],
    ) -> Result<Vec<Safe<'a>>, Ask> {
        let floor = largest_of(others);
        let Some(largest) = self.largest_safe(view, mode, floor)? else { return Ok(Vec::new()) };
        let mut safe: Vec<Safe<'a>> = Vec::new();
        for pair in self.pairs_above(others).into_iter().filter(|pair| pair.batch_size <= largest) {
            match self.settle(view, self.base_point(pair, mode), Purpose::Accumulation) {
                Settled::Safe(found) => safe.push(found),
                Settled::Needs(ask) if worth_measuring(&safe) => return Err(ask),
                Settled::Needs(_) | Settled::Broken(_) => {}
            }
        }
        Ok(safe)
    }

    /// The largest safe size, or the next trial that finds it. `floor` is safe already: it was in a mode that needs more.
    fn largest_safe(
        &mut self,
        view: View<'_>,
        mode: GradientCheckpointing,
        floor: Option<usize>,
    ) -> Result<Option<usize>, Ask> {
        let smallest = self.space.pairs().last().copied();
        let smallest = smallest.filter(|pair| {
            let settled = self.settle(view, self.base_point(*pair, mode), Purpose::Smallest);
            matches!(settled, Settled::Safe(_))
        });
        let mut largest = floor.or(smallest.map(|pair| pair.batch_size));
        let mut broken: Option<(usize, String)> = None;
        let mut rungs = self.space.rungs();
        rungs.retain(|rung| floor.is_none_or(|floor| *rung > floor));
        let start = rungs.first().copied();
        for rung in rungs {
            let pair = self.space.pair_of(rung);
            let point = self.base_point(pair, mode);
            if let Some((size, reason)) = &broken {
                let reason = format!("batch size {size} already broke a rule: {reason}");
                self.skip(point, reason);
                continue;
            }
            if view.history.measured(&point).is_none()
                && let Some(reason) = self.ruled_out(view, pair, mode)?
            {
                self.skip(point, reason.clone());
                broken = Some((rung, reason));
                continue;
            }
            match self.settle(view, point, Purpose::Ladder) {
                Settled::Needs(ask) => return Err(ask),
                Settled::Safe(_) => largest = largest.max(Some(rung)),
                Settled::Broken(trial) => broken = Some((rung, breach_reason(trial))),
            }
        }
        match broken {
            Some((size, _)) if Some(size) == start => self.bisect(view, mode, Between { safe: largest, broken: size }),
            _ => Ok(largest),
        }
    }

    fn ruled_out(&self, view: View<'_>, pair: Pair, mode: GradientCheckpointing) -> Result<Option<String>, Ask> {
        Ok(self.expect(view, pair, mode)?.and_then(|expected| expected.breach))
    }

    /// Bisection over the sizes that can meet the target and lie between a safe and a broken one.
    fn bisect(&mut self, view: View<'_>, mode: GradientCheckpointing, between: Between) -> Result<Option<usize>, Ask> {
        let mut pairs = self.space.pairs().to_vec();
        pairs.retain(|pair| pair.batch_size < between.broken && between.safe.is_none_or(|safe| pair.batch_size > safe));
        pairs.sort_unstable();
        let (mut low, mut high, mut largest) = (0, pairs.len(), between.safe);
        while low < high {
            let middle = usize::midpoint(low, high);
            let Some(pair) = pairs.get(middle).copied() else { break };
            let point = self.base_point(pair, mode);
            if view.history.measured(&point).is_none()
                && let Some(reason) = self.ruled_out(view, pair, mode)?
            {
                self.skip(point, reason);
                high = middle;
                continue;
            }
            match self.settle(view, point, Purpose::Bisection) {
                Settled::Needs(ask) => return Err(ask),
                Settled::Safe(_) => {
                    largest = Some(pair.batch_size);
                    low = middle + 1;
                }
                Settled::Broken(_) => high = middle,
            }
        }
        Ok(largest)
    }
}

/// The sizes that bound a bisection.
#[derive(Clone, Copy, Debug)]
struct Between {
    safe: Option<usize>,
    broken: usize,
}
