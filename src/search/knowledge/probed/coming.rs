//! A coming run of one point, put together and played to allocators.
//!
//! Steps are micro-batches, as everywhere; cadences are updates. Probes at shapes of their own show how the micro-batches of
//! an update differ. Where those at batch sizes serve, their two stand for any number, since memory is the same: then an
//! update of the recording is so much shorter than one of the run, and cadences are stretched to the same number of steps.
//!
//! Replicas have parts of every batch, so each has another run. All are played, and the worst is the one that counts: a
//! rank that breaks ends the run of all.
//!
//! A model's samples come in the order that its seed decides. In which order a program takes its own nobody knows, and much
//! depends on it: a longest batch that comes first leaves room for all others, and one that comes late does not fit into
//! what they left. So several orders are drawn, and the worst counts.

use std::fmt;

use super::plays::{Steps, side_by_side};
use super::whole_run::{Basis, Play, RunTerms, Watch};
use crate::config::plan::SafetyPlan;
use crate::data::order::Shard;
use crate::data::run_shapes::{BatchShape, RunShapes};
use crate::memory::Trim;
use crate::memory::forecast::long_run::{Breach, LongRunFigures, Terms, judge, play};
use crate::memory::forecast::shape::{self, LongRun, Shape};
use crate::memory::forecast::{ForecastError, MIN_BATCH_SIZE, Method, Releases};
use crate::memory::policy::supervised::{Stop, Supervised};
use crate::memory::policy::{self, Policy, Settings};
use crate::trial::outlook::{PlayedRun, RunBreach};
use crate::trial::worker::TRIM_EVERY_STEPS;
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

/// A run that is coming.
pub(super) struct Coming<'a> {
    pub(super) run: &'a RunTerms,
    pub(super) point: &'a Point,
    pub(super) trim: Trim,
    /// Of rank 0. Where the order of its samples is not known, the one of the orders drawn that begins with the smallest
    /// batch, for memory to grow as much as it may.
    pub(super) shapes: RunShapes,
    /// The other orders that were drawn.
    pub(super) other_orders: Vec<RunShapes>,
    pub(super) basis: &'a Basis<'a>,
    pub(super) limit_bytes: u64,
    pub(super) safety: &'a SafetyPlan,
}

impl Coming<'_> {
    /// Plays it to each of the allocators. `None` where `watch` ended it, an error where it cannot be put together.
    pub(super) fn play(&self, settings: &[Setting], watch: &mut Watch<'_>) -> Option<Result<Play, String>> {
        let ranks = self.run.replicas.max(1);
        let orders: Vec<RunShapes> = std::iter::once(self.shapes).chain(self.other_orders.iter().copied()).collect();
        let runs_of_all: Vec<(usize, RunShapes)> =
            orders.iter().flat_map(|order| (0..ranks).map(|rank| (rank, self.of_rank(*order, rank)))).collect();
        let parts: Vec<(&Setting, &(usize, RunShapes))> =
            settings.iter().flat_map(|setting| runs_of_all.iter().map(move |run| (setting, run))).collect();
        let total = self.run.horizon_steps.saturating_mul(u32::try_from(parts.len()).unwrap_or(u32::MAX));
        let played = side_by_side(&parts, total, watch, |(setting, run), steps| self.rank(setting, **run, steps));
        let played: Vec<Result<RankPlay, String>> = played.into_iter().collect::<Option<_>>()?;
        let played: Vec<RankPlay> = match played.into_iter().collect() {
            Ok(played) => played,
            Err(reason) => return Some(Err(reason)),
        };
        let (mut found, mut runs) = (Found::default(), Vec::new());
        let mut played = played.into_iter();
        for setting in settings {
            let Some(worst) = played.by_ref().take(runs_of_all.len()).min_by_key(RankPlay::standing) else { continue };
            earliest(&mut found.breach, worst.breach);
            earliest(&mut found.doubt, worst.doubt);
            let rank = (ranks > 1).then_some(worst.rank);
            runs.push(PlayedRun { allocator: setting.name.clone(), rank, figures: worst.figures });
        }
        Some(Ok(Play { outlook: self.outlook(found, &runs), runs }))
    }

    /// The run of one rank under one allocator. `None` where somebody left.
    fn rank(
        &self,
        setting: &Setting,
        (rank, shapes): (usize, RunShapes),
        steps: &Steps,
    ) -> Option<Result<RankPlay, String>> {
        let own = self.sequence(shapes);
        let play = |limit_bytes| {
            let policy = policy::with_settings(setting.settings, limit_bytes);
            self.figures(&own, policy, &mut || steps.goes_on())
        };
        let figures = match play(self.limit_bytes)? {
            Ok(figures) => figures,
            Err(reason) => return Some(Err(reason)),
        };
        let (mut breach, mut doubt) = (self.breach(setting, &figures), None);
        if breach.is_some() && self.method() != Method::Exact {
            // Whether it would last with as much more memory as the forecast may be wrong about.
            let more = self.method().error_of_a_play().of(self.limit_bytes);
            let figures = play(self.limit_bytes.saturating_add(more))?;
            if figures.is_ok_and(|figures| self.breach(setting, &figures).is_none()) {
                doubt = breach.take();
            }
        }
        let [breach, doubt] = [breach, doubt].map(|breach| breach.map(|breach| self.told(&breach, setting, rank)));
        Some(Ok(RankPlay { rank, figures, breach, doubt }))
    }

    /// The batches of one rank.
    pub(super) fn of_rank(&self, order: RunShapes, rank: usize) -> RunShapes {
        order.with_shard(Shard { rank, world: self.run.replicas.max(1) })
    }

    /// The steps of a run with these batches.
    pub(super) fn sequence(&self, shapes: RunShapes) -> Sequence<'_> {
        Sequence { coming: self, shapes, len: self.run.horizon_steps as usize }
    }

    /// Plays batches to a policy. `None` where `goes_on`, which is asked at every step, says that they need not end; an
    /// error where they cannot be put together.
    pub(super) fn figures(
        &self,
        shapes: &dyn shape::RunShapes,
        policy: Box<dyn Policy>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Option<Result<LongRunFigures, String>> {
        let (stop, mut is_left) = (Stop::default(), false);
        let policy = Box::new(Supervised::new(policy, stop.clone()));
        let played = self.play_shapes(shapes, policy, &mut |_| {
            if !goes_on() {
                is_left = true;
                stop.want();
            }
        });
        (!is_left).then(|| played.map_err(|error| error.to_string()))
    }

    /// Plays the first steps of rank 0 to a policy.
    pub(super) fn play_steps(
        &self,
        steps: u32,
        policy: Box<dyn Policy>,
        on_step: &mut dyn FnMut(u32),
    ) -> Result<LongRunFigures, ForecastError> {
        let sequence = Sequence { len: steps as usize, ..self.sequence(self.of_rank(self.shapes, 0)) };
        self.play_shapes(&sequence, policy, on_step)
    }

    fn play_shapes(
        &self,
        shapes: &dyn shape::RunShapes,
        policy: Box<dyn Policy>,
        on_step: &mut dyn FnMut(u32),
    ) -> Result<LongRunFigures, ForecastError> {
        let long = LongRun {
            shapes,
            evaluation: self.shape(self.shapes.largest()),
            evaluate_every: self.cadence(self.run.evaluate_every),
            checkpoint_every: self.cadence(self.run.checkpoint_every),
            accumulation_steps: self.basis.varies.then_some(self.point.accumulation_steps.max(1)),
            releases: self.releases(),
        };
        Ok(play(self.basis.forecaster.events(long)?, policy, on_step))
    }

    /// When the run hands its cache back. Probes are too short to show it at its own pace.
    fn releases(&self) -> Releases {
        let update = u32::try_from(self.point.accumulation_steps).unwrap_or(u32::MAX);
        match self.trim {
            Trim::Never => Releases::AsRecorded,
            Trim::AfterUpdate => Releases::EverySteps(update),
            Trim::EveryK => Releases::EverySteps(TRIM_EVERY_STEPS),
            Trim::AfterEval => Releases::AfterEvaluation,
        }
    }

    /// Updates from one pass to the next, in the recording's own.
    fn cadence(&self, updates: Option<u32>) -> Option<usize> {
        let own = self.point.accumulation_steps.max(1);
        let recorded = if self.basis.varies { own } else { self.basis.forecaster.steps_of_an_update().max(1) };
        updates.map(|updates| (updates as usize).saturating_mul(own).div_ceil(recorded).max(1))
    }

    fn shape(&self, batch: BatchShape) -> Shape {
        let samples = batch.samples as u64;
        match batch.sample_size.filter(|_| self.basis.varies) {
            Some(size) => Shape::of([samples, size.value() as u64]),
            None => Shape::of([samples]),
        }
    }

    /// How sure the forecast is. A last batch of one sample takes other paths than the probes have seen.
    pub(super) fn method(&self) -> Method {
        let has_single = self.of_rank(self.shapes, 0).smallest_samples() < MIN_BATCH_SIZE;
        if has_single { self.basis.method.max(Method::Affine) } else { self.basis.method }
    }

    /// What breaks.
    pub(super) fn breach(&self, setting: &Setting, figures: &LongRunFigures) -> Option<Breach> {
        let terms = terms_of_a_play(self.safety, self.method(), self.run.horizon_steps);
        let threshold = if setting.rate_gates { terms.threshold } else { f64::INFINITY };
        judge(figures, &Terms { threshold, ..terms })
    }

    fn told(&self, breach: &Breach, setting: &Setting, rank: usize) -> RunBreach {
        let rank = if self.run.replicas > 1 { format!("rank {rank}, ") } else { String::new() };
        let reason = format!("{breach} ({rank}allocator {}, limit {})", setting.name, Bytes(self.limit_bytes));
        RunBreach { step: breach.step(), reason }
    }

    fn outlook(&self, found: Found, runs: &[PlayedRun]) -> Outlook {
        let figures = || runs.iter().map(|run| &run.figures);
        let highest = |of: fn(&LongRunFigures) -> u64| figures().map(of).max().unwrap_or(0);
        Outlook {
            method: self.method(),
            reason: match self.other_orders.len() {
                0 => self.basis.reason.clone(),
                others => {
                    format!("{}; of {} orders in which its samples may come, the worst", self.basis.reason, others + 1)
                }
            },
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

/// What a play of so many steps is held to. Of a forecast that may err, the rate says nothing yet.
pub(super) fn terms_of_a_play(safety: &SafetyPlan, method: Method, steps: u32) -> Terms {
    Terms {
        metric: safety.fragmentation_metric,
        threshold: if method == Method::Exact { safety.fragmentation_threshold.0 } else { f64::INFINITY },
        horizon_steps: steps,
    }
}

/// The shapes of its steps, each computed when it is asked for.
pub(super) struct Sequence<'a> {
    coming: &'a Coming<'a>,
    shapes: RunShapes,
    len: usize,
}

impl fmt::Debug for Sequence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sequence").field("shapes", &self.shapes).field("len", &self.len).finish()
    }
}

impl shape::RunShapes for Sequence<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn shape(&self, step: usize) -> Shape {
        self.coming.shape(self.shapes.at(step as u64))
    }

    fn period(&self) -> Option<usize> {
        // Each epoch has its own order, so lengths never come again, and sides are drawn without end.
        (!self.coming.basis.varies).then(|| self.shapes.sample_period())
    }
}

/// What one rank's run comes to.
#[derive(Debug)]
struct RankPlay {
    rank: usize,
    figures: LongRunFigures,
    breach: Option<RunBreach>,
    doubt: Option<RunBreach>,
}

impl RankPlay {
    /// What sorts the worst first: the one that breaks first, then the one that may, then the one that holds the most.
    fn standing(&self) -> (u32, u32, std::cmp::Reverse<u64>) {
        let step = |breach: &Option<RunBreach>| breach.as_ref().map_or(u32::MAX, |breach| breach.step);
        (step(&self.breach), step(&self.doubt), std::cmp::Reverse(self.figures.peak_reserved_bytes))
    }
}

/// What breaks, first of all.
#[derive(Debug, Default)]
struct Found {
    breach: Option<RunBreach>,
    doubt: Option<RunBreach>,
}

fn earliest(place: &mut Option<RunBreach>, breach: Option<RunBreach>) {
    let Some(breach) = breach else { return };
    if place.as_ref().is_none_or(|known| breach.step < known.step) {
        *place = Some(breach);
    }
}
