//! Growth by figures that are made, and by runs of made programs.

use super::super::{LongRunPoint, play};
use super::*;
use crate::memory::event::{Event, Mark, Phase};
use crate::memory::forecast::shape::{Axes, LongRun, Shape, ShapeForecaster, ShapeProbe};
use crate::memory::forecast::testing::{FRAGMENTING, PROBES};
use crate::memory::policy::native::Native;
use crate::memory::policy::{PoolState, ReleaseThreshold, Settings};
use crate::units::{GIB, MIB};

const HORIZON_STEPS: u32 = 10_000;

/// A step that needs 100 MiB and leaves nothing live.
fn state(reserved_bytes: u64) -> PoolState {
    PoolState { peak_allocated_bytes: 100 * MIB, peak_reserved_bytes: reserved_bytes, ..PoolState::default() }
}

/// The same where a step leaves something live that had not been there.
fn leaking(step: u32, bytes: u64) -> PoolState {
    let live = u64::from(step + 1);
    let reserved_bytes = 200 * MIB + (live * bytes).next_multiple_of(20 * MIB);
    PoolState { allocated_bytes: live * bytes, allocated_blocks: 50 + live, ..state(reserved_bytes) }
}

/// A run under 1 GiB.
fn run(steps: u32, state: impl Fn(u32) -> PoolState) -> LongRunFigures {
    let points: Vec<LongRunPoint> = (0..steps).map(|step| LongRunPoint::of(step, &state(step))).collect();
    let highest = |of: fn(&LongRunPoint) -> u64| points.iter().map(of).max().unwrap_or(0);
    LongRunFigures {
        steps,
        limit_bytes: GIB,
        steps_of_an_update: 1,
        peak_allocated_bytes: highest(|point| point.peak_allocated_bytes),
        peak_reserved_bytes: highest(|point| point.peak_reserved_bytes),
        points,
        ..LongRunFigures::default()
    }
}

fn reserving(steps: u32, reserved_bytes: impl Fn(u32) -> u64) -> LongRunFigures {
    run(steps, |step| state(reserved_bytes(step)))
}

/// The greatest of many draws: where the longest batch so far comes, it comes without order.
fn record(step: u32, of: u32) -> u64 {
    (0..=step).map(|step| u64::from(step.wrapping_mul(2_654_435_761) >> 16) % u64::from(of)).max().unwrap_or(0)
}

#[test]
fn growth_without_a_plateau_names_the_step_at_which_it_meets_the_limit() {
    let growing = reserving(400, |step| 200 * MIB + u64::from(step) * MIB);
    let breach = growth(&growing, HORIZON_STEPS).unwrap();
    // 599 MiB after 400 steps, and 1 MiB a step from there: 425 steps more.
    assert_eq!(breach.step(), 825);
    assert_eq!(
        breach.to_string(),
        "reserved memory has no plateau: it grows by 1.0 MiB a step to the end, with 599.0 MiB reserved at step 399, and \
         would reach the limit of 1.0 GiB at step 825"
    );
}

#[test]
fn growth_to_the_end_is_a_breach_however_far_away_the_limit_is() {
    let growing = reserving(400, |step| 200 * MIB + u64::from(step) * MIB);
    assert_eq!(growth(&growing, 10).unwrap().step(), 825);
    let unlimited = LongRunFigures { limit_bytes: u64::MAX, ..growing };
    let breach = growth(&unlimited, HORIZON_STEPS).unwrap();
    assert_eq!(breach.step(), 399);
    assert!(breach.to_string().ends_with("a step to the end, with 599.0 MiB reserved at step 399"), "{breach}");
}

#[test]
fn what_is_never_freed_is_a_leak_whatever_the_lengths_are() {
    for limit_bytes in [GIB, 1 << 40, u64::MAX] {
        let leak = LongRunFigures { limit_bytes, ..run(10_000, |step| leaking(step, 20_000)) };
        let breach = growth(&leak, HORIZON_STEPS).unwrap();
        assert!(matches!(breach, Breach::Growth { what: Growing::Live, bytes_a_step: 19_000..=20_500, .. }));
        assert!(breach.to_string().starts_with("live memory has no plateau: it grows by 19.5 KiB a step"), "{breach}");
    }
}

#[test]
fn a_leak_that_will_not_end_any_run_is_none() {
    assert_eq!(growth(&run(10_000, |step| leaking(step, 200)), HORIZON_STEPS), None);
}

#[test]
fn a_longest_batch_that_comes_late_is_no_leak() {
    // A hundred lengths, then a thousand, then so many that new ones come to the end.
    for (number, of) in [100, 1_000, 1_000_000].into_iter().enumerate() {
        let figures = run(4_000, |step| {
            let bytes = record(step, of) * 500 * MIB / u64::from(of);
            // A batch that is staged ahead is live between steps, and the gradients of an update.
            let (live, blocks) = (u64::from(step % 97) * MIB, 50 + u64::from(step % 4));
            let held = state(200 * MIB + bytes.next_multiple_of(2 * MIB));
            PoolState {
                peak_allocated_bytes: 100 * MIB + bytes,
                allocated_bytes: live,
                allocated_blocks: blocks,
                ..held
            }
        });
        for limit_bytes in [figures.peak_reserved_bytes + MIB, GIB, u64::MAX] {
            let figures = LongRunFigures { steps_of_an_update: 4, limit_bytes, ..figures.clone() };
            assert_eq!(growth(&figures, HORIZON_STEPS), None, "{number}, limit {limit_bytes}");
        }
    }
}

#[test]
fn what_grows_within_an_update_is_no_leak() {
    let within = |steps_of_an_update: u32| {
        let figures = run(64, |step| PoolState { allocated_bytes: u64::from(step) * MIB, ..leaking(step, MIB) });
        LongRunFigures { steps_of_an_update, limit_bytes: u64::MAX, ..figures }
    };
    let is_live = |breach: Option<Breach>| matches!(breach, Some(Breach::Growth { what: Growing::Live, .. }));
    assert!(is_live(growth(&within(4), HORIZON_STEPS)));
    assert!(!is_live(growth(&within(64), HORIZON_STEPS)));
}

#[test]
fn a_cache_that_fills_ever_more_slowly_is_no_growth() {
    // One segment in every doubling of the time, in twenty stages.
    let filling = reserving(4_000, |step| 200 * MIB + (f64::from(step + 1).ln() * 20.0) as u64 * 2 * MIB);
    let unlimited = LongRunFigures { limit_bytes: u64::MAX, ..filling };
    assert_eq!(growth(&unlimited, HORIZON_STEPS), None);
}

#[test]
fn a_plateau_or_one_more_segment_is_no_growth() {
    let cases: [&dyn Fn(u32) -> u64; 3] = [
        &|step| 200 * MIB + u64::from(step.min(299)) * MIB,
        &|step| if step < 350 { 200 * MIB } else { 220 * MIB },
        &|step| 600 * MIB - u64::from(step) * MIB,
    ];
    for (number, reserved_bytes) in cases.into_iter().enumerate() {
        assert_eq!(growth(&reserving(400, reserved_bytes), HORIZON_STEPS), None, "{number}");
    }
    assert_eq!(growth(&reserving(39, |step| u64::from(step + 1) * MIB), HORIZON_STEPS), None, "too short to tell");
    assert_eq!(growth(&LongRunFigures::default(), HORIZON_STEPS), None);
}

/// Lengths of 40 to 500 without order: mostly short ones, and the longest rarely.
fn rarely_long(steps: u32) -> Vec<Shape> {
    let share = |step: u32| {
        f64::from(step.wrapping_mul(2_654_435_761).rotate_left(13).wrapping_mul(0x85eb_ca6b)) / 2_f64.powi(32)
    };
    (0..steps).map(|step| Shape::of([8, 40 + (share(step).powi(6) * 460.0) as u64])).collect()
}

/// The made program whose steps forget to free the scores of their attention.
fn forgetting(shapes: &[(u64, u64)]) -> Vec<Event> {
    let mut is_next = false;
    let mut events = FRAGMENTING.record(shapes);
    events.retain(|event| match event {
        Event::Mark(mark) => {
            is_next = *mark == Mark::Phase(Phase::Backward);
            true
        }
        Event::Free { .. } => !std::mem::take(&mut is_next),
        _ => true,
    });
    events
}

fn played(forecaster: &ShapeForecaster, shapes: &[Shape], settings: Settings, limit_bytes: u64) -> LongRunFigures {
    let policy = Box::new(Native::with_settings(settings, limit_bytes));
    play(forecaster.events(LongRun::of(&shapes)).unwrap(), policy, &mut |_| ())
}

fn settings() -> [Settings; 4] {
    let base = Settings::default();
    [base, base.with_roundup_divisions(4), Settings::expandable(), Settings::driver_pool(ReleaseThreshold::Max)]
}

#[test]
fn a_sound_run_is_no_growth_under_any_setting_however_rare_its_longest_batch_is() {
    let forecaster = FRAGMENTING.forecaster();
    for steps in [60, 400, 3_000] {
        let shapes = rarely_long(steps);
        for (number, settings) in settings().into_iter().enumerate() {
            let figures = played(&forecaster, &shapes, settings, u64::MAX);
            assert_eq!(growth(&figures, HORIZON_STEPS), None, "setting {number}, {steps} steps");
        }
    }
}

#[test]
fn a_program_that_forgets_a_tensor_is_found_under_every_setting_and_limit() {
    let recordings = PROBES.map(|shape| forgetting(&[shape; 5]));
    let probes = PROBES.iter().zip(&recordings);
    let probes: Vec<ShapeProbe<'_>> =
        probes.map(|((b, t), events)| ShapeProbe { shape: Shape::of([*b, *t]), events }).collect();
    let forecaster = ShapeForecaster::new(Axes::batch_and_length(), &probes).unwrap();
    let shapes = rarely_long(400);
    for limit_bytes in [1 << 40, u64::MAX] {
        for (number, settings) in settings().into_iter().enumerate() {
            let breach = growth(&played(&forecaster, &shapes, settings, limit_bytes), HORIZON_STEPS);
            let is_found = matches!(breach, Some(Breach::Growth { what: Growing::Live, .. }));
            assert!(is_found, "setting {number} under {limit_bytes}: {breach:?}");
        }
    }
}
