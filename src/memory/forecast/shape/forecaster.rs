//! Probes at a handful of shapes in, runs of any shapes out.

use std::collections::{HashMap, HashSet};

use super::{Axes, RunShapes, Shape, SizeFit, fit};
use crate::memory::event::Event;
use crate::memory::forecast::ForecastError;
use crate::memory::forecast::Probed;
use crate::memory::forecast::align::{Difference, align};
use crate::memory::forecast::basis::with_equal_updates;
use crate::memory::forecast::recording::{PartKind, Recording};
use crate::memory::forecast::report::Method;
use crate::memory::forecast::run::shaped::{ShapeFits, Shaped, Shapes};
use crate::memory::forecast::run::{Doubled, LongScript, LongTerms, Releases, RunEvents, steps_of_an_update};
use crate::memory::policy::FastHash;
use crate::units::plural;

/// Sizes that fit no polynomial may be this share of all bytes; where more is off, the probes did not really do the same.
const MAX_MISFIT_SHARE: f64 = 0.01;

/// A recording of a few updates at one shape.
#[derive(Clone, Copy, Debug)]
pub struct ShapeProbe<'a> {
    /// The shape of all its steps.
    pub shape: Shape,
    /// Everything the device saw, in order.
    pub events: &'a [Event],
}

/// Why there is no forecast.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Too few shapes.
    #[error(
        "{found} probes at different shapes, and {needed} are needed (hint: vary every axis, the batch from 2 on; the axes \
         are {axes})"
    )]
    TooFewProbes {
        /// Those there are.
        found: usize,
        /// Those it takes.
        needed: usize,
        /// What is to vary.
        axes: Axes,
    },
    /// A shape that has other axes.
    #[error("a probe has the shape `{shape}`, and the axes are {axes}")]
    OtherAxes {
        /// The shape.
        shape: Shape,
        /// The axes.
        axes: Axes,
    },
    /// An axis that does not vary.
    #[error(
        "all probes have `{axis} {value}`, which does not tell how sizes follow it (hint: vary it, or leave it out)"
    )]
    Constant {
        /// The name of the axis.
        axis: String,
        /// Its one value.
        value: u64,
    },
    /// The probes did other things.
    #[error("{0}")]
    Misaligned(Difference),
    /// There is nothing in them.
    #[error("the probes recorded no allocation")]
    NothingRecorded,
    /// Sizes that follow no polynomial, and are large.
    #[error("{count} allocations with {percent:.1} % of all bytes follow no polynomial of the shape")]
    Misfits {
        /// How many.
        count: usize,
        /// Their share.
        percent: Percent,
    },
}

/// A share for a message, in tenths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percent(u32);

impl Percent {
    fn of(part: u128, whole: u128) -> Self {
        Self(if whole == 0 { 0 } else { (part as f64 / whole as f64 * 1000.0).round() as u32 })
    }
}

impl std::fmt::Display for Percent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{}.{}", self.0 / 10, self.0 % 10))
    }
}

/// The long run that is to be forecast. Cadences count updates, as a training loop does, and 0 is never.
#[derive(Clone, Copy, Debug)]
pub struct LongRun<'a> {
    /// The shape of each step.
    pub shapes: &'a dyn RunShapes,
    /// The shape of an evaluation pass.
    pub evaluation: Shape,
    /// An evaluation pass after so many updates; `None` is none.
    pub evaluate_every: Option<usize>,
    /// A checkpoint after so many updates; `None` is none.
    pub checkpoint_every: Option<usize>,
    /// Micro-batches of an update; `None` is as recorded.
    pub accumulation_steps: Option<usize>,
    /// When the cache is handed back.
    pub releases: Releases,
}

impl<'a> LongRun<'a> {
    /// A run of these shapes without evaluation and checkpoints, its updates as recorded.
    pub fn of(shapes: &'a dyn RunShapes) -> Self {
        let evaluation = if shapes.is_empty() { Shape::of([1]) } else { shapes.shape(0) };
        let (evaluate_every, checkpoint_every, accumulation_steps) = (None, None, None);
        let releases = Releases::AsRecorded;
        Self { shapes, evaluation, evaluate_every, checkpoint_every, accumulation_steps, releases }
    }
}

/// Forecasts runs in which every step has a shape of its own.
#[derive(Clone, Debug)]
pub struct ShapeForecaster {
    axes: Axes,
    recording: Recording,
    fits: ShapeFits,
    /// The same with one more micro-step an update, where three were recorded.
    doubled: Option<(Recording, ShapeFits)>,
    batch_size: usize,
    distinct: usize,
    misfits: usize,
    worst_permille: u64,
}

impl ShapeForecaster {
    /// Aligns and fits probes whose shapes have these axes.
    pub fn new(axes: Axes, probes: &[ShapeProbe<'_>]) -> Result<Self, ShapeError> {
        let mut probes: Vec<&ShapeProbe<'_>> = probes.iter().collect();
        probes.sort_by_key(|probe| probe.shape);
        probes.dedup_by_key(|probe| probe.shape);
        let shapes: Vec<Shape> = probes.iter().map(|probe| probe.shape).collect();
        check(&axes, &shapes)?;
        let batch_of =
            |shape: &Shape| usize::try_from(shape.values().first().copied().unwrap_or(1)).unwrap_or(usize::MAX);
        let canonical = |probe: &&ShapeProbe<'_>| Probed {
            batch_size: batch_of(&probe.shape),
            recording: Recording::of(probe.events),
        };
        let recorded = with_equal_updates(probes.iter().map(canonical).collect());
        let [first, others @ ..] = recorded.as_slice() else { return Err(ShapeError::NothingRecorded) };
        if first.recording.allocations() == 0 {
            return Err(ShapeError::NothingRecorded);
        }
        for other in others {
            align([first.batch_size, other.batch_size], &first.recording, &other.recording)
                .map_err(ShapeError::Misaligned)?;
        }
        let columns: Vec<Vec<u64>> = recorded.iter().map(|probe| probe.recording.sizes().collect()).collect();
        let mut forecaster = Self {
            axes,
            recording: first.recording.clone().without_its_end(),
            fits: ShapeFits::default(),
            doubled: None,
            batch_size: first.batch_size,
            distinct: 0,
            misfits: 0,
            worst_permille: 0,
        };
        forecaster.fit_all(&shapes, &columns)?;
        forecaster.doubled = forecaster.double();
        Ok(forecaster)
    }

    fn fit_all(&mut self, shapes: &[Shape], columns: &[Vec<u64>]) -> Result<(), ShapeError> {
        let mut known: HashMap<Vec<u64>, u32> = HashMap::new();
        let (mut off_bytes, mut bytes) = (0_u128, 0_u128);
        for ordinal in 0..self.recording.allocations() {
            let sizes: Vec<u64> = columns.iter().map(|column| column.get(ordinal).copied().unwrap_or(0)).collect();
            let largest = u128::from(sizes.iter().copied().max().unwrap_or(0));
            let new = u32::try_from(self.fits.fits.len()).unwrap_or(u32::MAX);
            let place = *known.entry(sizes).or_insert_with_key(|sizes| {
                self.fits.fits.push(fit(shapes, sizes));
                new
            });
            self.fits.of.push(place);
            bytes += largest;
            match self.fits.fits.get(place as usize) {
                Some(SizeFit::Exact(_)) => {}
                Some(SizeFit::Bounded { off_permille, .. }) => {
                    self.misfits += 1;
                    self.worst_permille = self.worst_permille.max(*off_permille);
                    off_bytes += largest;
                }
                Some(SizeFit::Unknown) | None => {
                    self.misfits += 1;
                    self.worst_permille = 1000;
                    off_bytes += bytes;
                }
            }
        }
        self.distinct = self.fits.fits.len();
        if off_bytes as f64 > MAX_MISFIT_SHARE * bytes as f64 {
            return Err(ShapeError::Misfits { count: self.misfits, percent: Percent::of(off_bytes, bytes) });
        }
        Ok(())
    }

    fn double(&self) -> Option<(Recording, ShapeFits)> {
        let of = &self.fits.of;
        let Doubled { recording, of: stands_for } =
            Doubled::of(&self.recording, |one, other| of.get(one) == of.get(other))?;
        let of = stands_for.into_iter().map(|ordinal| of.get(ordinal).copied()).collect::<Option<_>>()?;
        Some((recording, ShapeFits { fits: self.fits.fits.clone(), of }))
    }

    /// `exact` where every size is a polynomial that a further probe confirmed, `affine` where some were bounded.
    pub fn method(&self) -> Method {
        if self.misfits == 0 { Method::Exact } else { Method::Affine }
    }

    /// How the sizes fit, for people.
    pub fn reason(&self) -> String {
        let allocations = self.recording.allocations();
        match self.misfits {
            0 => {
                let (subject, verb) =
                    (plural(allocations, "allocation"), if allocations == 1 { "follows" } else { "follow" });
                format!("all {subject} {verb} {} of the shape", plural(self.distinct, "polynomial"))
            }
            misfits => format!(
                "{misfits} of {allocations} allocations follow no polynomial of the shape; they are small, were off by up \
                 to {}.{} % in the probes and are taken as that much larger",
                self.worst_permille / 10,
                self.worst_permille % 10
            ),
        }
    }

    /// What its shapes have values of.
    pub fn axes(&self) -> &Axes {
        &self.axes
    }

    /// Micro-batches of an update.
    pub fn steps_of_an_update(&self) -> usize {
        steps_of_an_update(&self.recording)
    }

    /// Events of the largest step that was recorded: what a step of a run takes to play.
    pub fn events_of_a_step(&self) -> usize {
        let steps = self.recording.parts().iter().filter(|part| part.kind == PartKind::Step);
        steps.map(|part| part.events.len()).max().unwrap_or(0)
    }

    /// Refuses a run with a shape at which some allocation has no size.
    fn check_shapes(&self, run: &LongRun<'_>) -> Result<(), ForecastError> {
        let steps = run.shapes.period().unwrap_or(usize::MAX).min(run.shapes.len());
        let passes = [run.evaluate_every, run.checkpoint_every].into_iter().flatten().any(|every| every > 0);
        let shapes = (0..steps).map(|step| run.shapes.shape(step)).chain(passes.then_some(run.evaluation));
        let mut seen = HashSet::<Shape, FastHash>::default();
        for shape in shapes.filter(|shape| seen.insert(*shape)) {
            if shape.axes() != self.axes.count() {
                return Err(ForecastError::OtherAxes { axes: self.axes.clone(), shape });
            }
            if self.fits.fits.iter().any(|fit| !fit.has_size_at(&shape)) {
                return Err(ForecastError::NoSize { shape: self.axes.named(shape) });
            }
        }
        Ok(())
    }

    /// The events of a long run, made one at a time. Its steps are rounded up to whole updates.
    pub fn events<'a>(&'a self, run: LongRun<'a>) -> Result<RunEvents<'a>, ForecastError> {
        let recorded = self.steps_of_an_update();
        let steps_of_an_update = run.accumulation_steps.unwrap_or(recorded).max(1);
        let (recording, fits) = match &self.doubled {
            Some((recording, fits)) if steps_of_an_update > recorded => (recording, fits),
            _ => (&self.recording, &self.fits),
        };
        let terms = LongTerms {
            batch_size: self.batch_size,
            updates: run.shapes.len().div_ceil(steps_of_an_update),
            accumulation_steps: run.accumulation_steps,
            evaluate_every: run.evaluate_every,
            checkpoint_every: run.checkpoint_every,
        };
        let script = LongScript::new(recording, terms)?;
        self.check_shapes(&run)?;
        let shapes = Shapes { steps: run.shapes, evaluation: run.evaluation };
        Ok(RunEvents::shaped(recording, Shaped::new(fits, shapes), script, run.releases))
    }
}

/// Refuses shapes that cannot determine how sizes follow these axes.
fn check(axes: &Axes, shapes: &[Shape]) -> Result<(), ShapeError> {
    if let Some(shape) = shapes.iter().find(|shape| shape.axes() != axes.count()) {
        return Err(ShapeError::OtherAxes { shape: *shape, axes: axes.clone() });
    }
    let needed = axes.count() + 2;
    if shapes.len() < needed {
        return Err(ShapeError::TooFewProbes { found: shapes.len(), needed, axes: axes.clone() });
    }
    for (place, name) in axes.names().enumerate() {
        let mut values = shapes.iter().filter_map(|shape| shape.values().get(place).copied());
        if let Some(value) = values.next()
            && values.all(|other| other == value)
        {
            return Err(ShapeError::Constant { axis: name.to_owned(), value });
        }
    }
    Ok(())
}
