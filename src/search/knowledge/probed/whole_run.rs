//! The whole run of a point, played: what the probes at a handful of shapes, and the very sequence of shapes that the
//! coming run will have, say of it.
//!
//! Where samples vary in length or images in their side, probes at shapes of their own are fitted over batch and length or
//! side. Where they do not, the probes that foretell batch sizes serve, with the batch as the one axis: an epoch's smaller last batch, evaluation
//! passes and checkpoints still vary. The run is played under the device's own allocator and, where the planned one is
//! another, under that too.
//!
//! A forecast that may err rules a point out only if the run breaks with that much more memory; what breaks under C itself
//! is a doubt, and said.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::Probed;
use super::coming::{Coming, Setting};
use crate::data::run_shapes::RunShapes;
use crate::data::{DataSpec, SampleSize};
use crate::memory::forecast::shape::{Axes, LENGTH, SIDE, Shape, ShapeError, ShapeForecaster, ShapeProbe};
use crate::memory::forecast::{Forecaster, MIN_BATCH_SIZE, Method, RunShape};
use crate::memory::{AllocatorKind, Event, FragmentationSource, policy};
use crate::search::History;
use crate::search::knowledge::Kind;
use crate::search::shape_probes::{self, ProbeShape};
use crate::trial::outlook::PlayedRun;
use crate::trial::spec::SHAPE_PROBE_ACCUMULATION;
use crate::trial::{Outlook, Point};

/// The batch of the third probe where samples do not vary in size: two that fit exactly foretell it.
const THIRD_BATCH: usize = 4;

/// Orders that are drawn where nobody knows the one of the coming run.
const ORDERS: u64 = 3;

/// The run that is coming.
#[derive(Clone, Debug)]
pub struct RunTerms {
    /// Steps to play.
    pub horizon_steps: u32,
    /// On which data.
    pub data: DataSpec,
    /// Seeds the order, the lengths and the sides.
    pub seed: u64,
    /// Updates from one evaluation pass to the next.
    pub evaluate_every: Option<u32>,
    /// Updates from one checkpoint to the next.
    pub checkpoint_every: Option<u32>,
    /// Replicas, each with a part of every batch.
    pub replicas: usize,
}

/// Samples to train on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrainingSamples {
    /// So many.
    Counted(usize),
    /// Nobody counts them.
    Uncounted,
}

impl TrainingSamples {
    /// How many there are taken to be: epochs outlast the horizon where nobody counts.
    pub(super) fn count(self) -> usize {
        match self {
            Self::Counted(count) => count,
            Self::Uncounted => 1 << 40,
        }
    }

    pub(super) fn is_counted(self) -> bool {
        self != Self::Uncounted
    }
}

/// How far plays are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlayedSteps {
    /// Steps so far, under all allocators together.
    pub step: u32,
    /// Of how many.
    pub total: u32,
}

/// What a play gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Play {
    /// What it comes to.
    pub outlook: Outlook,
    /// Its figures under each allocator.
    pub runs: Vec<PlayedRun>,
}

/// Whoever follows plays and may end them. It is told now and then.
pub type Watch<'a> = dyn FnMut(PlayedSteps) -> ControlFlow<()> + 'a;

/// What is known for playing runs.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// Samples in the data to train on.
    pub(super) samples: Option<TrainingSamples>,
    /// Recordings at shapes of their own, by their point without its batch size, until there are enough of them.
    recordings: BTreeMap<Point, BTreeMap<ProbeShape, Vec<Event>>>,
    /// What was made of them, or why nothing was.
    forecasters: BTreeMap<Point, Result<ShapeForecaster, String>>,
}

/// The points that one set of recordings speaks for.
fn family(point: &Point) -> Point {
    let accumulation_steps = point.accumulation_steps.clamp(1, SHAPE_PROBE_ACCUMULATION);
    let (loader_workers, prefetch_depth, alloc_conf) = (0, 0, None);
    Point { batch_size: 0, accumulation_steps, loader_workers, prefetch_depth, alloc_conf, ..point.clone() }
}

impl Probed {
    /// Notes how many samples there are to train on.
    pub fn count_samples(&mut self, samples: usize) {
        self.runs.samples = Some(TrainingSamples::Counted(samples));
    }

    /// Notes that nobody counts the samples of the program.
    pub fn leave_samples_uncounted(&mut self) {
        self.runs.samples = Some(TrainingSamples::Uncounted);
    }

    /// Adds the recording of a probe at a shape of its own.
    pub fn add_shape_probe(&mut self, point: &Point, sample_size: SampleSize, events: Vec<Event>) {
        let shapes = self.probe_shapes().unwrap_or_default();
        let family = family(point);
        let recordings = self.runs.recordings.entry(family.clone()).or_default();
        recordings.insert((point.batch_size, sample_size), events);
        if !shapes.iter().all(|shape| recordings.contains_key(shape)) {
            return;
        }
        let probes: Vec<ShapeProbe<'_>> = recordings
            .iter()
            .map(|((batch_size, sample_size), events)| ShapeProbe {
                shape: Shape::of([*batch_size as u64, sample_size.value() as u64]),
                events,
            })
            .collect();
        let forecaster = Axes::batch().and(axis(sample_size)).map_err(|error| error.to_string()).and_then(|axes| {
            ShapeForecaster::new(axes, &probes).map_err(|error| format!("{error}{}", hint(&error, sample_size)))
        });
        self.runs.recordings.remove(&family);
        self.runs.forecasters.insert(family, forecaster);
    }

    /// The shapes of the probes; none where samples do not vary in size.
    fn probe_shapes(&self) -> Result<Vec<ProbeShape>, String> {
        self.terms.run.as_ref().map_or_else(|| Ok(Vec::new()), |run| shape_probes::shapes(&run.data))
    }

    /// Whether samples have lengths of their own, and are padded to the longest of their batch.
    pub fn varies_in_length(&self) -> bool {
        self.probe_shapes().is_ok_and(|shapes| matches!(shapes.first(), Some((_, SampleSize::Tokens(_)))))
    }

    pub(super) fn is_playable(&self, point: &Point) -> bool {
        // Without a probe nothing is known of small searches, and a batch of 1 takes other paths.
        let varies = self.probe_shapes().map_or(true, |shapes| !shapes.is_empty());
        self.terms.run.is_some() && point.batch_size >= MIN_BATCH_SIZE && (varies || !self.recordings.is_empty())
    }

    /// Plays the whole run of a point. `None` where `watch` ended it.
    pub fn play(&self, point: &Point, history: &History, watch: &mut Watch<'_>) -> Option<Play> {
        let unknown = |reason: String| Some(Play { outlook: Outlook::unknown(reason), runs: Vec::new() });
        let Some(run) = &self.terms.run else { return unknown("no run is to be forecast".to_owned()) };
        let Some(samples) = self.runs.samples else {
            return unknown("it is not known how many samples there are to train on".to_owned());
        };
        let basis = match self.basis(point, history) {
            Ok(basis) => basis,
            Err(reason) => return unknown(reason),
        };
        let settings = self.settings_of_run(point);
        match self.coming(point, (run, samples), &basis).play(&settings, watch)? {
            Ok(play) => Some(play),
            Err(reason) => unknown(reason),
        }
    }

    /// The run of a point over so many samples, put together.
    pub(super) fn coming<'a>(
        &'a self,
        point: &'a Point,
        (run, samples): (&'a RunTerms, TrainingSamples),
        basis: &'a Basis<'a>,
    ) -> Coming<'a> {
        let order = |seed| RunShapes::new(&run.data, samples.count(), point.batch_size, run.seed.wrapping_add(seed));
        let is_drawn = basis.varies && !samples.is_counted();
        let mut orders: Vec<RunShapes> = (0..if is_drawn { ORDERS } else { 1 }).map(order).collect();
        orders.sort_by_key(|order| order.at(0).sample_size.map(SampleSize::value));
        let mut orders = orders.into_iter();
        let shapes = orders.next().unwrap_or_else(|| order(0));
        let (limit_bytes, safety, trim) = (self.terms.limit_bytes, &self.terms.safety, point.trim);
        Coming { run, point, trim, shapes, other_orders: orders.collect(), basis, limit_bytes, safety }
    }

    /// The allocators that a run is played to: the device's own, and the planned one where that is another and counts.
    pub(super) fn settings_of_run(&self, point: &Point) -> Vec<Setting> {
        let (terms, source) = (&self.terms, self.terms.safety.fragmentation_source);
        let conf = point.alloc_conf.clone().or_else(|| terms.alloc_conf.clone());
        let is_another = terms.planned != AllocatorKind::Auto && terms.planned != terms.allocator;
        let own = Setting {
            name: conf.filter(|conf| !conf.is_empty()).unwrap_or_else(|| terms.allocator.to_string()),
            settings: self.settings(point.alloc_conf.as_deref()),
            rate_gates: !is_another || source != FragmentationSource::Shadow,
        };
        let planned =
            Setting { name: terms.planned.to_string(), settings: policy::settings_of(terms.planned), rate_gates: true };
        let counts = is_another && source != FragmentationSource::Device;
        std::iter::once(own).chain(counts.then_some(planned)).collect()
    }

    /// What a run of a point is made of.
    pub(super) fn basis(&self, point: &Point, history: &History) -> Result<Basis<'_>, String> {
        if self.probe_shapes()?.is_empty() {
            return self.basis_of_batches(point);
        }
        match self.runs.forecasters.get(&family(point)) {
            Some(Ok(forecaster)) => Ok(Basis {
                method: forecaster.method(),
                reason: forecaster.reason(),
                varies: true,
                forecaster: Cow::Borrowed(forecaster),
            }),
            Some(Err(reason)) => Err(reason.clone()),
            None => Err(failed_probe(history)),
        }
    }

    /// The same from the probes that foretell batch sizes.
    pub(super) fn basis_of_batches(&self, point: &Point) -> Result<Basis<'_>, String> {
        let own = Kind::of(point);
        // With accumulation a step holds a sum of gradients, so it bounds one without.
        let kinds = [own, Kind { accumulation: 2, ..own }];
        let known =
            kinds.into_iter().find_map(|kind| Some((kind, self.recordings.get(&kind)?, self.forecasters.get(&kind)?)));
        let Some((kind, recordings, forecaster)) = known else {
            return Err("no probes of its kind have run".to_owned());
        };
        let third = third_probe(forecaster).filter(|_| recordings.len() == 2);
        let third = third.iter().map(|events| (THIRD_BATCH, events));
        let recordings = recordings.iter().map(|(batch_size, events)| (*batch_size, events)).chain(third);
        let probes: Vec<ShapeProbe<'_>> = recordings
            .map(|(batch_size, events)| ShapeProbe { shape: Shape::of([batch_size as u64]), events })
            .collect();
        let fitted = ShapeForecaster::new(Axes::batch(), &probes).map_err(|error| error.to_string())?;
        let (method, reason) = if kind == own {
            (fitted.method(), fitted.reason())
        } else {
            (Method::Affine, "the probes accumulate gradients and the run does not".to_owned())
        };
        Ok(Basis { method, reason, varies: false, forecaster: Cow::Owned(fitted) })
    }
}

/// The recording of a third batch, as two exact ones foretell it.
fn third_probe(forecaster: &Forecaster) -> Option<Vec<Event>> {
    if forecaster.method() != Method::Exact {
        return None;
    }
    Some(forecaster.events(RunShape::recorded(THIRD_BATCH)).ok().flatten()?.collect())
}

/// The axis that sizes of samples are values of.
fn axis(size: SampleSize) -> &'static str {
    match size {
        SampleSize::Tokens(_) => LENGTH,
        SampleSize::Side(_) => SIDE,
    }
}

/// What may help where probes at sides of their own do not fit together.
fn hint(error: &ShapeError, size: SampleSize) -> &'static str {
    match (error, size) {
        (ShapeError::Misaligned(_) | ShapeError::Misfits { .. }, SampleSize::Side(_)) => {
            " (hint: where the strides of a net do not divide a side it may take another path; \
             `data.image_size.multiple_of` is to be a multiple of them all, such as 32)"
        }
        _ => "",
    }
}

/// Why there are not enough recordings at shapes of their own.
fn failed_probe(history: &History) -> String {
    let probes = history.trials().iter().map(|trial| &trial.record).filter(|record| record.spec.is_shape_probe());
    let failed = probes.into_iter().rfind(|record| !record.completed());
    failed.map_or_else(
        || "the probes' recordings cannot be read".to_owned(),
        |record| {
            let size = record.spec.sample_size.map_or_else(String::new, |size| format!(" and {size}"));
            format!("the probe at batch size {}{size}: {}", record.spec.point.batch_size, record.outcome)
        },
    )
}

/// What a run is made of.
pub(super) struct Basis<'a> {
    pub(super) forecaster: Cow<'a, ShapeForecaster>,
    pub(super) method: Method,
    pub(super) reason: String,
    /// Whether the size of samples is an axis.
    pub(super) varies: bool,
}
