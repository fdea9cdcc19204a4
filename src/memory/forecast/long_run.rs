//! Playing a run of thousands of steps to an allocator, and what is kept of it.
//!
//! A soak sees fifty steps. Fragmentation of varying shapes grows over hundreds, until the cache holds a block for
//! everything that comes, or until the limit. Here all steps are played, as events made one at a time: the live blocks
//! are held and nothing else of the past. Of the series no more than [`MAX_POINTS`] points are kept; where there are more
//! steps, a point stands for several, with the highest of their figures.

use serde::{Deserialize, Serialize};

use super::run::RunEvents;
use crate::memory::event::{Event, Mark};
use crate::memory::fragmentation::peak_rate;
use crate::memory::player::Player;
use crate::memory::policy::Policy;

/// The most points of a series.
pub const MAX_POINTS: usize = 1024;

/// Steps at the start that the rate leaves out: the first ones make the optimizer's state.
const WARM_UP_STEPS: u32 = 2;

/// The figures of some steps in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LongRunPoint {
    /// The first of the steps, counted from 0.
    pub step: u32,
    /// The highest A in them.
    pub peak_allocated_bytes: u64,
    /// The highest V in them.
    pub peak_reserved_bytes: u64,
}

/// The step in which a request did not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LongRunEnd {
    /// Counted from 0.
    pub step: u32,
    /// The request.
    pub requested_bytes: u64,
    /// A then.
    pub allocated_bytes: u64,
    /// V then.
    pub reserved_bytes: u64,
}

/// What a long run takes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LongRunFigures {
    /// Steps that were finished.
    pub steps: u32,
    /// The highest A.
    pub peak_allocated_bytes: u64,
    /// The highest V.
    pub peak_reserved_bytes: u64,
    /// 1 − A / V of the highest after the first steps: what the run came to hold and never needed at one moment.
    pub fragmentation: Option<f64>,
    /// The last step in which V rose to a new height. Long before the end, the run has reached its plateau.
    pub last_growth_step: u32,
    /// Requests to the device for memory, and returns of it.
    pub device_calls: u64,
    /// Requests that released the cache first.
    pub retries: u64,
    /// Where it ran out of memory, if it did; the figures are of the steps before.
    pub out_of_memory: Option<LongRunEnd>,
    /// The series.
    pub points: Vec<LongRunPoint>,
}

/// Plays a run to its end, or until a request does not fit. `on_step` hears of every step that begins.
pub fn play(run: RunEvents<'_>, policy: Box<dyn Policy>, on_step: &mut dyn FnMut(u32)) -> LongRunFigures {
    let mut player = Player::new(policy);
    let mut figures = LongRunFigures::default();
    let mut series = Series::default();
    let mut step: Option<u32> = None;
    let mut steady = (0, 0);
    let mut close = |player: &mut Player, figures: &mut LongRunFigures, step: u32| {
        let state = player.state();
        if state.peak_reserved_bytes > figures.peak_reserved_bytes {
            figures.last_growth_step = step;
        }
        figures.peak_allocated_bytes = figures.peak_allocated_bytes.max(state.peak_allocated_bytes);
        figures.peak_reserved_bytes = figures.peak_reserved_bytes.max(state.peak_reserved_bytes);
        if step >= WARM_UP_STEPS {
            steady = (steady.0.max(state.peak_allocated_bytes), steady.1.max(state.peak_reserved_bytes));
        }
        series.push(LongRunPoint {
            step,
            peak_allocated_bytes: state.peak_allocated_bytes,
            peak_reserved_bytes: state.peak_reserved_bytes,
        });
        player.start_window();
    };
    for event in run {
        if let Event::Mark(Mark::Step(number)) = event {
            if let Some(step) = step {
                close(&mut player, &mut figures, step);
                figures.steps = step.saturating_add(1);
            } else {
                // Building the model is no step.
                player.start_window();
            }
            step = Some(number);
            on_step(number);
        }
        player.play(&event);
        if let Some(overrun) = player.take_overrun() {
            figures.out_of_memory = Some(LongRunEnd {
                step: step.unwrap_or(0),
                requested_bytes: overrun.error.requested_bytes,
                allocated_bytes: overrun.error.allocated_bytes,
                reserved_bytes: overrun.error.reserved_bytes,
            });
            break;
        }
    }
    if let Some(step) = step {
        close(&mut player, &mut figures, step);
        figures.steps = step.saturating_add(u32::from(figures.out_of_memory.is_none()));
    }
    let counts = player.policy().counts();
    figures.device_calls = counts.segments_allocated.saturating_add(counts.segments_freed);
    figures.retries = counts.retries;
    figures.fragmentation = peak_rate(steady.0, steady.1);
    figures.points = series.points;
    figures
}

/// Points, thinned out as they come.
#[derive(Debug)]
struct Series {
    points: Vec<LongRunPoint>,
    /// Steps of a point.
    stride: u32,
    /// Steps of the last point so far.
    filled: u32,
}

impl Default for Series {
    fn default() -> Self {
        Self { points: Vec::new(), stride: 1, filled: 1 }
    }
}

impl Series {
    fn push(&mut self, point: LongRunPoint) {
        if self.filled < self.stride
            && let Some(last) = self.points.last_mut()
        {
            *last = joined(*last, point);
            self.filled += 1;
            return;
        }
        if self.points.len() == MAX_POINTS {
            self.points = self.points.chunks(2).filter_map(|pair| pair.iter().copied().reduce(joined)).collect();
            self.stride = self.stride.saturating_mul(2);
        }
        self.points.push(point);
        self.filled = 1;
    }
}

fn joined(first: LongRunPoint, second: LongRunPoint) -> LongRunPoint {
    LongRunPoint {
        step: first.step,
        peak_allocated_bytes: first.peak_allocated_bytes.max(second.peak_allocated_bytes),
        peak_reserved_bytes: first.peak_reserved_bytes.max(second.peak_reserved_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::event::{Ordinal, Phase, Stream};
    use crate::memory::forecast::shape::{LongRun, Shape, ShapeForecaster, ShapeProbe};
    use crate::memory::policy::native::Native;
    use crate::units::MIB;

    /// A program: a weight of 4 MiB; each step loads a batch of B·T tokens (staged `ahead` steps before it is used),
    /// computes B·T KiB and B·T² bytes, and drops all; optimizer state in the first.
    fn record(shapes: &[(u64, u64)], ahead: usize) -> Vec<Event> {
        let mut program = Program::default();
        program.alloc(4 * MIB);
        let mut staged = std::collections::VecDeque::new();
        let mut loads = shapes.iter();
        for (step, (b, t)) in shapes.iter().enumerate() {
            program.mark(Mark::Step(u32::try_from(step).unwrap()));
            while staged.len() <= ahead {
                program.mark(Mark::Phase(Phase::Load));
                let (b, t) = loads.next().unwrap_or(&shapes[shapes.len() - 1]);
                staged.push_back(program.alloc(4 * b * t));
            }
            program.mark(Mark::Phase(Phase::Forward));
            let (x, scores) = (program.alloc(1024 * b * t), program.alloc(b * t * t));
            program.mark(Mark::Phase(Phase::Backward));
            let gradient = program.alloc(1024 * b * t);
            program.free(scores);
            program.free(x);
            program.mark(Mark::Phase(Phase::Optimizer));
            if step == 0 {
                program.alloc(8 * MIB);
            }
            program.free(gradient);
            program.free(staged.pop_front().unwrap());
        }
        program.events
    }

    #[derive(Default)]
    struct Program {
        events: Vec<Event>,
        next: u64,
    }

    impl Program {
        fn alloc(&mut self, bytes: u64) -> Ordinal {
            let ordinal = Ordinal(self.next);
            self.next += 1;
            self.events.push(Event::Alloc { ordinal, bytes, stream: Stream(0) });
            ordinal
        }
        fn free(&mut self, ordinal: Ordinal) {
            self.events.push(Event::Free { ordinal });
        }
        fn mark(&mut self, mark: Mark) {
            self.events.push(Event::Mark(mark));
        }
    }

    fn forecaster(ahead: usize) -> ShapeForecaster {
        let shapes = [(2, 64), (3, 64), (2, 96), (3, 96), (2, 160), (4, 128), (3, 200)];
        let recordings: Vec<_> = shapes.iter().map(|shape| record(&[*shape; 4], ahead)).collect();
        let probes: Vec<_> = shapes
            .iter()
            .zip(&recordings)
            .map(|((b, t), events)| ShapeProbe { shape: Shape::new(&[*b, *t]).unwrap(), events })
            .collect();
        ShapeForecaster::new(&probes).unwrap()
    }

    /// Lengths of 40 to 500 in no order.
    fn lengths(count: u64) -> Vec<(u64, u64)> {
        (0..count).map(|step| (8, 40 + step * 7919 % 461)).collect()
    }

    fn shapes(run: &[(u64, u64)]) -> Vec<Shape> {
        run.iter().map(|(b, t)| Shape::new(&[*b, *t]).unwrap()).collect()
    }

    #[test]
    fn every_event_of_a_run_with_varying_shapes_is_that_of_the_real_one_however_far_batches_are_staged() {
        // As far as the probes' four updates can show: the last one has to free what an update before it loaded.
        for ahead in [0, 1, 2] {
            let (forecaster, run) = (forecaster(ahead), lengths(60));
            let shapes = shapes(&run);
            let long = LongRun { shapes: &shapes, evaluation: shapes[0], evaluate_every: None };
            let forecast: Vec<Event> = forecaster.events(long).unwrap().collect();
            let real = crate::memory::forecast::Recording::of(&record(&run, ahead));
            let forecast = crate::memory::forecast::Recording::of(&forecast);
            let allocations = 2 + 4 * 4 + ahead;
            let reason = format!("all {allocations} allocations follow 5 polynomials of the shape");
            assert_eq!(forecaster.reason(), reason);
            // Not `assert_eq`: there are hundreds of events to print.
            assert!(forecast == real, "{ahead} ahead");
        }
    }

    #[test]
    fn the_figures_are_those_of_the_real_run_and_bounded() {
        let (forecaster, run) = (forecaster(1), lengths(5_000));
        let shapes = shapes(&run);
        let long = LongRun { shapes: &shapes, evaluation: shapes[0], evaluate_every: None };
        let mut heard = 0;
        let figures = play(forecaster.events(long).unwrap(), Box::new(Native::new(u64::MAX)), &mut |_| heard += 1);
        assert_eq!((figures.steps, heard), (5_000, 5_000));
        assert!(figures.points.len() <= MAX_POINTS && figures.points.len() > MAX_POINTS / 4);
        assert!(figures.points.windows(2).all(|pair| pair[0].step < pair[1].step));
        let mut player = Player::new(Box::new(Native::new(u64::MAX)));
        player.play_all(&record(&run, 1));
        assert_eq!(figures.peak_reserved_bytes, player.state().peak_reserved_bytes);
        assert_eq!(
            figures.points.iter().map(|point| point.peak_reserved_bytes).max(),
            Some(figures.peak_reserved_bytes)
        );
        assert!(figures.last_growth_step < 4_000 && figures.out_of_memory.is_none(), "{}", figures.last_growth_step);
    }

    /// The same program with an evaluation pass after every so many steps, whose batch has the longest shape.
    fn record_with_evaluation(shapes: &[(u64, u64)], every: usize, longest: (u64, u64)) -> Vec<Event> {
        let plain = record(shapes, 1);
        let mut program = Program { events: Vec::new(), next: 1 << 32 };
        let mut steps = 0;
        for event in plain {
            if let Event::Mark(Mark::Step(number)) = event {
                if number > 0 && (number as usize).is_multiple_of(every) {
                    program.mark(Mark::Phase(Phase::Load));
                    let (b, t) = longest;
                    let batch = program.alloc(4 * b * t);
                    program.mark(Mark::Phase(Phase::Evaluation));
                    let x = program.alloc(1024 * b * t);
                    program.free(x);
                    program.free(batch);
                }
                steps += 1;
            }
            program.events.push(event);
        }
        assert_eq!(steps, shapes.len());
        program.events
    }

    #[test]
    fn evaluation_passes_come_where_they_are_asked_for_and_staged_batches_outlive_them() {
        let shapes_of_probes = [(2, 64), (3, 64), (2, 96), (3, 96), (2, 160), (4, 128), (3, 200)];
        // The first step loads two batches, so the third one is the first like the one before it.
        let recordings: Vec<_> =
            shapes_of_probes.iter().map(|shape| record_with_evaluation(&[*shape; 6], 4, *shape)).collect();
        let probes: Vec<_> = shapes_of_probes
            .iter()
            .zip(&recordings)
            .map(|((b, t), events)| ShapeProbe { shape: Shape::of([*b, *t]), events })
            .collect();
        let forecaster = ShapeForecaster::new(&probes).unwrap();
        let run = lengths(40);
        let shapes = shapes(&run);
        let long = LongRun { shapes: &shapes, evaluation: Shape::of([8, 500]), evaluate_every: Some(7) };
        let forecast = crate::memory::forecast::Recording::collect(forecaster.events(long).unwrap());
        let real = crate::memory::forecast::Recording::of(&record_with_evaluation(&run, 7, (8, 500)));
        assert!(forecast == real);
    }

    #[test]
    fn a_run_that_does_not_fit_ends_at_its_step() {
        let (forecaster, run) = (forecaster(0), lengths(300));
        let shapes = shapes(&run);
        let long = LongRun { shapes: &shapes, evaluation: shapes[0], evaluate_every: None };
        let limit_bytes = 26 * MIB;
        let figures = play(forecaster.events(long).unwrap(), Box::new(Native::new(limit_bytes)), &mut |_| ());
        let end = figures.out_of_memory.expect("8 × 500 tokens take more");
        let mut player = Player::new(Box::new(Native::new(limit_bytes)));
        let mut step = 0;
        for event in record(&run, 0) {
            if let Event::Mark(Mark::Step(number)) = event {
                step = number;
            }
            player.play(&event);
            if player.take_overrun().is_some() {
                break;
            }
        }
        assert_eq!((end.step, figures.steps), (step, step));
    }
}
