//! A coming run of one point, put together and played to allocators.
//!
//! Steps are micro-batches, as everywhere; cadences are updates. Probes at lengths of their own show how the micro-batches of
//! an update differ. Where those at batch sizes serve, their two stand for any number, since memory is the same: then an
//! update of the recording is so much shorter than one of the run, and cadences are stretched to the same number of steps.

use std::fmt;

use super::LEAST_ERROR_PERCENT;
use super::whole_run::{Basis, Play, PlayedSteps, RunTerms, Watch};
use crate::config::plan::SafetyPlan;
use crate::data::run_shapes::{BatchShape, RunShapes};
use crate::memory::forecast::long_run::{LongRunFigures, Terms, judge, play};
use crate::memory::forecast::shape::{self, LongRun, Shape};
use crate::memory::forecast::{ForecastError, MIN_BATCH_SIZE, Method};
use crate::memory::policy::supervised::{Stop, Supervised};
use crate::memory::policy::{self, Policy, Settings};
use crate::trial::outlook::{PlayedRun, RunBreach};
use crate::trial::{Outlook, Point};
use crate::units::Bytes;

/// An allocator by its settings.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    /// For people.
    pub(super) name: String,
    pub(super) settings: Settings,
    /// Whether its rate of fragmentation counts.
    pub(super) rate_gates: bool,
}

/// Whoever follows a play has ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended;

/// A run that is coming.
pub(super) struct Coming<'a> {
    pub(super) run: &'a RunTerms,
    pub(super) point: &'a Point,
    pub(super) shapes: RunShapes,
    pub(super) basis: &'a Basis<'a>,
    pub(super) limit_bytes: u64,
    pub(super) safety: &'a SafetyPlan,
}

impl Coming<'_> {
    /// Plays it to each of the allocators. `None` where `watch` ended it, an error where it cannot be put together.
    pub(super) fn play(&self, settings: &[Setting], watch: &mut Watch<'_>) -> Option<Result<Play, String>> {
        let plays = u32::try_from(settings.len()).unwrap_or(u32::MAX);
        let total = self.run.horizon_steps.saturating_mul(plays);
        let mut progress = Progress { watch, total, done: 0, is_ended: false };
        let (mut runs, mut found) = (Vec::new(), Found::default());
        for setting in settings {
            let figures = match self.figures(setting, self.limit_bytes, &mut progress)? {
                Ok(figures) => figures,
                Err(reason) => return Some(Err(reason)),
            };
            if let Some(breach) = self.breach(setting, &figures) {
                let lasts_with_more = match self.method() {
                    Method::Exact => false,
                    _ => self.lasts_with_more(setting, &mut progress)?,
                };
                let place = if lasts_with_more { &mut found.doubt } else { &mut found.breach };
                earliest(place, breach);
            }
            runs.push(PlayedRun { allocator: setting.name.clone(), figures });
        }
        Some(Ok(Play { outlook: self.outlook(found, &runs), runs }))
    }

    /// Whether it would last with as much more memory as the forecast may be wrong about.
    fn lasts_with_more(&self, setting: &Setting, progress: &mut Progress<'_, '_>) -> Option<bool> {
        let more = (self.limit_bytes as f64 * LEAST_ERROR_PERCENT / 100.0) as u64;
        let figures = self.figures(setting, self.limit_bytes.saturating_add(more), progress)?;
        Some(figures.is_ok_and(|figures| self.breach(setting, &figures).is_none()))
    }

    fn figures(
        &self,
        setting: &Setting,
        limit_bytes: u64,
        progress: &mut Progress<'_, '_>,
    ) -> Option<Result<LongRunFigures, String>> {
        self.figures_of(policy::with_settings(setting.settings, limit_bytes), progress)
    }

    /// V at its highest under another policy, if the run lasts with it.
    pub(super) fn reserved_if_it_lasts(
        &self,
        setting: &Setting,
        policy: Box<dyn Policy>,
        watch: &mut Watch<'_>,
    ) -> Result<Option<u64>, Ended> {
        let mut progress = Progress { watch, total: self.run.horizon_steps, done: 0, is_ended: false };
        let figures = self.figures_of(policy, &mut progress).ok_or(Ended)?;
        let lasting = figures.ok().filter(|figures| self.breach(setting, figures).is_none());
        Ok(lasting.map(|figures| figures.peak_reserved_bytes))
    }

    fn figures_of(
        &self,
        policy: Box<dyn Policy>,
        progress: &mut Progress<'_, '_>,
    ) -> Option<Result<LongRunFigures, String>> {
        let stop = Stop::default();
        let policy = Box::new(Supervised::new(policy, stop.clone()));
        let played = self.play_steps(self.run.horizon_steps, policy, &mut |_| {
            progress.step();
            if progress.is_ended {
                stop.want();
            }
        });
        (!progress.is_ended).then(|| played.map_err(|error| error.to_string()))
    }

    /// Plays its first steps to a policy.
    pub(super) fn play_steps(
        &self,
        steps: u32,
        policy: Box<dyn Policy>,
        on_step: &mut dyn FnMut(u32),
    ) -> Result<LongRunFigures, ForecastError> {
        let sequence = Sequence { coming: self, len: steps as usize };
        let long = LongRun {
            shapes: &sequence,
            evaluation: self.shape(self.shapes.longest()),
            evaluate_every: self.cadence(self.run.evaluate_every),
            checkpoint_every: self.cadence(self.run.checkpoint_every),
            accumulation_steps: self.basis.varies.then_some(self.point.accumulation_steps.max(1)),
        };
        Ok(play(self.basis.forecaster.events(long)?, policy, on_step))
    }

    /// Updates from one pass to the next, in the recording's own.
    fn cadence(&self, updates: Option<u32>) -> Option<usize> {
        let own = self.point.accumulation_steps.max(1);
        let recorded = if self.basis.varies { own } else { self.basis.forecaster.steps_of_an_update().max(1) };
        updates.map(|updates| (updates as usize).saturating_mul(own).div_ceil(recorded).max(1))
    }

    fn shape(&self, batch: BatchShape) -> Shape {
        let samples = batch.samples as u64;
        match batch.length.filter(|_| self.basis.varies) {
            Some(length) => Shape::of([samples, length as u64]),
            None => Shape::of([samples]),
        }
    }

    /// How sure the forecast is. A last batch of one sample takes other paths than the probes have seen.
    pub(super) fn method(&self) -> Method {
        let has_single = self.shapes.smallest_samples() < MIN_BATCH_SIZE;
        if has_single { self.basis.method.max(Method::Affine) } else { self.basis.method }
    }

    /// What breaks. Of a forecast that may err, the rate says nothing yet.
    fn breach(&self, setting: &Setting, figures: &LongRunFigures) -> Option<RunBreach> {
        let rate_gates = setting.rate_gates && self.method() == Method::Exact;
        let terms = Terms {
            metric: self.safety.fragmentation_metric,
            threshold: if rate_gates { self.safety.fragmentation_threshold.0 } else { f64::INFINITY },
            horizon_steps: self.run.horizon_steps,
        };
        let breach = judge(figures, &terms)?;
        let limit = Bytes(self.limit_bytes);
        Some(RunBreach { step: breach.step(), reason: format!("{breach} (allocator {}, limit {limit})", setting.name) })
    }

    fn outlook(&self, found: Found, runs: &[PlayedRun]) -> Outlook {
        let figures = || runs.iter().map(|run| &run.figures);
        let highest = |of: fn(&LongRunFigures) -> u64| figures().map(of).max().unwrap_or(0);
        Outlook {
            method: self.method(),
            reason: self.basis.reason.clone(),
            steps: figures().map(|figures| figures.steps).min().unwrap_or(0),
            limit_bytes: self.limit_bytes,
            peak_allocated_bytes: highest(|figures| figures.peak_allocated_bytes),
            peak_reserved_bytes: highest(|figures| figures.peak_reserved_bytes),
            last_growth_step: figures().map(|figures| figures.last_growth_step).max().unwrap_or(0),
            breach: found.breach,
            doubt: found.doubt,
        }
    }
}

/// The shapes of its steps, each computed when it is asked for.
struct Sequence<'a> {
    coming: &'a Coming<'a>,
    len: usize,
}

impl fmt::Debug for Sequence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sequence").field("shapes", &self.coming.shapes).field("len", &self.len).finish()
    }
}

impl shape::RunShapes for Sequence<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn shape(&self, step: usize) -> Shape {
        self.coming.shape(self.coming.shapes.at(step as u64))
    }

    fn period(&self) -> Option<usize> {
        // Each epoch has its own order, so lengths never come again.
        (!self.coming.basis.varies).then(|| self.coming.shapes.sample_period())
    }
}

/// What breaks, first of all.
#[derive(Debug, Default)]
struct Found {
    breach: Option<RunBreach>,
    doubt: Option<RunBreach>,
}

fn earliest(place: &mut Option<RunBreach>, breach: RunBreach) {
    if place.as_ref().is_none_or(|known| breach.step < known.step) {
        *place = Some(breach);
    }
}

/// How far all plays together are.
struct Progress<'a, 'b> {
    watch: &'a mut Watch<'b>,
    total: u32,
    done: u32,
    is_ended: bool,
}

impl Progress<'_, '_> {
    fn step(&mut self) {
        self.done = self.done.saturating_add(1);
        let (step, total) = (self.done, self.total.max(self.done));
        self.is_ended |= (self.watch)(PlayedSteps { step, total }).is_break();
    }
}
