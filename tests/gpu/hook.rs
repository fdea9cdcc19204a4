//! The hook and its book.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use batchtune::device::cuda::hook;
use batchtune::device::{DeviceSession, EventSink, LargestRequest};
use batchtune::memory::{Event, Mark, Phase};
use batchtune::units::MIB;
use candle_core::{DType, Tensor};

use crate::support::{mebibytes, session, turn};

#[test]
fn every_tensor_is_counted_when_it_comes_and_when_it_goes() {
    let _turn = turn();
    let mut session = session(4);
    session.begin_trial().unwrap();
    let before = hook::counts();
    let first = mebibytes(session.candle(), 100).unwrap();
    let second = mebibytes(session.candle(), 50).unwrap();
    drop(first);
    let after = hook::counts();
    assert_eq!(after.live_bytes - before.live_bytes, 50 * MIB);
    assert_eq!(after.live_blocks - before.live_blocks, 1);
    assert_eq!(after.allocations - before.allocations, 2);
    assert_eq!(after.frees - before.frees, 1);
    assert_eq!(after.peak_bytes - before.live_bytes, 150 * MIB);
    assert_eq!(after.largest_request_bytes, 100 * MIB);
    drop(second);
    assert_eq!(session.end_trial(), 0);
}

#[test]
fn a_sink_gets_every_event_once_and_in_order() {
    let _turn = turn();
    let mut session = session(4);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let sink = Rc::clone(&seen);
    session.set_event_sink(Some(Box::new(move |events: &[Event]| sink.borrow_mut().extend_from_slice(events))));
    session.begin_trial().unwrap();
    for step in 0..3 {
        session.begin_step(step);
        session.begin_phase(Phase::Forward);
        let a = Tensor::ones((256, 256), DType::F32, session.candle()).unwrap(); // [256, 256]
        let b = a.matmul(&a).unwrap(); // [256, 256]
        drop((a, b));
        session.end_phase().unwrap();
        session.sample(step + 1, LargestRequest::Estimate);
    }
    assert_eq!(session.end_trial(), 0);
    let seen = seen.borrow();
    let sizes = seen.iter().filter(|event| matches!(event, Event::Alloc { bytes: 262_144, .. })).count();
    assert!(sizes >= 6, "two matrices a step: {seen:?}");
    let steps = seen.iter().filter(|event| matches!(event, Event::Mark(Mark::Step(_)))).count();
    assert_eq!(steps, 3);
    let mut live = std::collections::BTreeSet::new();
    let mut next = 0;
    for event in seen.iter() {
        match event {
            Event::Alloc { ordinal, .. } => {
                assert_eq!(ordinal.0, next, "ordinals count from 0 without a gap");
                next += 1;
                live.insert(ordinal.0);
            }
            Event::Free { ordinal } => assert!(live.remove(&ordinal.0), "{} was freed twice or never made", ordinal.0),
            Event::FreeRequested { .. } | Event::Mark(_) => {}
        }
    }
    assert!(live.is_empty(), "all that was made was freed");
}

#[test]
fn tensors_of_other_threads_are_counted_and_keyed_by_their_stream() {
    let _turn = turn();
    let mut session = session(4);
    session.begin_trial().unwrap();
    hook::record(1 << 10);
    let here = mebibytes(session.candle(), 3).unwrap();
    let device = session.candle().clone();
    let there = std::thread::spawn(move || {
        let tensor = mebibytes(&device, 3).unwrap();
        device.synchronize().unwrap();
        tensor
    })
    .join()
    .unwrap();
    let events = hook::stop_recording().events;
    let streams: std::collections::BTreeSet<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Alloc { stream, .. } => Some(*stream),
            _ => None,
        })
        .collect();
    assert_eq!(streams.len(), 2, "{events:?}");
    assert_eq!(hook::counts().live_bytes, 6 * MIB);
    drop((here, there));
    assert_eq!(session.end_trial(), 0);
}

#[test]
fn counting_takes_well_under_a_microsecond_a_call() {
    let _turn = turn();
    let session = session(4);
    let pair = || drop(mebibytes(session.candle(), 1).unwrap());
    let pairs = 20_000;
    let (mut counted, mut uncounted) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        for (times, bypass) in [(&mut counted, false), (&mut uncounted, true)] {
            let started = Instant::now();
            let run = || (0..pairs).for_each(|_| pair());
            if bypass {
                hook::uncounted(run);
            } else {
                run();
            }
            times.push(started.elapsed().as_nanos() as f64 / f64::from(pairs));
            session.candle().synchronize().unwrap();
        }
    }
    let best = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    let cost = best(&counted) - best(&uncounted);
    println!(
        "an allocation and its free: {:.0} ns counted, {:.0} ns not; the hook takes {cost:.0} ns of them",
        best(&counted),
        best(&uncounted)
    );
    assert!(cost < 1_000.0, "{cost} ns");
    assert_eq!(hook::counts().live_bytes, 0);
}

#[test]
fn recording_takes_well_under_a_microsecond_an_event() {
    let _turn = turn();
    let mut session = session(4);
    let pairs = 20_000;
    let (mut counted, mut recorded) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..5 {
        for (best, sink) in [(&mut counted, false), (&mut recorded, true)] {
            session.set_event_sink(sink.then(|| Box::new(|_: &[Event]| {}) as EventSink));
            let started = Instant::now();
            (0..pairs).for_each(|_| drop(mebibytes(session.candle(), 1).unwrap()));
            *best = best.min(started.elapsed().as_nanos() as f64 / f64::from(pairs));
            session.candle().synchronize().unwrap();
            // Hands over what was recorded, as between two steps.
            session.state();
        }
    }
    session.set_event_sink(None);
    let cost = (recorded - counted) / 2.0;
    println!("an allocation and its free: {recorded:.0} ns recorded, {counted:.0} ns counted; {cost:.0} ns an event");
    assert!(cost < 1_000.0, "{cost} ns");
}
