//! Whole runs: accumulation, evaluation and checkpoints on cadences of their own, against the program run for real.

use proptest::prelude::*;

use super::*;
use crate::memory::Trim;
use crate::memory::event::{Ordinal, Phase};
use crate::memory::forecast::shape::{Axes, LongRun, Shape, ShapeForecaster, ShapeProbe};
use crate::memory::forecast::testing::Recorder;
use crate::memory::forecast::{ForecastError, Recording, Releases};
use crate::memory::policy::native::Native;
use crate::memory::policy::{ReleaseThreshold, Settings};
use crate::units::MIB;

const PROBES: [[u64; 2]; 5] = [[2, 64], [3, 64], [2, 96], [4, 128], [3, 200]];
const LONGEST: [u64; 2] = [8, 500];

/// A program that trains: gradients of 3 MiB are summed over the micro-steps of an update, the loss of a step lives until
/// the next one has its own, the optimizer makes its state in the first update.
#[derive(Clone, Copy, Debug)]
struct Training {
    accumulation: usize,
    evaluate: Option<usize>,
    checkpoint: Option<usize>,
    /// Where both come in one place only, after this many updates.
    both_after: Option<usize>,
    trim: Trim,
}

/// Steps between two releases of [`Trim::EveryK`].
const EVERY_STEPS: u32 = 5;

const PLAIN: Training =
    Training { accumulation: 1, evaluate: None, checkpoint: None, both_after: None, trim: Trim::Never };

impl Training {
    fn record(self, shapes: &[[u64; 2]], longest: [u64; 2]) -> Vec<Event> {
        let mut program = Recorder::default();
        program.alloc(3 * MIB);
        let (mut loss, mut sum): (Option<Ordinal>, Option<Ordinal>) = (None, None);
        for (step, [b, t]) in shapes.iter().enumerate() {
            program.mark(Mark::Step(u32::try_from(step).unwrap()));
            program.mark(Mark::Phase(Phase::Load));
            let batch = program.alloc(4 * b * t);
            program.mark(Mark::Phase(Phase::Forward));
            let (x, scores) = (program.alloc(2048 * b * t), program.alloc(16 * b * t * t));
            let new = program.alloc(512);
            program.mark(Mark::Phase(Phase::Backward));
            let gradient = program.alloc(3 * MIB);
            program.free(scores);
            sum = Some(match sum {
                Some(before) => {
                    let added = program.alloc(3 * MIB);
                    program.free(before);
                    program.free(gradient);
                    added
                }
                None => gradient,
            });
            program.free(x);
            loss.replace(new).into_iter().for_each(|before| program.free(before));
            let updates = (step + 1) / self.accumulation;
            let ends_update = (step + 1).is_multiple_of(self.accumulation);
            if ends_update {
                program.mark(Mark::Phase(Phase::Optimizer));
                if updates == 1 {
                    program.alloc(6 * MIB);
                }
                sum.take().into_iter().for_each(|sum| program.free(sum));
            }
            program.free(batch);
            let releases = match self.trim {
                Trim::Never | Trim::AfterEval => false,
                Trim::AfterUpdate => ends_update,
                Trim::EveryK => (step + 1).is_multiple_of(EVERY_STEPS as usize),
            };
            if releases {
                program.mark(Mark::Trim);
            }
            let is_due = |every: Option<usize>| {
                ends_update
                    && (self.both_after == Some(updates) || every.is_some_and(|every| updates.is_multiple_of(every)))
            };
            if is_due(self.evaluate) {
                program.mark(Mark::Phase(Phase::Load));
                let [b, t] = longest;
                let batch = program.alloc(4 * b * t);
                program.mark(Mark::Phase(Phase::Evaluation));
                let x = program.alloc(2048 * b * t);
                program.free(x);
                program.free(batch);
                if self.trim == Trim::AfterEval {
                    program.mark(Mark::Trim);
                }
            }
            if is_due(self.checkpoint) {
                program.mark(Mark::Phase(Phase::Checkpoint));
                for bytes in [3 * MIB, 6 * MIB] {
                    let copy = program.alloc(bytes);
                    program.free(copy);
                }
            }
        }
        program.events
    }

    fn forecaster(self, updates: usize) -> ShapeForecaster {
        let steps = updates * self.accumulation;
        let recordings: Vec<_> = PROBES.iter().map(|shape| self.record(&vec![*shape; steps], *shape)).collect();
        let probes: Vec<_> = PROBES
            .iter()
            .zip(&recordings)
            .map(|(shape, events)| ShapeProbe { shape: Shape::of(*shape), events })
            .collect();
        ShapeForecaster::new(Axes::batch_and_length(), &probes).unwrap()
    }
}

/// Lengths of 40 to 500 in no order.
fn lengths(count: usize) -> Vec<[u64; 2]> {
    (0..count as u64).map(|step| [8, 40 + step * 7919 % 461]).collect()
}

fn shapes(run: &[[u64; 2]]) -> Vec<Shape> {
    run.iter().copied().map(Shape::of).collect()
}

/// Whether the run that `probes` foretell is the one that `real` does.
fn is_foretold(forecaster: &ShapeForecaster, real: Training, updates: usize) -> bool {
    let run = lengths(updates * real.accumulation);
    let shapes = shapes(&run);
    let long = LongRun {
        evaluation: Shape::of(LONGEST),
        evaluate_every: real.evaluate,
        checkpoint_every: real.checkpoint,
        accumulation_steps: Some(real.accumulation),
        releases: match real.trim {
            Trim::Never => Releases::AsRecorded,
            Trim::AfterUpdate => Releases::EverySteps(u32::try_from(real.accumulation).unwrap()),
            Trim::EveryK => Releases::EverySteps(EVERY_STEPS),
            Trim::AfterEval => Releases::AfterEvaluation,
        },
        ..LongRun::of(&shapes)
    };
    let forecast = Recording::collect(forecaster.events(long).unwrap());
    forecast == Recording::of(&real.record(&run, LONGEST))
}

#[test]
fn evaluation_and_checkpoints_come_on_their_own_cadences_and_together() {
    for accumulation in [1, 2, 3] {
        let apart =
            Training { accumulation, evaluate: Some(4), checkpoint: Some(6), both_after: None, trim: Trim::Never };
        let together = Training { evaluate: Some(99), checkpoint: Some(99), both_after: Some(4), ..apart };
        for (probes, updates) in [(apart, 7), (together, 6)] {
            let forecaster = probes.forecaster(updates);
            for (evaluate, checkpoint) in [(Some(2), Some(3)), (Some(4), None), (None, Some(2)), (Some(3), Some(3))] {
                let real = Training { accumulation, evaluate, checkpoint, both_after: None, trim: Trim::Never };
                assert!(is_foretold(&forecaster, real, 25), "{real:?} from {probes:?}");
            }
        }
    }
}

#[test]
fn an_evaluation_pass_after_every_update_is_foretold_from_the_very_first_on() {
    for accumulation in [1, 2, 3] {
        for both_after in [None, Some(4)] {
            let every = if both_after.is_some() { Some(99) } else { Some(4) };
            let probes = Training { accumulation, evaluate: every, checkpoint: every, both_after, trim: Trim::Never };
            let real = Training { evaluate: Some(1), checkpoint: Some(2), both_after: None, ..probes };
            assert!(is_foretold(&probes.forecaster(6), real, 30), "{real:?} from {probes:?}");
        }
    }
}

#[test]
fn releases_of_the_cache_come_where_training_has_them_at_any_pace() {
    let probes = Training { accumulation: 2, evaluate: Some(4), checkpoint: Some(4), ..PLAIN };
    for trim in [Trim::Never, Trim::AfterUpdate, Trim::EveryK, Trim::AfterEval] {
        // The probes release as the run does, or not at all.
        for probed in [trim, Trim::Never] {
            let forecaster = Training { trim: probed, ..probes }.forecaster(6);
            let real = Training { evaluate: Some(3), checkpoint: Some(2), trim, ..probes };
            assert!(is_foretold(&forecaster, real, 25), "{real:?}, probed with {probed}");
        }
    }
}

#[test]
fn three_recorded_micro_steps_make_any_larger_number_of_them() {
    let probes =
        Training { accumulation: 3, evaluate: Some(4), checkpoint: Some(99), both_after: Some(4), trim: Trim::Never };
    let forecaster = probes.forecaster(6);
    for accumulation in [3, 4, 5, 8] {
        let real =
            Training { accumulation, evaluate: Some(3), checkpoint: Some(2), both_after: None, trim: Trim::Never };
        assert!(is_foretold(&forecaster, real, 10), "{accumulation} micro-steps");
    }
}

/// When a program drops its gradients: PyTorch's `zero_grad` stands in either place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ZeroGrad {
    BehindTheUpdate,
    BeforeTheNext,
}

/// A program as PyTorch trains: the gradients that the first micro-step of an update makes are those that the others add to.
fn adding_in_place(shapes: &[[u64; 2]], accumulation: usize, zero_grad: ZeroGrad) -> Vec<Event> {
    let mut program = Recorder::default();
    for bytes in [3 * MIB, 5 * MIB] {
        program.alloc(bytes);
    }
    let mut gradients: Vec<Ordinal> = Vec::new();
    for (step, [b, t]) in shapes.iter().enumerate() {
        program.mark(Mark::Step(u32::try_from(step).unwrap()));
        let is_first = step.is_multiple_of(accumulation);
        if is_first {
            gradients.drain(..).for_each(|gradient| program.free(gradient));
        }
        program.mark(Mark::Phase(Phase::Forward));
        let x = program.alloc(2048 * b * t);
        program.mark(Mark::Phase(Phase::Backward));
        for bytes in [3 * MIB, 5 * MIB] {
            let gradient = program.alloc(bytes);
            if is_first { gradients.push(gradient) } else { program.free(gradient) }
        }
        program.free(x);
        if (step + 1).is_multiple_of(accumulation) {
            program.mark(Mark::Phase(Phase::Optimizer));
            if step + 1 == accumulation {
                program.alloc(16 * MIB);
            }
            if zero_grad == ZeroGrad::BehindTheUpdate {
                gradients.drain(..).for_each(|gradient| program.free(gradient));
            }
        }
    }
    program.events
}

#[test]
fn gradients_that_the_first_of_many_micro_steps_leaves_are_dropped_where_the_program_drops_them() {
    for zero_grad in [ZeroGrad::BehindTheUpdate, ZeroGrad::BeforeTheNext] {
        for recorded in [3, 4] {
            let recordings = PROBES.map(|shape| adding_in_place(&vec![shape; 6 * recorded], recorded, zero_grad));
            let probes = PROBES.iter().zip(&recordings);
            let probes: Vec<_> =
                probes.map(|(shape, events)| ShapeProbe { shape: Shape::of(*shape), events }).collect();
            let forecaster = ShapeForecaster::new(Axes::batch_and_length(), &probes).unwrap();
            for accumulation in [recorded, 5, 8, 40] {
                let run = lengths(6 * accumulation);
                let shapes = shapes(&run);
                let long = LongRun { accumulation_steps: Some(accumulation), ..LongRun::of(&shapes) };
                let forecast = Recording::collect(forecaster.events(long).unwrap());
                let real = Recording::of(&adding_in_place(&run, accumulation, zero_grad));
                assert!(forecast == real, "{accumulation} from {recorded}, dropped {zero_grad:?}");
            }
        }
    }
}

#[test]
fn other_accumulations_than_the_recording_can_give_are_refused() {
    let refused = |recorded: usize, wanted: usize| {
        let forecaster = Training { accumulation: recorded, ..PLAIN }.forecaster(4);
        let shapes = shapes(&lengths(24));
        let long = LongRun { accumulation_steps: Some(wanted), ..LongRun::of(&shapes) };
        forecaster.events(long).err()
    };
    for (recorded, wanted) in [(1, 2), (2, 3), (2, 1), (3, 2)] {
        assert_eq!(refused(recorded, wanted), Some(ForecastError::AccumulationNotRecorded { recorded, wanted }));
    }
    for (recorded, wanted) in [(1, 1), (2, 2), (3, 3), (3, 7), (4, 6)] {
        assert_eq!(refused(recorded, wanted), None, "{recorded} for {wanted}");
    }
    let message = refused(2, 8).unwrap().to_string();
    assert!(message.contains("record three micro-steps an update"), "{message}");
}

#[test]
fn what_was_never_recorded_is_not_put_into_a_run() {
    let forecaster = PLAIN.forecaster(4);
    let shapes = shapes(&lengths(8));
    let error = forecaster.events(LongRun { checkpoint_every: Some(2), ..LongRun::of(&shapes) }).err();
    assert_eq!(
        error.unwrap().to_string(),
        "the probes hold no checkpoint (hint: record one that does, or leave it out of the run)"
    );
    assert!(forecaster.events(LongRun { checkpoint_every: Some(0), ..LongRun::of(&shapes) }).is_ok());
}

/// Shapes that come again, and say so or not.
#[derive(Debug)]
struct Cycle {
    shapes: Vec<Shape>,
    steps: usize,
    tells: Option<usize>,
}

impl crate::memory::forecast::shape::RunShapes for Cycle {
    fn len(&self) -> usize {
        self.steps
    }
    fn shape(&self, step: usize) -> Shape {
        self.shapes[step % self.shapes.len()]
    }
    fn period(&self) -> Option<usize> {
        self.tells
    }
}

fn settings() -> Vec<Settings> {
    let base = Settings::default();
    vec![
        base,
        Settings { max_split_bytes: Some(20 * MIB), ..base },
        Settings { garbage_collection_threshold: Some(0.3), ..base },
        base.with_roundup_divisions(4),
        Settings::expandable(),
        Settings { garbage_collection_threshold: Some(0.3), ..Settings::expandable() },
        Settings::driver_pool(ReleaseThreshold::Zero),
    ]
}

#[test]
fn a_constant_run_is_known_after_a_handful_of_steps() {
    let forecaster = PLAIN.forecaster(4);
    let shapes = vec![Shape::of([8, 200]); 1_000_000];
    let mut heard = 0;
    let figures =
        play(forecaster.events(LongRun::of(&shapes)).unwrap(), Box::new(Native::new(u64::MAX)), &mut |_| heard += 1);
    assert_eq!((figures.steps, heard), (1_000_000, 1_000_000));
    assert!(figures.periodic_from.is_some_and(|step| step < 40), "{:?}", figures.periodic_from);
    assert!(figures.points.len() <= MAX_POINTS);
}

/// A run of these lengths under a garbage collection.
fn collected(lengths: &[u64], limit_bytes: u64) -> LongRunFigures {
    let forecaster = PLAIN.forecaster(4);
    let shapes: Vec<Shape> = lengths.iter().map(|length| Shape::of([64, *length])).collect();
    let shapes = Cycle { tells: Some(shapes.len()), shapes, steps: 20_000 };
    let settings = Settings { garbage_collection_threshold: Some(0.3), ..Settings::default() };
    let policy = Box::new(Native::with_settings(settings, limit_bytes));
    play(forecaster.events(LongRun::of(&shapes)).unwrap(), policy, &mut |_| ())
}

#[test]
fn a_run_under_a_garbage_collection_is_known_early_too() {
    // Each is longer than the one before, so that what served those before lies idle when more is asked for.
    let lengths = [60, 100, 333, 480, 590];
    // With room for everything nothing is collected.
    let free = collected(&lengths, u64::MAX);
    let under: Vec<LongRunFigures> =
        (10..20).map(|tenths| collected(&lengths, free.peak_reserved_bytes / 10 * tenths)).collect();
    for figures in std::iter::once(&free).chain(&under).filter(|figures| figures.out_of_memory.is_none()) {
        let found = figures.periodic_from;
        assert!(found.is_some_and(|step| step < 2000), "{found:?} after {} calls", figures.device_calls);
    }
    let calls: Vec<u64> = under.iter().map(|figures| figures.device_calls).collect();
    assert!(calls.iter().any(|calls| *calls > free.device_calls), "something is collected: {calls:?}");
}

#[test]
fn what_is_held_of_a_run_does_not_grow_with_its_length() {
    let forecaster =
        Training { accumulation: 3, evaluate: Some(4), checkpoint: Some(4), both_after: None, trim: Trim::Never }
            .forecaster(6);
    // More shapes than sizes are kept for.
    let shapes: Vec<Shape> = (0..997).map(|number| Shape::of([8, 40 + number])).collect();
    let shapes = Cycle { shapes, steps: 60_000, tells: None };
    let long = LongRun {
        evaluate_every: Some(5),
        checkpoint_every: Some(7),
        accumulation_steps: Some(4),
        ..LongRun::of(&shapes)
    };
    let mut run = forecaster.events(long).unwrap();
    let mut live = 0_i64;
    let (mut held, mut most_live) = (Vec::new(), Vec::new());
    for steps in [10_000, 60_000] {
        let mut most = 0;
        for event in run.by_ref() {
            match event {
                Event::Alloc { .. } => live += 1,
                Event::Free { .. } => live -= 1,
                Event::Mark(Mark::Step(step)) if step == steps - 1 => break,
                _ => {}
            }
            most = most.max(live);
        }
        held.push(run.held());
        most_live.push(most);
    }
    assert_eq!(held[0], held[1]);
    assert_eq!(most_live[0], most_live[1]);
    assert!(held[0] < 10_000, "{}", held[0]);
}

#[test]
fn a_policy_that_cannot_tell_is_played_to_the_end() {
    let mut native = Native::new(u64::MAX);
    native.record_segments();
    let forecaster = PLAIN.forecaster(4);
    let shapes = vec![Shape::of([8, 200]); 200];
    let figures = play(forecaster.events(LongRun::of(&shapes)).unwrap(), Box::new(native), &mut |_| ());
    assert_eq!((figures.steps, figures.periodic_from), (200, None));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_early_end_gives_the_figures_of_a_play_to_the_end(
        lengths in proptest::collection::vec(20_u64..600, 1..7),
        steps in 150_usize..400,
        evaluate in proptest::option::of(2_usize..5),
        checkpoint in proptest::option::of(2_usize..5),
        accumulation_steps in 3_usize..5,
        limit in 60_u64..160,
        releases in prop_oneof![
            Just(Releases::AsRecorded), (1_u32..8).prop_map(Releases::EverySteps), Just(Releases::AfterEvaluation)
        ],
    ) {
        let probes = Training { accumulation: 3, evaluate: Some(4), checkpoint: Some(4), both_after: None, trim: Trim::Never };
        let forecaster = probes.forecaster(6);
        let shapes: Vec<Shape> = lengths.iter().map(|length| Shape::of([8, *length])).collect();
        for (number, settings) in settings().into_iter().enumerate() {
            let played = |tells: Option<usize>| {
                let shapes = Cycle { shapes: shapes.clone(), steps, tells };
                let long = LongRun {
                    evaluation: Shape::of(LONGEST),
                    evaluate_every: evaluate,
                    checkpoint_every: checkpoint,
                    accumulation_steps: Some(accumulation_steps),
                    releases,
                    ..LongRun::of(&shapes)
                };
                let policy = Box::new(Native::with_settings(settings, limit * MIB));
                play(forecaster.events(long).unwrap(), policy, &mut |_| ())
            };
            let (whole, early) = (played(None), played(Some(lengths.len())));
            prop_assert!(whole.periodic_from.is_none() && whole.steps == early.steps);
            // Not `assert_eq`: there are hundreds of points to print.
            prop_assert!(LongRunFigures { periodic_from: None, ..early.clone() } == whole, "setting {}", number);
        }
    }

    #[test]
    fn a_run_of_few_shapes_is_found_to_repeat_itself(
        lengths in proptest::collection::vec(20_u64..600, 1..5),
        evaluate in proptest::option::of(2_usize..4),
    ) {
        let forecaster = Training { evaluate: Some(4), ..PLAIN }.forecaster(6);
        let shapes: Vec<Shape> = lengths.iter().cycle().take(2000).map(|length| Shape::of([8, *length])).collect();
        let long = LongRun { evaluate_every: evaluate, ..LongRun::of(&shapes) };
        let collecting = Settings { garbage_collection_threshold: Some(0.3), ..Settings::default() };
        for (settings, limit_bytes) in [(Settings::default(), u64::MAX), (collecting, 160 * MIB)] {
            let policy = Box::new(Native::with_settings(settings, limit_bytes));
            let figures = play(forecaster.events(long).unwrap(), policy, &mut |_| ());
            let is_known = figures.periodic_from.is_some_and(|step| step < 1000);
            prop_assert!(is_known || figures.out_of_memory.is_some(), "{:?}", figures.periodic_from);
        }
    }
}
