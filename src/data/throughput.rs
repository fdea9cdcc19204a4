//! The loader alone: how many batches a second it makes when somebody takes each as soon as it is ready.
//!
//! It says what the workers can do, without a device: the step's demand is put beside it. It isn't what training will
//! see when both need the same cores, which is why a loader's choice is verified with real steps.

use std::time::{Duration, Instant};

use super::DataError;
use super::loader::Loader;

/// How long to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// So long, the warm-up included; at least one batch is measured whatever it takes.
    Time(Duration),
    /// So many batches after the warm-up.
    Batches(u64),
}

/// What a loader makes by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throughput {
    /// Batches measured.
    pub batches: u64,
    /// Their samples.
    pub samples: u64,
    /// How long they took.
    pub time: Duration,
    /// Bytes of the largest of them in host memory.
    pub bytes_per_batch: u64,
}

impl Throughput {
    /// Batches a second; 0 where nothing was measured.
    pub fn batches_per_second(&self) -> f64 {
        self.per_second(self.batches)
    }

    /// Samples a second; 0 where nothing was measured.
    pub fn samples_per_second(&self) -> f64 {
        self.per_second(self.samples)
    }

    fn per_second(&self, count: u64) -> f64 {
        // A nanosecond is what the clock can tell apart.
        if count == 0 { 0.0 } else { count as f64 / self.time.max(Duration::from_nanos(1)).as_secs_f64() }
    }
}

/// Takes batches from a loader as fast as it makes them.
///
/// The first batch of every worker is warm-up: its thread starts, files are opened, caches are cold. Workers begin
/// together and so finish together at first, in bursts; by time, measuring ends with a whole round of them. `stop` is
/// asked before each batch and ends it with what there is.
pub fn throughput(loader: &mut Loader, until: Until, stop: &dyn Fn() -> bool) -> Result<Throughput, DataError> {
    let begun = Instant::now();
    let round = loader.config().workers.max(1) as u64;
    let is_over = |time: Duration| matches!(until, Until::Time(limit) if time >= limit);
    for _ in 0..round {
        if stop() || is_over(begun.elapsed()) {
            break;
        }
        loader.next_batch()?;
    }
    let started = Instant::now();
    let mut measured = Throughput { batches: 0, samples: 0, time: Duration::ZERO, bytes_per_batch: 0 };
    while !stop() {
        let batch = loader.next_batch()?;
        measured.batches += 1;
        measured.samples += batch.samples as u64;
        measured.bytes_per_batch = measured.bytes_per_batch.max(batch.bytes());
        measured.time = started.elapsed();
        let enough = match until {
            Until::Batches(batches) => measured.batches >= batches,
            Until::Time(_) => is_over(begun.elapsed()) && measured.batches.is_multiple_of(round),
        };
        if enough {
            break;
        }
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use super::*;
    use crate::data::loader::LoaderConfig;
    use crate::data::synthetic::Synthetic;
    use crate::data::{Dataset, InputSpec};

    fn loader(workers: usize) -> Loader {
        let input = InputSpec::Tokens { vocabulary_size: 10, sequence_length: 4 };
        let dataset: Arc<dyn Dataset> = Arc::new(Synthetic::new(&input, 1).unwrap());
        Loader::start(dataset, LoaderConfig { batch_size: 3, workers, prefetch_depth: 1, seed: 0 })
    }

    #[test]
    fn batches_are_counted_after_the_warm_up() {
        for workers in [0, 1, 3] {
            let mut loader = loader(workers);
            let measured = throughput(&mut loader, Until::Batches(5), &|| false).unwrap();
            assert_eq!((measured.batches, measured.samples, measured.bytes_per_batch), (5, 15, 3 * 2 * 4 * 4));
            assert!(measured.batches_per_second() > 0.0);
            assert!((measured.samples_per_second() / measured.batches_per_second() - 3.0).abs() < 1e-9);
        }
    }

    #[test]
    fn time_that_is_up_still_measures_a_whole_round() {
        let measured = throughput(&mut loader(3), Until::Time(Duration::ZERO), &|| false).unwrap();
        assert_eq!(measured.batches, 3);
    }

    #[test]
    fn a_stop_ends_it_with_what_there_is() {
        let asked = Cell::new(0);
        let stop = || {
            asked.set(asked.get() + 1);
            asked.get() > 4
        };
        let measured = throughput(&mut loader(1), Until::Batches(1000), &stop).unwrap();
        assert_eq!(measured.batches, 3);
        let measured = throughput(&mut loader(1), Until::Batches(1000), &|| true).unwrap();
        assert!(measured.batches == 0 && measured.batches_per_second().abs() < f64::EPSILON);
    }
}
