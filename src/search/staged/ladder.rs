//! Stage 3 without an exact forecast: the largest safe size by measuring, then the pairs under it.
//!
//! An affine forecast still helps: a rung that breaks a rule even if the forecast is as far off as it may be is not run.
//!
//! A rung that is short of memory under the program's own settings of the allocator, and safe under others, hands these on
//! to the rungs above: they would break all the more.

use super::settle::Settled;
use super::{Safe, Staged, View, breach_reason, largest_of, worth_measuring};
use crate::search::Ask;
use crate::search::space::Pair;
use crate::train::GradientCheckpointing;
use crate::trial::{Point, Purpose};

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
        for pair in self.pairs_above(others).into_iter().filter(|pair| pair.batch_size <= largest.batch_size) {
            match self.settle(view, largest.settings.apply(self.base_point(pair, mode)), Purpose::Accumulation) {
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
    ) -> Result<Option<Largest>, Ask> {
        let smallest = self.space.pairs().last().copied();
        let smallest = smallest.filter(|pair| {
            let settled = self.settle(view, self.base_point(*pair, mode), Purpose::Smallest);
            matches!(settled, Settled::Safe(_))
        });
        let mut largest = floor.or(smallest.map(|pair| pair.batch_size));
        let mut broken: Option<(usize, String)> = None;
        let mut settings = SettingsFrom::default();
        // Below the smallest pair nothing meets the target.
        let least = self.space.pairs().last().map_or(0, |pair| pair.batch_size);
        let mut rungs = self.space.rungs();
        rungs.retain(|rung| *rung >= least && floor.is_none_or(|floor| *rung > floor));
        let start = rungs.first().copied();
        for rung in rungs {
            let pair = self.space.pair_of(rung);
            let point = settings.apply(self.base_point(pair, mode));
            if let Some((size, reason)) = &broken {
                let reason = format!("batch size {size} already broke a rule: {reason}");
                self.skip(point, reason);
                continue;
            }
            // What is forecast is so under the program's own settings.
            if point.alloc_conf.is_none()
                && view.history.measured(&point).is_none()
                && let Some(reason) = self.ruled_out(view, pair, mode)?
            {
                self.skip(point, reason.clone());
                broken = Some((rung, reason));
                continue;
            }
            match self.settle(view, point, Purpose::Ladder) {
                Settled::Needs(ask) => return Err(ask),
                Settled::Safe((found, _)) => {
                    largest = largest.max(Some(rung));
                    settings.note(&found);
                }
                Settled::Broken(trial) => broken = Some((rung, breach_reason(trial))),
            }
        }
        if let Some((size, _)) = broken.filter(|(size, _)| Some(*size) == start) {
            largest = self.bisect(view, mode, Between { safe: largest, broken: size })?;
        }
        Ok(largest.map(|batch_size| Largest { batch_size, settings }))
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

/// What a ladder found.
#[derive(Debug)]
struct Largest {
    /// The largest safe size.
    batch_size: usize,
    settings: SettingsFrom,
}

/// Settings of the allocator other than the program's own, and the size from which on they are needed.
#[derive(Debug, Default)]
struct SettingsFrom(Option<(usize, String)>);

impl SettingsFrom {
    /// Notes that a point is safe, and none below it needed other settings.
    fn note(&mut self, safe: &Point) {
        if self.0.is_none() {
            self.0 = safe.alloc_conf.clone().map(|conf| (safe.batch_size, conf));
        }
    }

    /// A point with the settings that its size needs.
    fn apply(&self, point: Point) -> Point {
        let conf = self.0.as_ref().filter(|(from, _)| point.batch_size >= *from).map(|(_, conf)| conf.clone());
        Point { alloc_conf: conf.or(point.alloc_conf), ..point }
    }
}

/// The sizes that bound a bisection.
#[derive(Clone, Copy, Debug)]
struct Between {
    safe: Option<usize>,
    broken: usize,
}
