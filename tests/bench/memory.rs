//! `cargo bench`: what the memory room costs an event.

use std::hint::black_box;

use batchtune::memory::policy::{ReleaseThreshold, Settings};
use batchtune::memory::recording::Recording;
use batchtune::memory::replay;
use batchtune::memory::snapshot::Snapshot;
use batchtune::memory::trace::Trace;
use batchtune::memory::{Event, Mark, Ordinal};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// The events of a real run: GPT-2 medium under PyTorch, two samples.
fn gpt2_medium() -> Trace {
    fixture("forecast/gpt2_medium_b2.pickle")
}

fn fixture(name: &str) -> Trace {
    let path = format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).unwrap_or_default();
    Recording::read(&bytes).map(Recording::into_trace).unwrap_or_default()
}

/// A run of about `count` events, made by repeating a real one with fresh ordinals.
fn repeated(trace: &Trace, count: usize) -> Trace {
    let allocations = trace.events.iter().filter(|event| matches!(event, Event::Alloc { .. })).count() as u64;
    let mut events = Vec::with_capacity(count);
    for round in 0.. {
        let shifted = |ordinal: Ordinal| Ordinal(ordinal.0 + round * allocations);
        events.push(Event::Mark(Mark::Step(u32::try_from(round).unwrap_or(u32::MAX))));
        events.extend(trace.events.iter().map(|event| match *event {
            Event::Alloc { ordinal, bytes, stream } => Event::Alloc { ordinal: shifted(ordinal), bytes, stream },
            Event::Free { ordinal } => Event::Free { ordinal: shifted(ordinal) },
            Event::FreeRequested { ordinal } => Event::FreeRequested { ordinal: shifted(ordinal) },
            mark @ Event::Mark(_) => mark,
        }));
        // What a round leaves alive is freed, so that rounds do not pile up.
        let mut live: Vec<bool> = vec![false; allocations as usize];
        for event in &trace.events {
            match event {
                Event::Alloc { ordinal, .. } => live[ordinal.0 as usize] = true,
                Event::Free { ordinal } => live[ordinal.0 as usize] = false,
                Event::FreeRequested { .. } | Event::Mark(_) => {}
            }
        }
        let left = live.iter().enumerate().filter(|(_, live)| **live).map(|(ordinal, _)| ordinal as u64);
        events.extend(left.map(|ordinal| Event::Free { ordinal: shifted(Ordinal(ordinal)) }));
        if events.len() >= count {
            break;
        }
    }
    Trace::of_events(events)
}

fn replays(criterion: &mut Criterion) {
    let traces = [("gpt2_medium", gpt2_medium()), ("varying_lengths", fixture("pytorch/varlen.pickle"))];
    let settings = [
        ("native", Settings::default()),
        ("expandable", Settings::expandable()),
        ("cuda_malloc_async", Settings::driver_pool(ReleaseThreshold::Max)),
    ];
    for (name, trace) in traces {
        let trace = repeated(&trace, 200_000);
        let mut group = criterion.benchmark_group(format!("replay/{name}"));
        group.throughput(Throughput::Elements(trace.events.len() as u64)).sample_size(20);
        for (policy, settings) in settings {
            group.bench_function(policy, |bencher| {
                bencher.iter(|| black_box(replay::replay(black_box(&trace), settings, u64::MAX)));
            });
        }
    }
}

fn snapshots(criterion: &mut Criterion) {
    let trace = repeated(&gpt2_medium(), 1_000_000);
    let mut file = Vec::new();
    let written = Snapshot::of_trace(&trace, Settings::default()).map(|snapshot| snapshot.write(&mut file));
    assert!(matches!(written, Ok(Ok(()))), "the snapshot is written");
    let mut group = criterion.benchmark_group("snapshot");
    group.throughput(Throughput::Elements(trace.events.len() as u64)).sample_size(10);
    group.bench_function("read_and_inspect_1m_events", |bencher| {
        bencher.iter(|| Recording::read(black_box(&file)).map(|recording| recording.inspect().is_ok()));
    });
}

criterion_group!(benches, replays, snapshots);
criterion_main!(benches);
