//! From what several ranks measured to what the run did: the worst of them decides.
//!
//! A run is as safe as its worst rank and as fast as its slowest. So peaks are the highest of all ranks, what is left the
//! least, and times those of the slowest rank; samples per second are those of all ranks together, since each trains on
//! batches of its own. Losses are means, as the gradients are. What ranks take of the host's memory adds up. Every safety
//! rule then reads what it reads of a single process.

use crate::memory::{MemorySample, Rates};
use crate::trial::outcome::Measurement;

/// What `world` ranks measured, from those of them that report.
pub(super) fn measurement(of_ranks: &[&Measurement], world: usize) -> Option<Measurement> {
    let world = world as f64;
    let by_speed = |a: &&&Measurement, b: &&&Measurement| a.samples_per_second.total_cmp(&b.samples_per_second);
    let slowest = *of_ranks.iter().min_by(by_speed)?;
    let highest = |figure: fn(&Measurement) -> u64| of_ranks.iter().map(|rank| figure(rank)).max().unwrap_or(0);
    let mean = |figure: fn(&Measurement) -> Option<f64>| {
        let told: Vec<f64> = of_ranks.iter().filter_map(|rank| figure(rank)).collect();
        (!told.is_empty()).then(|| told.iter().sum::<f64>() / told.len() as f64)
    };
    let (low, high) = slowest.samples_per_second_interval;
    Some(Measurement {
        samples_per_second: slowest.samples_per_second * world,
        samples_per_second_interval: (low * world, high * world),
        data_wait_fraction: of_ranks.iter().map(|rank| rank.data_wait_fraction).fold(0.0, f64::max),
        peak_allocated_bytes: highest(|rank| rank.peak_allocated_bytes),
        peak_reserved_bytes: highest(|rank| rank.peak_reserved_bytes),
        largest_request_bytes: highest(|rank| rank.largest_request_bytes),
        first_loss: mean(|rank| rank.first_loss),
        last_loss: mean(|rank| rank.last_loss),
        evaluation_loss: mean(|rank| rank.evaluation_loss),
        checkpoint_bytes: of_ranks.iter().filter_map(|rank| rank.checkpoint_bytes).max(),
        batches_per_second: of_ranks.iter().filter_map(|rank| rank.batches_per_second).min_by(f64::total_cmp),
        batch_bytes: of_ranks.iter().map(|rank| rank.batch_bytes).sum(),
        has_batch_norm: of_ranks.iter().any(|rank| rank.has_batch_norm),
        ..slowest.clone()
    })
}

/// One moment on all ranks: the worst of each figure.
pub(super) fn sample(of_ranks: &[&MemorySample]) -> Option<MemorySample> {
    let first = **of_ranks.first()?;
    let highest = |figure: fn(&MemorySample) -> u64| of_ranks.iter().map(|sample| figure(sample)).max().unwrap_or(0);
    let lowest = |figure: fn(&MemorySample) -> u64| of_ranks.iter().map(|sample| figure(sample)).min().unwrap_or(0);
    Some(MemorySample {
        step: of_ranks.iter().map(|sample| sample.step).max().unwrap_or(first.step),
        allocated_bytes: highest(|sample| sample.allocated_bytes),
        reserved_bytes: highest(|sample| sample.reserved_bytes),
        limit_bytes: lowest(|sample| sample.limit_bytes),
        peak_allocated_bytes: highest(|sample| sample.peak_allocated_bytes),
        peak_reserved_bytes: highest(|sample| sample.peak_reserved_bytes),
        largest_satisfiable_bytes: lowest(|sample| sample.largest_satisfiable_bytes),
        largest_satisfiable_estimated: of_ranks.iter().any(|sample| sample.largest_satisfiable_estimated),
        largest_request_bytes: highest(|sample| sample.largest_request_bytes),
        unreleasable_bytes: highest(|sample| sample.unreleasable_bytes),
        allocated_blocks: highest(|sample| sample.allocated_blocks),
        rates: of_ranks.iter().map(|sample| sample.rates).reduce(Rates::highest).unwrap_or_default(),
        shadow: of_ranks.iter().filter_map(|sample| sample.shadow).reduce(Rates::highest),
        host_bytes: of_ranks.iter().filter_map(|sample| sample.host_bytes).reduce(u64::saturating_add),
        host_available_bytes: of_ranks.iter().filter_map(|sample| sample.host_available_bytes).min(),
    })
}
