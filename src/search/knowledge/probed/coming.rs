//! A coming run of one point, put together and played to allocators.
//!
//! Steps are micro-batches, as everywhere; cadences are updates. A recording of two micro-batches an update stands for any
//! number of them, since memory is the same: then an update of the recording is so much shorter than one of the run, and
//! cadences are stretched to the same number of steps.

use super::LEAST_ERROR_PERCENT;
use super::whole_run::{Basis, Play, PlayedSteps, RunTerms, Watch};
use crate::data::run_shapes::{BatchShape, RunShapes};
use crate::memory::forecast::long_run::{LongRunFigures, play};
use crate::memory::forecast::shape::{LongRun, Shape};
use crate::memory::forecast::{MIN_BATCH_SIZE, Method};
use crate::memory::policy::{self, Settings};
use crate::trial::outlook::{PlayedRun, RunBreach};
use crate::trial::{Outlook, Point};
use crate::units::Bytes;

/// An allocator by its settings.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    /// For people.
    pub(super) name: String,
    pub(super) settings: Settings,
}

/// A run that is coming.
pub(super) struct Coming<'a> {
    pub(super) run: &'a RunTerms,
    pub(super) point: &'a Point,
    pub(super) shapes: RunShapes,
    pub(super) basis: &'a Basis<'a>,
    pub(super) limit_bytes: u64,
}

impl Coming<'_> {
    /// Plays it to each of the allocators. `None` where `watch` ended it, an error where it cannot be put together.
    pub(super) fn play(&self, settings: &[Setting], watch: &mut Watch<'_>) -> Option<Result<Play, String>> {
        let steps: Vec<Shape> =
            (0..u64::from(self.run.horizon_steps)).map(|step| self.shape(self.shapes.at(step))).collect();
        let plays = u32::try_from(settings.len()).unwrap_or(u32::MAX);
        let total = self.run.horizon_steps.saturating_mul(plays);
        let mut progress = Progress { watch, total, done: 0, is_ended: false };
        let (mut runs, mut found) = (Vec::new(), Found::default());
        for setting in settings {
            let figures = match self.figures(setting, self.limit_bytes, &steps, &mut progress)? {
                Ok(figures) => figures,
                Err(reason) => return Some(Err(reason)),
            };
            if let Some(breach) = self.breach(setting, &figures) {
                let lasts_with_more = match self.method() {
                    Method::Exact => false,
                    _ => self.lasts_with_more(setting, &steps, &mut progress)?,
                };
                let place = if lasts_with_more { &mut found.doubt } else { &mut found.breach };
                earliest(place, breach);
            }
            runs.push(PlayedRun { allocator: setting.name.clone(), figures });
        }
        Some(Ok(Play { outlook: self.outlook(found, &runs), runs }))
    }

    /// Whether it would last with as much more memory as the forecast may be wrong about.
    fn lasts_with_more(&self, setting: &Setting, steps: &[Shape], progress: &mut Progress<'_, '_>) -> Option<bool> {
        let more = (self.limit_bytes as f64 * LEAST_ERROR_PERCENT / 100.0) as u64;
        let figures = self.figures(setting, self.limit_bytes.saturating_add(more), steps, progress)?;
        Some(figures.is_ok_and(|figures| self.breach(setting, &figures).is_none()))
    }

    fn figures(
        &self,
        setting: &Setting,
        limit_bytes: u64,
        steps: &[Shape],
        progress: &mut Progress<'_, '_>,
    ) -> Option<Result<LongRunFigures, String>> {
        let forecaster = self.basis.forecaster.as_ref();
        let long = LongRun {
            shapes: steps,
            evaluation: self.shape(self.shapes.longest()),
            evaluate_every: self.cadence(self.run.evaluate_every),
        };
        let events = match forecaster.events(long) {
            Ok(events) => events,
            Err(error) => return Some(Err(error.to_string())),
        };
        let figures = play(events, policy::with_settings(setting.settings, limit_bytes), &mut |_| progress.step());
        (!progress.is_ended).then_some(Ok(figures))
    }

    /// Updates of the recording from one pass to the next.
    fn cadence(&self, updates: Option<u32>) -> Option<usize> {
        let (own, recorded) = (self.point.accumulation_steps.max(1), self.basis.forecaster.steps_of_an_update().max(1));
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
    fn method(&self) -> Method {
        let has_single = self.shapes.smallest_samples() < MIN_BATCH_SIZE;
        if has_single { self.basis.method.max(Method::Affine) } else { self.basis.method }
    }

    fn breach(&self, setting: &Setting, figures: &LongRunFigures) -> Option<RunBreach> {
        let end = figures.out_of_memory.as_ref()?;
        let reason = format!(
            "out of memory at step {} under {}: {} more with {} allocated and {} reserved, the limit is {}",
            end.step,
            setting.name,
            Bytes(end.requested_bytes),
            Bytes(end.allocated_bytes),
            Bytes(end.reserved_bytes),
            Bytes(self.limit_bytes)
        );
        Some(RunBreach { step: end.step, reason })
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
