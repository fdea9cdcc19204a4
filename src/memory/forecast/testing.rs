//! A made program for tests: what it does is known, and so is where it fragments.

use std::collections::VecDeque;

use super::shape::{Axes, Shape, ShapeForecaster, ShapeProbe};
use crate::memory::event::{Event, Mark, Ordinal, Phase, Stream};
use crate::memory::trace::file::{TraceHeader, TraceWriter};
use crate::units::MIB;

/// Where it is probed: samples and length.
pub(crate) const PROBES: [(u64, u64); 7] = [(2, 64), (3, 64), (2, 96), (3, 96), (2, 160), (4, 128), (3, 200)];

/// Runs out under the defaults, and not with segments that grow.
pub(crate) const FRAGMENTING: Program = Program { staged_bytes: 2048, ahead: 2, activation_bytes: 4096 };

/// A made program. A step computes on tensors of its shape and drops them; what is staged stays on for some steps and lies
/// between them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    /// Bytes of a staged batch for each token.
    pub(crate) staged_bytes: u64,
    /// Steps that a batch is staged ahead.
    pub(crate) ahead: usize,
    /// Bytes of each activation for each token.
    pub(crate) activation_bytes: u64,
}

impl Program {
    pub(crate) fn record(self, shapes: &[(u64, u64)]) -> Vec<Event> {
        let mut recorder = Recorder::default();
        recorder.alloc(30 * MIB);
        let mut staged = VecDeque::new();
        let mut loads = shapes.iter();
        for (step, (b, t)) in shapes.iter().enumerate() {
            recorder.mark(Mark::Step(u32::try_from(step).unwrap()));
            while staged.len() <= self.ahead {
                recorder.mark(Mark::Phase(Phase::Load));
                let (b, t) = loads.next().unwrap_or(&shapes[shapes.len() - 1]);
                staged.push_back(recorder.alloc(self.staged_bytes * b * t));
            }
            recorder.mark(Mark::Phase(Phase::Forward));
            let kept: Vec<Ordinal> =
                (1..=4).map(|layer| recorder.alloc(layer * self.activation_bytes * b * t)).collect();
            let scores = recorder.alloc(8 * b * t * t);
            recorder.mark(Mark::Phase(Phase::Backward));
            recorder.free(scores);
            kept.into_iter().rev().for_each(|one| recorder.free(one));
            recorder.mark(Mark::Phase(Phase::Optimizer));
            if step == 0 {
                recorder.alloc(60 * MIB);
            }
            recorder.free(staged.pop_front().unwrap());
        }
        recorder.events
    }

    pub(crate) fn forecaster(self) -> ShapeForecaster {
        let shapes = PROBES;
        let recordings: Vec<_> = shapes.iter().map(|shape| self.record(&[*shape; 5])).collect();
        let probes: Vec<_> = shapes
            .iter()
            .zip(&recordings)
            .map(|((b, t), events)| ShapeProbe { shape: Shape::of([*b, *t]), events })
            .collect();
        ShapeForecaster::new(Axes::batch_and_length(), &probes).unwrap()
    }
}

/// What a made program allocates and frees, on one stream.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) events: Vec<Event>,
    next: u64,
}

impl Recorder {
    /// One whose allocations have numbers from here on.
    pub(crate) fn from_number(next: u64) -> Self {
        Self { next, ..Self::default() }
    }

    pub(crate) fn alloc(&mut self, bytes: u64) -> Ordinal {
        let ordinal = Ordinal(self.next);
        self.next += 1;
        self.events.push(Event::Alloc { ordinal, bytes, stream: Stream(0) });
        ordinal
    }

    pub(crate) fn free(&mut self, ordinal: Ordinal) {
        self.events.push(Event::Free { ordinal });
    }

    pub(crate) fn mark(&mut self, mark: Mark) {
        self.events.push(Event::Mark(mark));
    }
}

/// The traces in `tests/fixtures/forecast/made/`, which the command line is tested with, are this program's.
/// `BATCHTUNE_WRITE_FIXTURES=1 cargo test --lib made_program` writes them anew.
#[test]
fn the_fixtures_are_of_the_made_program() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/forecast/made");
    for (b, t) in PROBES {
        let mut writer = TraceWriter::new(Vec::new(), &TraceHeader::default()).unwrap();
        writer.write(&FRAGMENTING.record(&[(b, t); 5])).unwrap();
        let (trace, path) = (writer.finish().unwrap(), folder.join(format!("b{b}_t{t}.trace")));
        if std::env::var_os("BATCHTUNE_WRITE_FIXTURES").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &trace).unwrap();
        }
        assert!(std::fs::read(&path).unwrap() == trace, "{}", path.display());
    }
}
