//! A made-up training step of 10,000 events, recorded at a handful of shapes.

use batchtune::memory::forecast::shape::{Axes, RunShapes, Shape, ShapeError, ShapeForecaster, ShapeProbe};
use batchtune::memory::{Event, Mark, Ordinal, Phase, Stream};

/// Allocations of a step.
const ALLOCATIONS: u64 = 5_000;
const PROBES: [[u64; 2]; 7] = [[2, 64], [3, 64], [2, 96], [3, 96], [2, 160], [4, 128], [3, 200]];

/// Lengths of 64 to 512 in no order, computed when they are asked for.
#[derive(Debug)]
pub(crate) struct Lengths {
    /// How many.
    pub(crate) steps: usize,
}

impl RunShapes for Lengths {
    fn len(&self) -> usize {
        self.steps
    }

    fn shape(&self, step: usize) -> Shape {
        let drawn = (step as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        Shape::of([8, 64 + drawn % 449])
    }
}

/// Forecasts the program's runs.
pub(crate) fn forecaster() -> Result<ShapeForecaster, ShapeError> {
    let recordings: Vec<Vec<Event>> = PROBES.iter().map(|[b, t]| record(*b, *t)).collect();
    let probes: Vec<ShapeProbe<'_>> =
        PROBES.iter().zip(&recordings).map(|(shape, events)| ShapeProbe { shape: Shape::of(*shape), events }).collect();
    ShapeForecaster::new(Axes::batch_and_length(), &probes)
}

/// Four steps: half of the allocations are activations that live until the backward pass comes back to them, or are dropped
/// at once; the other half are gradients, each dropped for the next.
fn record(b: u64, t: u64) -> Vec<Event> {
    let (mut events, mut next) = (Vec::new(), 0);
    let mut alloc = |events: &mut Vec<Event>, bytes: u64| {
        let ordinal = Ordinal(next);
        next += 1;
        events.push(Event::Alloc { ordinal, bytes, stream: Stream(0) });
        ordinal
    };
    for layer in 0..200 {
        alloc(&mut events, (layer % 7 + 1) << 18);
    }
    for step in 0..4 {
        events.push(Event::Mark(Mark::Step(step)));
        events.push(Event::Mark(Mark::Phase(Phase::Forward)));
        let bytes = |place: u64| match place % 6 {
            0 | 1 => 2048 * b * t,
            2 => 16 * b * t * t,
            3 => 8192 * b * t,
            4 => 4 * b * t,
            _ => 4096,
        };
        let mut held = Vec::new();
        for place in 0..ALLOCATIONS / 2 {
            let ordinal = alloc(&mut events, bytes(place));
            if place % 3 == 1 {
                events.push(Event::Free { ordinal });
            } else {
                held.push((ordinal, place));
            }
        }
        events.push(Event::Mark(Mark::Phase(Phase::Backward)));
        let mut gradient = None;
        for place in 0..ALLOCATIONS / 2 {
            let next = alloc(&mut events, bytes(place + 1));
            events.extend(gradient.replace(next).map(|ordinal| Event::Free { ordinal }));
            events.extend(held.pop().map(|(ordinal, _)| Event::Free { ordinal }));
        }
        events.extend(gradient.map(|ordinal| Event::Free { ordinal }));
        events.push(Event::Mark(Mark::Phase(Phase::Optimizer)));
    }
    events
}
