//! Runs of a small made-up program, recorded and forecast.

use super::*;
use crate::memory::event::Phase;
use crate::memory::forecast::shape::{Axes, LongRun, Shape, ShapeForecaster, ShapeProbe};
use crate::memory::forecast::testing::Recorder;
use crate::memory::player::Player;
use crate::memory::policy::native::Native;
use crate::units::MIB;

/// A program: a weight of 4 MiB; each step loads a batch of B·T tokens (staged `ahead` steps before it is used),
/// computes B·T KiB and B·T² bytes, and drops all; optimizer state in the first.
fn record(shapes: &[(u64, u64)], ahead: usize) -> Vec<Event> {
    let mut program = Recorder::default();
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

fn forecaster(ahead: usize) -> ShapeForecaster {
    let shapes = [(2, 64), (3, 64), (2, 96), (3, 96), (2, 160), (4, 128), (3, 200)];
    let recordings: Vec<_> = shapes.iter().map(|shape| record(&[*shape; 4], ahead)).collect();
    let probes: Vec<_> = shapes
        .iter()
        .zip(&recordings)
        .map(|((b, t), events)| ShapeProbe { shape: Shape::new(&[*b, *t]).unwrap(), events })
        .collect();
    ShapeForecaster::new(Axes::batch_and_length(), &probes).unwrap()
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
        let long = LongRun::of(&shapes);
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
    let long = LongRun::of(&shapes);
    let mut heard = 0;
    let figures = play(forecaster.events(long).unwrap(), Box::new(Native::new(u64::MAX)), &mut |_| heard += 1);
    assert_eq!((figures.steps, heard), (5_000, 5_000));
    assert!(figures.points.len() <= MAX_POINTS && figures.points.len() > MAX_POINTS / 4);
    assert!(figures.points.windows(2).all(|pair| pair[0].step < pair[1].step));
    let mut player = Player::new(Box::new(Native::new(u64::MAX)));
    player.play_all(&record(&run, 1));
    assert_eq!(figures.peak_reserved_bytes, player.state().peak_reserved_bytes);
    assert_eq!(figures.points.iter().map(|point| point.peak_reserved_bytes).max(), Some(figures.peak_reserved_bytes));
    assert!(figures.last_growth_step < 4_000 && figures.out_of_memory.is_none(), "{}", figures.last_growth_step);
}

/// The same program with an evaluation pass after every so many steps, whose batch has the longest shape.
fn record_with_evaluation(shapes: &[(u64, u64)], every: usize, longest: (u64, u64)) -> Vec<Event> {
    let plain = record(shapes, 1);
    let mut program = Recorder::from_number(1 << 32);
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
    let forecaster = ShapeForecaster::new(Axes::batch_and_length(), &probes).unwrap();
    let run = lengths(40);
    let shapes = shapes(&run);
    let long = LongRun { evaluation: Shape::of([8, 500]), evaluate_every: Some(7), ..LongRun::of(&shapes) };
    let forecast = crate::memory::forecast::Recording::collect(forecaster.events(long).unwrap());
    let real = crate::memory::forecast::Recording::of(&record_with_evaluation(&run, 7, (8, 500)));
    assert!(forecast == real);
}

#[test]
fn a_run_that_does_not_fit_ends_at_its_step() {
    let (forecaster, run) = (forecaster(0), lengths(300));
    let shapes = shapes(&run);
    let long = LongRun::of(&shapes);
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
