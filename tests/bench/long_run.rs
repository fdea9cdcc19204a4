//! `cargo bench --bench long_run`: what a forecast of a long run costs an event, and its batches a step.

use std::hint::black_box;

use batchtune::memory::forecast::batching::{Batching, Order, Outline};
use batchtune::memory::forecast::long_run::play;
use batchtune::memory::forecast::shape::LongRun;
use batchtune::memory::policy::{self, ReleaseThreshold, Settings};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

mod program;

const STEPS: usize = 40;

fn long_runs(criterion: &mut Criterion) {
    let Ok(forecaster) = program::forecaster() else { return };
    let shapes = program::Lengths { steps: STEPS };
    let events = || forecaster.events(LongRun::of(&shapes));
    let mut group = criterion.benchmark_group("long_run");
    let count = events().map_or(0, Iterator::count);
    group.throughput(Throughput::Elements(count as u64)).sample_size(10);
    group.bench_function("events_alone", |bencher| bencher.iter(|| black_box(events().map_or(0, Iterator::count))));
    let settings = [
        ("native", Settings::default()),
        ("expandable", Settings::expandable()),
        ("cuda_malloc_async", Settings::driver_pool(ReleaseThreshold::Max)),
    ];
    for (name, settings) in settings {
        let policy = || policy::with_settings(settings, u64::MAX);
        group.bench_function(name, |bencher| {
            bencher.iter(|| events().map(|run| black_box(play(run, policy(), &mut |_| ()))));
        });
    }
}

/// The batches of a run of lengths, made and counted.
fn batches(criterion: &mut Criterion) {
    const STEPS: u64 = 10_000;
    let lengths: Vec<u64> = (0..50_000_u64).map(|sample| 40 + sample * 7919 % 461).collect();
    let mut group = criterion.benchmark_group("batches");
    group.throughput(Throughput::Elements(STEPS)).sample_size(20);
    let as_they_come = Batching::of(8);
    let grouped = Batching { order: Order::ByLength, ..as_they_come };
    let budget = Batching { samples: 32, token_budget: Some(4_000), ..grouped };
    for (name, batching) in [("as_they_come", as_they_come), ("grouped", grouped), ("budget", budget)] {
        group.bench_function(name, |bencher| bencher.iter(|| black_box(Outline::of_steps(batching, &lengths, STEPS))));
    }
}

criterion_group!(benches, long_runs, batches);
criterion_main!(benches);
