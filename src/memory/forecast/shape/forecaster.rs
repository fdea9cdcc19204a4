//! Probes at a handful of shapes in, runs of any shapes out.

use std::collections::HashSet;

use super::fitted::Fitted;
use super::{Axes, Misalignment, RunShapes, Shape, ShapeError};
use crate::memory::event::Event;
use crate::memory::forecast::ForecastError;
use crate::memory::forecast::Probed;
use crate::memory::forecast::align::align;
use crate::memory::forecast::basis::with_equal_updates;
use crate::memory::forecast::recording::{PartKind, Recording};
use crate::memory::forecast::report::Method;
use crate::memory::forecast::run::shaped::{ShapeFits, Shaped, Shapes};
use crate::memory::forecast::run::{Doubled, LongScript, LongTerms, Releases, RunEvents, steps_of_an_update};
use crate::memory::policy::FastHash;

/// A recording of a few updates at one shape.
#[derive(Clone, Copy, Debug)]
pub struct ShapeProbe<'a> {
    /// The shape of all its steps.
    pub shape: Shape,
    /// Everything the device saw, in order.
    pub events: &'a [Event],
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
    fitted: Fitted,
    /// The same with one more micro-step an update, where three were recorded.
    doubled: Option<(Recording, ShapeFits)>,
    batch_size: usize,
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
        for (other, shape) in others.iter().zip(shapes.iter().skip(1)) {
            let aligned = align([first.batch_size, other.batch_size], &first.recording, &other.recording);
            aligned.map_err(|difference| {
                let shapes = [shapes.first().unwrap_or(shape), shape].map(|shape| axes.named(*shape));
                ShapeError::Misaligned(Box::new(Misalignment { shapes, difference }))
            })?;
        }
        let columns: Vec<Vec<u64>> = recorded.iter().map(|probe| probe.recording.sizes().collect()).collect();
        let recording = first.recording.clone().without_its_end();
        let fitted = Fitted::of(&axes, &shapes, recording.allocations(), &columns)?;
        let mut forecaster = Self { axes, recording, fitted, doubled: None, batch_size: first.batch_size };
        forecaster.doubled = forecaster.double();
        Ok(forecaster)
    }

    fn double(&self) -> Option<(Recording, ShapeFits)> {
        let ShapeFits { fits, of } = &self.fitted.fits;
        let Doubled { recording, of: stands_for } =
            Doubled::of(&self.recording, |one, other| of.get(one) == of.get(other))?;
        let of = stands_for.into_iter().map(|ordinal| of.get(ordinal).copied()).collect::<Option<_>>()?;
        Some((recording, ShapeFits { fits: fits.clone(), of }))
    }

    /// `exact` where every size is a polynomial that a further probe confirmed, `affine` where some were bounded.
    pub fn method(&self) -> Method {
        if self.fitted.unsure() == 0 { Method::Exact } else { Method::Affine }
    }

    /// How the sizes fit, for people.
    pub fn reason(&self) -> String {
        self.fitted.to_string()
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
            if self.fitted.fits.fits.iter().any(|fit| !fit.has_size_at(&shape)) {
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
            _ => (&self.recording, &self.fitted.fits),
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
    for (place, name) in axes.names().enumerate() {
        let mut values = shapes.iter().filter_map(|shape| shape.values().get(place).copied());
        if let Some(value) = values.next()
            && shapes.len() > 1
            && values.all(|other| other == value)
        {
            return Err(ShapeError::Constant { axis: name.to_owned(), value });
        }
    }
    let needed = axes.count() + 2;
    if shapes.len() < needed {
        return Err(ShapeError::TooFewProbes { found: shapes.len(), needed, axes: axes.clone() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Mark;
    use crate::memory::forecast::testing::Recorder;

    /// Four steps of a convolution over padded images.
    fn record(b: u64, h: u64, w: u64) -> Vec<Event> {
        let mut recorder = Recorder::default();
        recorder.alloc(1 << 20);
        for step in 0..4 {
            recorder.mark(Mark::Step(step));
            let made = [4 * 3 * b * h * w, 4 * 16 * b * (h + 2) * (w + 2), 4 * 16 * b * h * w]
                .map(|bytes| recorder.alloc(bytes));
            made.into_iter().rev().for_each(|one| recorder.free(one));
        }
        recorder.events
    }

    fn forecaster(axes: Axes, shapes: &[Vec<u64>]) -> Result<ShapeForecaster, ShapeError> {
        let at = |shape: &[u64], place: usize| shape.get(place).or(shape.last()).copied().unwrap();
        let recordings: Vec<_> = shapes.iter().map(|shape| record(shape[0], at(shape, 1), at(shape, 2))).collect();
        let probes = shapes.iter().zip(&recordings);
        let probes = probes.map(|(shape, events)| ShapeProbe { shape: Shape::new(shape).unwrap(), events });
        ShapeForecaster::new(axes, &probes.collect::<Vec<_>>())
    }

    fn images() -> Axes {
        Axes::of(["batch", "height", "width"]).unwrap()
    }

    fn eight() -> Vec<Vec<u64>> {
        let shapes = [
            [2, 64, 40],
            [3, 64, 72],
            [2, 96, 56],
            [3, 97, 33],
            [5, 160, 96],
            [4, 128, 49],
            [7, 200, 65],
            [3, 33, 120],
        ];
        shapes.map(Vec::from).to_vec()
    }

    #[test]
    fn images_of_two_sides_are_forecast_from_eight_probes() {
        let fitted = forecaster(images(), &eight()).unwrap();
        assert_eq!((fitted.method(), fitted.axes()), (Method::Exact, &images()), "{}", fitted.reason());
        let run = vec![Shape::of([8, 224, 320]), Shape::of([8, 320, 224])];
        let events = fitted.events(LongRun::of(&run)).unwrap();
        let sizes: Vec<u64> = Recording::collect(events).sizes().collect();
        assert_eq!(sizes[..4], Recording::of(&record(8, 224, 320)).sizes().collect::<Vec<_>>()[..4]);
        let other = vec![Shape::of([8, 224])];
        let refused = fitted.events(LongRun::of(&other)).unwrap_err().to_string();
        assert_eq!(refused, "the run has the shape `8 × 224`, and the recordings the axes batch, height, width");
        let large = vec![Shape::of([8, 1 << 24, 1 << 24])];
        let refused = fitted.events(LongRun::of(&large)).unwrap_err().to_string();
        assert!(refused.starts_with("the sizes at `batch 8, height 16777216, width 16777216`"), "{refused}");
    }

    #[test]
    fn an_axis_that_tells_too_little_is_named() {
        let refused = |axes: Axes, shapes: &[Vec<u64>]| forecaster(axes, shapes).unwrap_err().to_string();
        let of_one_height: Vec<_> = eight().iter().map(|shape| vec![shape[0], 64, shape[2]]).collect();
        assert!(refused(images(), &of_one_height).starts_with("all probes have `height 64`"));
        let square: Vec<_> = eight().iter().map(|shape| vec![shape[0], shape[1], shape[1]]).collect();
        let told = refused(images(), &square);
        assert!(told.contains("more than one polynomial of the shape: the probes do not tell `"), "{told}");
        assert!(told.ends_with("(hint: vary height and width more, and each apart from the others)"), "{told}");
        // As one axis they are told.
        let sides: Vec<_> = eight().iter().map(|shape| vec![shape[0], shape[1]]).collect();
        assert_eq!(forecaster(Axes::of(["batch", "side"]).unwrap(), &sides).unwrap().method(), Method::Exact);
        let told = refused(images(), &eight()[..7]);
        assert!(told.contains("with up to 3 terms, which is all that 7 probes tell (hint: 8 probes tell 4)"), "{told}");
        let told = refused(images(), &eight()[..4]);
        assert!(told.starts_with("4 probes at different shapes, and 5 are needed"), "{told}");
        assert!(told.ends_with("the axes are batch, height, width)"), "{told}");
        let told = refused(Axes::batch_and_length(), &eight());
        assert_eq!(told, "a probe has the shape `2 × 64 × 40`, and the axes are batch, length");
    }
}
