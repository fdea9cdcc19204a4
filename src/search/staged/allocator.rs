//! Stage 6: settings of PyTorch's allocator.
//!
//! The probes' events can be replayed under any settings, so every candidate is tried at the chosen size without running
//! it ([`tuning`](crate::memory::forecast::tuning)):
//!
//! - over the coming run itself, where its shapes vary and it can be forecast. That takes up to a minute, so the driver does
//!   it ([`Ask::TuneAllocator`]), once the probes of the run and its play under the program's own settings are there;
//! - else over steps that are all alike.
//!
//! Where the configuration lists settings, those are the candidates; else any that a search comes upon.
//!
//! The one that holds the least memory is confirmed by a real trial. Where steps are alike it wins as any point does, by
//! speed, and within half a percent by memory. Over a run it must not be slower by more than half a percent; of memory a
//! trial of a few steps says nothing that the run has not said already. Where the run breaks under the program's own settings,
//! and lasts under those that were found, they are taken whatever they cost ([`lasting`](Staged::lasting)).
//!
//! The program's own settings keep a tie: a difference under 1 % of the limit is none. And they have the last word: where
//! the soak of found settings has passed, the same point is soaked under the program's own, and the two are
//! [compared](keeps_own_settings).
//!
//! Where a size does not fit under the program's own settings, the same replay finds those under which it does.

use super::{Safe, Staged, View};
use crate::memory::forecast::Method;
use crate::search::knowledge::Kind;
use crate::search::recommend::{NEGLIGIBLE_DIVISOR, best_of, is_slower, keeps_own_settings, own_settings};
use crate::search::space::ConfChoice;
use crate::search::{Ask, Conclusion, JudgedTrial};
use crate::trial::{Point, Purpose, TunedRun};

#[cfg(test)]
mod tests;

/// Points that broke a rule under the program's own settings and have others searched for.
const SEARCHES_FOR_BROKEN: usize = 2;

/// Settings that a replay prefers, and over what.
enum Preferred {
    /// Over the coming run.
    OverRun(String),
    /// Over steps that are all alike.
    OverSteps(String),
}

impl Staged {
    /// The point with the settings that a replay prefers, if a run confirms them; leaves with what tells.
    pub(super) fn best_alloc_conf(&self, view: View<'_>, point: Point) -> Result<Point, Ask> {
        let Some(known) = view.history.measured(&point) else { return Ok(point) };
        let preferred = self.preferred(view, &point)?;
        let Some(Preferred::OverRun(conf) | Preferred::OverSteps(conf)) = &preferred else { return Ok(point) };
        let changed = with_settings(&point, conf);
        if changed == point {
            return Ok(point);
        }
        let Some(trial) = self.confirmed(view, &changed)? else { return Ok(point) };
        if matches!(preferred, Some(Preferred::OverRun(_))) {
            let is_taken = view.history.is_ruled_out(&point) || !is_slower(trial, known);
            return Ok(if is_taken { changed } else { point });
        }
        let tried = [(point.clone(), known), (changed, trial)];
        Ok(best_of(&tried, JudgedTrial::samples_per_second).cloned().unwrap_or(point))
    }

    /// The settings that a search finds best. A point that has others already, since it does not fit under the program's own,
    /// keeps them unless a search over its run finds better ones.
    fn preferred(&self, view: View<'_>, point: &Point) -> Result<Option<Preferred>, Ask> {
        if let Some(found) = self.tuned_over_run(view, &own_settings(point))?.filter(|found| found.steps > 0) {
            return Ok(found.conf.clone().map(Preferred::OverRun));
        }
        if point.alloc_conf.is_some() {
            return Ok(None);
        }
        Ok(self.best_over_steps(view, point).map(Preferred::OverSteps))
    }

    /// The settings that are best over steps that are all alike: any that a search finds, or of those listed the ones that hold
    /// the least at the point's size, if that is less than the program's own hold.
    fn best_over_steps(&self, view: View<'_>, point: &Point) -> Option<String> {
        let found = match self.space.conf_choice() {
            ConfChoice::Any => view.knowledge.tuned_alloc_conf(point),
            ConfChoice::Listed(_) => None,
        };
        match found {
            Some(found) => found.conf,
            None => self.less_than_own(view, point),
        }
    }

    fn less_than_own(&self, view: View<'_>, point: &Point) -> Option<String> {
        let kind = self.probed_kind(point.gradient_checkpointing);
        let own = view.knowledge.expect(kind, point.batch_size)?;
        let conf = self.least_alloc_conf(view, point)?;
        let least = view.knowledge.expect_under(kind, point.batch_size, &conf)?;
        let saved = own.peak_reserved_bytes.saturating_sub(least.peak_reserved_bytes);
        (saved > own.limit_bytes / NEGLIGIBLE_DIVISOR).then_some(conf)
    }

    /// What a search over the coming run came to for a point with the program's own settings; `None` where there can be no
    /// such search. Leaves with what the search needs, and with it.
    fn tuned_over_run<'a>(&self, view: View<'a>, own: &Point) -> Result<Option<&'a TunedRun>, Ask> {
        let is_meant = !self.space.alloc_confs().is_empty() && self.space.has_varying_shapes();
        if !is_meant || !view.knowledge.can_play(own) {
            return Ok(None);
        }
        let outlook = self.outlook(view, own)?;
        if outlook.method == Method::None {
            return Ok(None);
        }
        match view.history.tuned(own) {
            Some(found) => Ok(Some(found)),
            None => Err(Ask::TuneAllocator { point: own.clone() }),
        }
    }

    /// A point whose trial was short of memory under the program's own settings, with those under which it is safe; leaves
    /// with what tells. A search may take a minute, so the first few such points have one.
    pub(super) fn under_found_settings<'a>(&self, view: View<'a>, point: &Point) -> Result<Option<Safe<'a>>, Ask> {
        if point.alloc_conf.is_some() || searched_before(view, point) >= SEARCHES_FOR_BROKEN {
            return Ok(None);
        }
        let confs: Vec<String> = match self.tuned_over_run(view, point)?.filter(|found| found.steps > 0) {
            Some(found) => found.lasting().cloned().collect(),
            None => self.best_over_steps(view, point).into_iter().collect(),
        };
        for conf in confs {
            let changed = with_settings(point, &conf);
            if let Some(trial) = self.confirmed(view, &changed)? {
                return Ok(Some((changed, trial)));
            }
        }
        Ok(None)
    }

    /// The trial that shows a changed point to be safe, if it is; leaves with that trial where it may run.
    fn confirmed<'a>(&self, view: View<'a>, changed: &Point) -> Result<Option<&'a JudgedTrial>, Ask> {
        match view.history.measured(changed) {
            Some(trial) => Ok(Some(trial).filter(|trial| trial.is_safe())),
            None if self.may_confirm(view, changed) => {
                Err(Ask::Run { point: changed.clone(), purpose: Purpose::Allocator })
            }
            None => Ok(None),
        }
    }

    /// Whether a trial may be spent on settings: the first always, and no bound holds back what may be the only way to keep a
    /// size.
    fn may_confirm(&self, view: View<'_>, changed: &Point) -> bool {
        let mut purposes = view.history.trials().iter().map(|trial| trial.record.spec.purpose);
        let own = own_settings(changed);
        self.has_room(view)
            || view.history.is_ruled_out(&own)
            || view.history.measured(&own).is_some_and(|trial| !trial.is_safe())
            || purposes.all(|purpose| purpose != Purpose::Allocator)
    }

    /// A point whose whole run lasts: this one, or else with the settings under which it does. `None` where it breaks under
    /// all of them; leaves with what it takes to tell.
    pub(super) fn lasting(&mut self, view: View<'_>, point: &Point) -> Result<Option<Point>, Ask> {
        if self.lasts(view, point)? {
            return Ok(Some(point.clone()));
        }
        let found = self.tuned_over_run(view, &own_settings(point))?;
        for conf in found.into_iter().flat_map(TunedRun::lasting) {
            let changed = with_settings(point, conf);
            if changed != *point && self.confirmed(view, &changed)?.is_some() && self.lasts(view, &changed)? {
                return Ok(Some(changed));
            }
        }
        Ok(None)
    }

    /// The conclusion when a point has passed its soak. One with other settings than the program's own is held against
    /// those, where it fits under them at all; leaves with their soak.
    pub(super) fn against_own_settings(&self, view: View<'_>, point: &Point, soak: &JudgedTrial) -> Result<Ask, Ask> {
        let own = own_settings(point);
        let settled = |point: Point| Ok(Ask::Finished(Conclusion::Safe(point)));
        if own == *point || !self.runs_under_own_settings(view, &own) {
            return settled(point.clone());
        }
        match view.history.soaked(&own) {
            Some(_) if keeps_own_settings(view.history, soak) => settled(own),
            Some(_) => settled(point.clone()),
            None => {
                // Its soak is judged by its run as well.
                if view.knowledge.can_play(&own) {
                    self.outlook(view, &own)?;
                }
                Err(Ask::Run { point: own, purpose: Purpose::Soak })
            }
        }
    }

    /// Whether a point is known to run, safe or not: by its trial, or where a rule kept it from one, by an exact forecast.
    fn runs_under_own_settings(&self, view: View<'_>, own: &Point) -> bool {
        if let Some(trial) = view.history.measured(own) {
            return trial.record.completed();
        }
        let kinds = [Kind::of(own), self.probed_kind(own.gradient_checkpointing)];
        let exact = kinds.into_iter().filter(|kind| view.knowledge.method(*kind) == Some(Method::Exact));
        let expected = exact.into_iter().find_map(|kind| view.knowledge.expect(kind, own.batch_size));
        expected.is_some_and(|expected| expected.fits)
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

/// A point with other settings of the allocator.
fn with_settings(point: &Point, conf: &str) -> Point {
    Point { alloc_conf: Some(conf.to_owned()), ..point.clone() }
}

/// How many other points broke a rule under the program's own settings and had settings searched for.
fn searched_before(view: View<'_>, point: &Point) -> usize {
    let broken = view.history.trials().iter().filter(|trial| trial.record.spec.is_measuring() && !trial.is_safe());
    let points = broken.map(|trial| &trial.record.spec.point);
    points.take_while(|other| *other != point).filter(|other| view.history.tuned(other).is_some()).count()
}
