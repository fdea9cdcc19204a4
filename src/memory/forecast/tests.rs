//! Programs with known sizes, forecast from probes of them.

use proptest::prelude::*;

use super::*;
use crate::memory::event::{Mark, Ordinal, Phase, Stream};
use crate::memory::fragmentation::Rates;
use crate::memory::policy::native::Native;
use crate::memory::policy::settings::Settings;
use crate::units::{GIB, MIB};

fn native() -> MakePolicy<'static> {
    &|limit| Box::new(Native::new(limit))
}

fn unlimited() -> Conditions<'static> {
    Conditions { limit_bytes: u64::MAX, make_policy: native() }
}

/// One allocation or free of a program whose sizes are known.
#[derive(Clone, Copy, Debug)]
enum Call {
    Allocate { constant: u64, per_sample: u64, stream: u64 },
    Free(usize),
    Step,
}

/// A program's recording at a batch size. `salt` changes what the canonical form must hide: the numbers of allocations
/// and streams, and the order of frees within a run.
fn record(program: &[Call], batch_size: u64, salt: u64) -> Vec<Event> {
    let mut events = Vec::new();
    let mut live = Vec::new();
    let mut frees: Vec<Event> = Vec::new();
    let mut steps = 0;
    let flush = |frees: &mut Vec<Event>, events: &mut Vec<Event>| {
        let middle = salt as usize % frees.len().max(1);
        frees.rotate_left(middle);
        events.append(frees);
    };
    for (place, call) in program.iter().enumerate() {
        match *call {
            Call::Allocate { constant, per_sample, stream } => {
                flush(&mut frees, &mut events);
                let ordinal = Ordinal(place as u64 ^ (salt << 32));
                let bytes = constant + per_sample * batch_size;
                events.push(Event::Alloc { ordinal, bytes, stream: Stream(stream.wrapping_mul(salt | 1)) });
                live.push(ordinal);
            }
            Call::Free(rank) if !live.is_empty() => {
                frees.push(Event::Free { ordinal: live.swap_remove(rank % live.len()) });
            }
            Call::Free(_) => {}
            Call::Step => {
                flush(&mut frees, &mut events);
                events.push(Event::Mark(Mark::Step(steps)));
                steps += 1;
            }
        }
    }
    flush(&mut frees, &mut events);
    events
}

fn program() -> impl Strategy<Value = Vec<Call>> {
    let sizes = prop_oneof![
        3 => (0..4 * MIB).prop_map(|constant| (constant, 0)),
        3 => (0..4 * MIB).prop_map(|per_sample| (0, per_sample)),
        1 => (0..MIB, 0..MIB),
    ];
    let call = prop_oneof![
        6 => (sizes, 0..2_u64).prop_map(|((constant, per_sample), stream)| Call::Allocate { constant, per_sample, stream }),
        5 => any::<usize>().prop_map(Call::Free),
        1 => Just(Call::Step),
    ];
    proptest::collection::vec(call, 1..200)
}

fn forecaster(probes: &[(usize, Vec<Event>)]) -> Forecaster {
    let probes: Vec<Probe<'_>> =
        probes.iter().map(|(batch_size, events)| Probe { batch_size: *batch_size, events }).collect();
    Forecaster::new(&probes)
}

fn hostile_events() -> impl Strategy<Value = Vec<Event>> {
    let sizes = prop_oneof![0..10_u64, Just(u64::MAX), any::<u64>(), Just(1 << 63)];
    let event = prop_oneof![
        (0..20_u64, sizes, any::<u64>()).prop_map(|(ordinal, bytes, stream)| Event::Alloc {
            ordinal: Ordinal(ordinal),
            bytes,
            stream: Stream(stream)
        }),
        (0..20_u64).prop_map(|ordinal| Event::Free { ordinal: Ordinal(ordinal) }),
        any::<u32>().prop_map(|step| Event::Mark(Mark::Step(step))),
        prop_oneof![Just(Phase::Build), Just(Phase::Optimizer), Just(Phase::Evaluation), Just(Phase::Checkpoint)]
            .prop_map(|phase| Event::Mark(Mark::Phase(phase))),
    ];
    proptest::collection::vec(event, 0..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn known_programs_are_forecast_to_the_event(
        program in program(), low in 2..5_usize, more in 1..4_usize, batch_size in 2..300_usize, salt in any::<u16>(),
    ) {
        let probe = |batch_size: usize, salt| (batch_size, record(&program, batch_size as u64, salt));
        let forecaster = forecaster(&[probe(low + more, u64::from(salt)), probe(low, 3)]);
        if forecaster.method() == Method::None {
            prop_assert_eq!(forecaster.reason(), Reason::NothingRecorded);
            return Ok(());
        }
        prop_assert_eq!(forecaster.method(), Method::Exact);
        let forecast: Vec<Event> = forecaster.events(RunShape::recorded(batch_size)).unwrap().unwrap().collect();
        let actual = Recording::of(&record(&program, batch_size as u64, 7));
        prop_assert_eq!(forecast.as_slice(), actual.events());
    }

    #[test]
    fn a_size_that_is_no_whole_line_is_never_exact(
        program in program(), place in any::<usize>(), error in 1..4096_u64,
    ) {
        let mut third = record(&program, 4, 1);
        let mut sizes: Vec<&mut u64> = third.iter_mut().filter_map(|event| match event {
            Event::Alloc { bytes, .. } => Some(bytes),
            _ => None,
        }).collect();
        prop_assume!(!sizes.is_empty());
        let place = place % sizes.len();
        *sizes[place] += error;
        let forecaster = forecaster(&[(2, record(&program, 2, 0)), (3, record(&program, 3, 5)), (4, third)]);
        prop_assert_eq!(forecaster.method(), Method::Affine);
        let off = matches!(forecaster.reason(), Reason::SizesOff { count: 1, first_ordinal, .. } if first_ordinal == place);
        prop_assert!(off, "{:?}", forecaster.reason());
    }

    #[test]
    fn a_missing_allocation_never_aligns(program in program(), place in any::<usize>()) {
        let mut other = record(&program, 3, 0);
        prop_assume!(other.iter().any(|event| matches!(event, Event::Alloc { .. })));
        let places: Vec<usize> = (0..other.len()).filter(|at| matches!(other[*at], Event::Alloc { .. })).collect();
        let Event::Alloc { ordinal, .. } = other.remove(places[place % places.len()]) else { unreachable!() };
        other.retain(|event| *event != Event::Free { ordinal });
        let forecaster = forecaster(&[(2, record(&program, 2, 0)), (3, other)]);
        prop_assert_ne!(forecaster.method(), Method::Exact);
    }

    #[test]
    fn hostile_recordings_never_panic(
        first in hostile_events(), second in hostile_events(), batches in (0..6_usize, any::<usize>()), limit in any::<u64>(),
    ) {
        let conditions = Conditions { limit_bytes: limit, make_policy: native() };
        for pair in [[&first, &second], [&first, &first]] {
            let forecaster = forecaster(&[(batches.0, pair[0].clone()), (batches.1, pair[1].clone()), (9, first.clone())]);
            for (updates, partial_batch_size) in [(None, None), (Some(2), None), (None, Some(2)), (Some(40), Some(3))] {
                let request = Request { batch_sizes: vec![2, 17, usize::MAX], updates, partial_batch_size };
                if let Ok(report) = forecaster.report(&request, &conditions) {
                    prop_assert!(report.error_percent.is_none_or(f64::is_finite));
                    prop_assert!(serde_json::to_string(&report).is_ok());
                }
            }
        }
    }

    #[test]
    fn the_largest_batch_size_fits_and_one_more_does_not(program in program(), limit in 8 * MIB..4 * GIB) {
        let forecaster = forecaster(&[(2, record(&program, 2, 0)), (3, record(&program, 3, 0))]);
        let conditions = Conditions { limit_bytes: limit, make_policy: native() };
        let largest = forecaster.largest_batch_size(&Request::default(), &conditions).unwrap();
        let fits = |batch_size| -> Option<bool> {
            Some(forecaster.point(RunShape::recorded(batch_size), &conditions).unwrap()?.fits)
        };
        if let Some(largest) = largest {
            prop_assert_eq!(fits(largest), Some(true));
            prop_assert!(largest == MAX_BATCH_SIZE || fits(largest + 1) == Some(false));
        } else {
            prop_assert_ne!(fits(2), Some(true));
        }
    }
}

/// A training run of `updates` updates and an evaluation: weights, activations, optimizer state in the first update.
fn training(batch_size: u64, updates: u32) -> Vec<Event> {
    let mut next = 0;
    let mut events = vec![Event::Mark(Mark::Phase(Phase::Build))];
    let mut alloc = |events: &mut Vec<Event>, bytes| {
        events.push(Event::Alloc { ordinal: Ordinal(next), bytes, stream: Stream(0) });
        next += 1;
        Ordinal(next - 1)
    };
    alloc(&mut events, 32 * MIB);
    for update in 0..updates {
        events.push(Event::Mark(Mark::Step(update)));
        let activations: Vec<Ordinal> = (1..=8).map(|layer| alloc(&mut events, layer * MIB * batch_size)).collect();
        let gradient = alloc(&mut events, 32 * MIB);
        events.extend(activations.into_iter().rev().map(|ordinal| Event::Free { ordinal }));
        events.push(Event::Mark(Mark::Phase(Phase::Optimizer)));
        if update == 0 {
            alloc(&mut events, 64 * MIB);
        }
        events.push(Event::Free { ordinal: gradient });
    }
    events.push(Event::Mark(Mark::Phase(Phase::Evaluation)));
    let logits = alloc(&mut events, 3 * MIB * batch_size);
    events.push(Event::Free { ordinal: logits });
    events
}

#[test]
fn the_parts_of_a_run_have_figures_of_their_own() {
    let forecaster = forecaster(&[(2, training(2, 3)), (3, training(3, 3))]);
    let request = Request { batch_sizes: vec![8], updates: None, partial_batch_size: Some(4) };
    let report = forecaster.report(&request, &unlimited()).unwrap();
    let point = &report.points[0];
    let allocated: Vec<(Window, usize, u64)> = point
        .windows
        .iter()
        .map(|figures| (figures.window, figures.batch_size, figures.peak_allocated_bytes / MIB))
        .collect();
    assert_eq!(
        allocated,
        [
            (Window::Build, 8, 32),
            (Window::FirstStep, 8, 32 + 36 * 8 + 32),
            (Window::SteadyStep, 8, 96 + 36 * 8 + 32),
            (Window::PartialStep, 4, 96 + 36 * 4 + 32),
            (Window::Evaluation, 8, 96 + 3 * 8),
        ]
    );
    assert_eq!(point.largest_request_bytes, 64 * MIB);
    let steady = point.windows[2];
    let expected = 1.0 - steady.peak_allocated_bytes as f64 / steady.peak_reserved_bytes as f64;
    assert_eq!(point.rates.peak, Some(expected));
    assert_eq!(point.rates.external, None, "there is no limit");
}

#[test]
fn probes_of_different_lengths_are_cut_to_the_shorter() {
    let forecaster = forecaster(&[(2, training(2, 5)), (3, training(3, 3))]);
    assert_eq!(forecaster.method(), Method::Exact);
    let run: Vec<Event> = forecaster.events(RunShape::recorded(8)).unwrap().unwrap().collect();
    assert_eq!(run, Recording::of(&training(8, 3)).events());
    let longer = RunShape { updates: Some(9), ..RunShape::recorded(8) };
    let run: Vec<Event> = forecaster.events(longer).unwrap().unwrap().collect();
    assert_eq!(run, Recording::of(&training(8, 9)).events());
}

#[test]
fn a_run_over_the_limit_shows_what_it_would_take() {
    let forecaster = forecaster(&[(2, training(2, 3)), (3, training(3, 3))]);
    let conditions = Conditions { limit_bytes: GIB, make_policy: native() };
    let report = forecaster.report(&Request::of(&[4, 64]), &conditions).unwrap();
    let [small, large] = report.points.as_slice() else { panic!("{report:?}") };
    assert!(small.fits && small.rates.external.is_some());
    assert!(!large.fits);
    assert_eq!(large.peak_allocated_bytes, (96 + 36 * 64 + 32) * MIB);
    assert!(large.peak_reserved_bytes > GIB);
    let largest = report.largest_batch_size.unwrap();
    assert!((20..=24).contains(&largest), "{largest}");
}

#[test]
fn another_allocator_is_another_forecast() {
    let forecaster = forecaster(&[(2, training(2, 3)), (3, training(3, 3))]);
    let coarse = |limit| -> Box<dyn crate::memory::Policy> {
        Box::new(Native::with_settings(Settings::default().with_roundup_divisions(2), limit))
    };
    let reserved = |make_policy: MakePolicy<'_>| {
        let conditions = Conditions { limit_bytes: u64::MAX, make_policy };
        forecaster.point(RunShape::recorded(5), &conditions).unwrap().unwrap().peak_reserved_bytes
    };
    assert!(reserved(&coarse) > reserved(native()));
}

#[test]
fn a_third_probe_that_agrees_is_an_error_of_zero() {
    let probes: Vec<(usize, Vec<Event>)> =
        (2..5).map(|batch_size| (batch_size, training(batch_size as u64, 3))).collect();
    assert_eq!(forecaster(&probes).error_percent(native()), Some(0.0));
    assert_eq!(forecaster(&probes[..2]).error_percent(native()), None);
}

#[test]
fn a_few_small_sizes_off_the_line_are_continued_and_judged_by_a_third_probe() {
    let with_noise = |batch_size: u64| {
        let mut events = training(batch_size, 3);
        let bytes = 512 << batch_size;
        let noise = Ordinal(1000);
        events
            .splice(3..3, [Event::Alloc { ordinal: noise, bytes, stream: Stream(0) }, Event::Free { ordinal: noise }]);
        events
    };
    let forecaster = forecaster(&[(2, with_noise(2)), (3, with_noise(3)), (4, with_noise(4))]);
    let report = forecaster.report(&Request::of(&[8]), &unlimited()).unwrap();
    assert_eq!(report.method, Method::Affine);
    assert_eq!(report.error_percent, Some(0.0), "the noise is never at the peak");
    assert_eq!(report.points[0].peak_allocated_bytes, (96 + 36 * 8 + 32) * MIB);
    assert!(report.reason.contains("first number 1: it grows faster than the batch"), "{}", report.reason);
}

#[test]
fn probes_that_do_not_align_give_lines_with_their_error() {
    let probe = |batch_size: u64, peak_mib: u64| {
        let alloc = |ordinal, bytes| Event::Alloc { ordinal: Ordinal(ordinal), bytes, stream: Stream(0) };
        // One more small allocation for each sample.
        (1..=batch_size).map(|n| alloc(n, 512)).chain([alloc(0, peak_mib * MIB)]).collect::<Vec<_>>()
    };
    let two = forecaster(&[(2, probe(2, 100)), (4, probe(4, 200))]);
    let report = two.report(&Request::of(&[8]), &Conditions { limit_bytes: 500 * MIB, make_policy: native() }).unwrap();
    assert_eq!((report.method, report.error_percent), (Method::Affine, None));
    assert!(report.reason.starts_with("the probes at batch 2 and 4 differ at event 3"), "{}", report.reason);
    assert_eq!(report.points[0].peak_reserved_bytes, 402 * MIB);
    assert_eq!((report.points[0].fits, report.largest_batch_size), (true, Some(9)));

    let three = forecaster(&[(2, probe(2, 100)), (4, probe(4, 200)), (8, probe(8, 500))]);
    let error = three.error_percent(native()).unwrap();
    assert!((error - 100.0 * 100.0 / 502.0).abs() < 0.1, "{error}");
}

#[test]
fn too_little_is_no_forecast_and_says_so() {
    let reasons: Vec<String> = [
        forecaster(&[]),
        forecaster(&[(1, training(1, 3)), (2, training(2, 3))]),
        forecaster(&[(2, training(2, 3)), (2, training(2, 3))]),
        forecaster(&[(2, vec![]), (3, vec![])]),
    ]
    .iter()
    .map(|forecaster| {
        let report = forecaster.report(&Request::of(&[8]), &unlimited()).unwrap();
        assert_eq!((report.method, report.points.len(), report.largest_batch_size), (Method::None, 0, None));
        report.reason
    })
    .collect();
    assert!(reasons[0].ends_with("there are 0") && reasons[1].ends_with("there is 1"), "{reasons:?}");
    assert_eq!(reasons[1], reasons[2]);
    assert_eq!(reasons[3], "the probes recorded no allocation");
}

#[test]
fn a_batch_of_one_is_refused() {
    let forecaster = forecaster(&[(2, training(2, 3)), (3, training(3, 3))]);
    let refused = forecaster.report(&Request::of(&[4, 1]), &unlimited());
    assert_eq!(refused, Err(ForecastError::BatchTooSmall { batch_size: 1 }));
}

#[test]
fn the_report_is_the_json_that_is_documented() {
    let forecaster = forecaster(&[(2, training(2, 3)), (3, training(3, 3))]);
    let report = forecaster.report(&Request::of(&[8]), &unlimited()).unwrap();
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["method"], "exact");
    assert!(json["error_percent"].is_null() && json["largest_batch_size"].is_null());
    let point = &json["points"][0];
    assert_eq!(point["batch_size"], 8);
    assert!(point["peak_allocated_bytes"].is_u64() && point["peak_reserved_bytes"].is_u64());
    assert!(point["rates"]["peak"].is_f64() && point["fits"].is_boolean());
    assert_eq!(point["windows"][1]["window"], "first_step");
    assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
}

#[test]
fn what_no_address_space_holds_fits_nowhere_and_has_no_figures() {
    let program = [Call::Allocate { constant: 3 * MIB, per_sample: MIB, stream: 0 }; 2];
    let point = |third_call: Option<Call>, batch_size: usize| {
        let programs: [Vec<Call>; 2] = [program.to_vec(), program.into_iter().chain(third_call).collect()];
        let recordings = [record(&programs[0], 2, 0), record(&programs[1], 3, 0)];
        let probes = [Probe { batch_size: 2, events: &recordings[0] }, Probe { batch_size: 3, events: &recordings[1] }];
        let forecaster = Forecaster::new(&probes);
        let point = forecaster.point(RunShape::recorded(batch_size), &unlimited()).unwrap().unwrap();
        (forecaster.method(), point)
    };
    let (method, large) = point(None, 1 << 42);
    assert_eq!((method, large.fits, large.peak_reserved_bytes < u64::MAX), (Method::Exact, true, true));
    let more = Call::Allocate { constant: 3 * MIB, per_sample: MIB, stream: 0 };
    for (third_call, expected) in [(None, Method::Exact), (Some(more), Method::Affine)] {
        for batch_size in [1 << 44, usize::MAX] {
            let (method, point) = point(third_call, batch_size);
            assert_eq!((method, point.fits), (expected, false), "{batch_size}");
            assert_eq!((point.peak_allocated_bytes, point.peak_reserved_bytes), (u64::MAX, u64::MAX));
            assert_eq!(point.rates, Rates::default());
        }
    }
}

#[test]
fn recordings_named_in_the_wrong_order_are_found_out() {
    let activation = Call::Allocate { constant: 0, per_sample: MIB, stream: 0 };
    let step = [Call::Step, Call::Allocate { constant: MIB, per_sample: 0, stream: 0 }, activation, Call::Free(1)];
    let program = step.repeat(4);
    let swapped = forecaster(&[(2, record(&program, 3, 0)), (3, record(&program, 2, 0))]);
    assert_eq!((swapped.method(), swapped.reason()), (Method::Affine, Reason::Shrinking { batch_sizes: [2, 3] }));
    let told = |forecaster: &Forecaster| forecaster.report(&Request::of(&[8]), &unlimited()).unwrap().reason;
    assert!(told(&swapped).contains("a batch of 3 asks for less memory than the one at 2"), "{}", told(&swapped));
    // Where they do other things as well, the peaks tell.
    let other = [program.clone(), vec![Call::Allocate { constant: 1, per_sample: 0, stream: 0 }]].concat();
    let swapped = forecaster(&[(2, record(&program, 8, 0)), (3, record(&other, 2, 0))]);
    assert!(matches!(swapped.reason(), Reason::Misaligned(_)));
    assert!(told(&swapped).ends_with("the recordings may be swapped"), "{}", told(&swapped));
    let in_order = forecaster(&[(2, record(&program, 2, 0)), (3, record(&other, 8, 0))]);
    assert!(!told(&in_order).contains("swapped"), "{}", told(&in_order));
}
