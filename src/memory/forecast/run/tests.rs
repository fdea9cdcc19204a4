//! Runs put together from a small recording.

use super::*;
use crate::memory::event::{Event, Mark, Ordinal, Phase, Stream};
use crate::memory::forecast::size::Size;

fn alloc(ordinal: u64, bytes: u64) -> Event {
    Event::Alloc { ordinal: Ordinal(ordinal), bytes, stream: Stream(0) }
}

fn free(ordinal: u64) -> Event {
    Event::Free { ordinal: Ordinal(ordinal) }
}

fn step(number: u32) -> Event {
    Event::Mark(Mark::Step(number))
}

fn optimizer() -> Event {
    Event::Mark(Mark::Phase(Phase::Optimizer))
}

/// A weight; a first step that makes optimizer state and keeps its loss; two steady steps that drop the loss of the
/// step before; an evaluation that drops the last loss.
fn training() -> Recording {
    Recording::of(&[
        alloc(0, 100),
        step(0),
        alloc(1, 10),
        alloc(2, 1),
        free(1),
        optimizer(),
        alloc(3, 200),
        step(1),
        alloc(4, 10),
        free(2),
        alloc(5, 1),
        free(4),
        optimizer(),
        step(2),
        alloc(6, 10),
        free(5),
        alloc(7, 1),
        free(6),
        optimizer(),
        Event::Mark(Mark::Phase(Phase::Evaluation)),
        alloc(8, 5),
        free(7),
        free(8),
    ])
}

fn events(recording: &Recording, shape: RunShape) -> Vec<Event> {
    RunEvents::new(recording, None, script(recording, shape).unwrap()).collect()
}

fn shape(updates: Option<usize>, partial_batch_size: Option<usize>) -> RunShape {
    RunShape { batch_size: 8, updates, partial_batch_size }
}

fn windows(recording: &Recording, shape: RunShape) -> Vec<(Window, usize)> {
    script(recording, shape).unwrap().iter().map(|part| (part.window, part.batch_size)).collect()
}

#[test]
fn the_recorded_run_is_the_recording() {
    let recording = training();
    assert_eq!(events(&recording, RunShape::recorded(8)), recording.events());
    assert_eq!(
        windows(&recording, RunShape::recorded(8)),
        [
            (Window::Build, 8),
            (Window::FirstStep, 8),
            (Window::SteadyStep, 8),
            (Window::SteadyStep, 8),
            (Window::Evaluation, 8)
        ]
    );
}

#[test]
fn longer_and_shorter_runs_repeat_the_last_update() {
    let recording = training();
    for updates in [2, 3, 4, 100] {
        let run = events(&recording, shape(Some(updates), None));
        let steps = run.iter().filter(|event| matches!(event, Event::Mark(Mark::Step(_)))).count();
        assert_eq!(steps, updates);
        // All that lives at the end is the weight and the optimizer state, as in the recording.
        let mut live: Vec<u64> = Vec::new();
        for event in &run {
            match event {
                Event::Alloc { ordinal, .. } => live.push(ordinal.0),
                Event::Free { ordinal } => {
                    let place = live.iter().position(|one| *one == ordinal.0).expect("a free of something live");
                    live.swap_remove(place);
                }
                Event::FreeRequested { .. } | Event::Mark(_) => {}
            }
        }
        assert_eq!(live.len(), 2, "{updates} updates");
        assert!(run.len() >= 9 + 6 * (updates - 1));
    }
    assert_eq!(
        windows(&recording, shape(Some(1), None)),
        [(Window::Build, 8), (Window::FirstStep, 8), (Window::Evaluation, 8)]
    );
}

#[test]
fn a_partial_batch_comes_between_full_ones() {
    let recording = training();
    let run = windows(&recording, shape(None, Some(3)));
    assert_eq!(run[3..], [(Window::PartialStep, 3), (Window::SteadyStep, 8), (Window::Evaluation, 8)]);
    let sizes = vec![Size::Affine { constant: 0, per_sample: 1 }; recording.allocations()];
    let script = script(&recording, shape(None, Some(3))).unwrap();
    let partial: Vec<u64> = RunEvents::new(&recording, Some(&sizes), script)
        .filter_map(|event| match event {
            Event::Alloc { bytes, .. } => Some(bytes),
            _ => None,
        })
        .collect();
    assert_eq!(partial, [8, 8, 8, 8, 8, 8, 3, 3, 8, 8, 8]);
}

#[test]
fn accumulated_steps_repeat_together() {
    let mut events = vec![alloc(0, 100)];
    for number in 0..6 {
        events.extend([step(number), alloc(10 + u64::from(number), 10), free(10 + u64::from(number))]);
        if number % 2 == 1 {
            events.push(optimizer());
        }
    }
    // A seventh step whose update never came.
    events.push(step(6));
    let recording = Recording::of(&events);
    let count = |shape| windows(&recording, shape).len();
    assert_eq!((count(shape(None, None)), count(shape(Some(3), None)), count(shape(Some(5), None))), (8, 7, 11));
    let partial = windows(&recording, shape(Some(3), Some(2)));
    assert_eq!(partial[5..7], [(Window::SteadyStep, 8), (Window::PartialStep, 2)]);
}

#[test]
fn runs_that_cannot_be_made_are_refused() {
    let unmarked = Recording::of(&[alloc(0, 1)]);
    assert_eq!(script(&unmarked, shape(None, Some(3))), Err(ForecastError::NoSteadyStep));
    assert_eq!(script(&unmarked, RunShape::recorded(1)), Err(ForecastError::BatchTooSmall { batch_size: 1 }));
    assert_eq!(script(&training(), shape(None, Some(1))), Err(ForecastError::BatchTooSmall { batch_size: 1 }));
    // Two updates that differ: the second may not be steady yet.
    let two = with_updates(&training(), 8, 2).unwrap();
    assert_eq!(script(&two, shape(Some(3), None)), Err(ForecastError::NoSteadyStep));
    assert!(script(&training(), shape(Some(10), None)).is_ok());
    let endless = script(&training(), shape(Some(usize::MAX), None));
    assert_eq!(endless, Err(ForecastError::TooManyUpdates { updates: usize::MAX }));
}

#[test]
fn a_cut_recording_is_that_of_a_shorter_run() {
    let cut = with_updates(&training(), 8, 2).unwrap();
    let shorter = Recording::of(&[
        alloc(0, 100),
        step(0),
        alloc(1, 10),
        alloc(2, 1),
        free(1),
        optimizer(),
        alloc(3, 200),
        step(1),
        alloc(4, 10),
        free(2),
        alloc(5, 1),
        free(4),
        optimizer(),
        Event::Mark(Mark::Phase(Phase::Evaluation)),
        alloc(6, 5),
        free(5),
        free(6),
    ]);
    assert_eq!(cut, shorter);
}
