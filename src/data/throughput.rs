//! The loader alone: how many batches a second it makes when somebody takes each as soon as it is ready.
//!
//! It says what the workers can do, without a device and without a step: the step's demand is put beside it. It is an
//! upper bound: a step that shares processors or memory bandwidth with the workers slows them, which is why a loader's
//! choice is verified with real steps.
//!
//! Batches come in *rounds*, one of each worker. All workers begin at once and are done at about the same time, so the
//! first round says nothing of the rate (threads start, files are opened, caches are cold) and belongs to the warm-up; and
//! only whole rounds are counted: the start of one would look too fast and its end too slow.

use std::time::{Duration, Instant};

use super::DataError;
use super::loader::Batches;

/// The shortest time rounds can be taken to need, in seconds: rates must stay finite.
const SHORTEST_SECONDS: f64 = 1e-9;

/// How long to load. Measuring ends at the first of both limits, after one round at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Batches of a round, one at least: one of each worker.
    pub round: u32,
    /// Rounds of the warm-up, which are not counted.
    pub warmup_rounds: u32,
    /// The most rounds that are.
    pub rounds: u32,
    /// The time after which no round begins, the warm-up not included.
    pub time: Duration,
}

/// What was loaded after the warm-up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Throughput {
    /// The time of each round, in seconds.
    pub seconds: Vec<f64>,
    /// Batches of a round.
    pub round: u32,
    /// Samples of all rounds.
    pub samples: u64,
    /// Bytes of the largest batch in host memory.
    pub batch_bytes: u64,
}

impl Throughput {
    /// Batches of all rounds.
    pub fn batches(&self) -> u64 {
        (self.seconds.len() as u64).saturating_mul(u64::from(self.round))
    }

    /// Batches a second; 0 where nothing was measured. The rate is that of the mean round: a loader that stalls now and
    /// then is as slow as that makes it.
    pub fn batches_per_second(&self) -> f64 {
        self.per_second(self.batches())
    }

    /// Samples a second; 0 where nothing was measured.
    pub fn samples_per_second(&self) -> f64 {
        self.per_second(self.samples)
    }

    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.seconds.iter().sum::<f64>().max(SHORTEST_SECONDS)
    }
}

/// Takes batches as fast as they are made. `stop` is asked before each of them; when it says so, there is no answer.
pub fn throughput(
    batches: &mut dyn Batches,
    extent: Extent,
    stop: &dyn Fn() -> bool,
) -> Result<Option<Throughput>, DataError> {
    let round = extent.round.max(1);
    let mut warmup = Throughput::default();
    for _ in 0..extent.warmup_rounds {
        if load_round(batches, round, stop, &mut warmup)?.is_none() {
            return Ok(None);
        }
    }
    let mut measured = Throughput { round, ..Throughput::default() };
    let begun = Instant::now();
    for _ in 0..extent.rounds.max(1) {
        let Some(time) = load_round(batches, round, stop, &mut measured)? else { return Ok(None) };
        measured.seconds.push(time.as_secs_f64());
        if begun.elapsed() >= extent.time {
            break;
        }
    }
    Ok(Some(measured))
}

/// Takes one batch of each worker, and gives the time that it took; none where it was stopped.
fn load_round(
    batches: &mut dyn Batches,
    round: u32,
    stop: &dyn Fn() -> bool,
    loaded: &mut Throughput,
) -> Result<Option<Duration>, DataError> {
    let begun = Instant::now();
    for _ in 0..round {
        if stop() {
            return Ok(None);
        }
        let batch = batches.next_batch()?;
        loaded.samples += batch.samples as u64;
        loaded.batch_bytes = loaded.batch_bytes.max(batch.bytes());
    }
    Ok(Some(begun.elapsed()))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use super::*;
    use crate::data::loader::{Loader, LoaderConfig};
    use crate::data::synthetic::Synthetic;
    use crate::data::{Dataset, HostBatch, InputSpec};

    /// A loader that counts what was taken of it.
    struct Counted {
        loader: Loader,
        taken: u64,
    }

    impl Batches for Counted {
        fn next_batch(&mut self) -> Result<HostBatch, DataError> {
            self.taken += 1;
            self.loader.next_batch()
        }
    }

    fn loader(workers: usize) -> Counted {
        let input = InputSpec::Tokens { vocabulary_size: 10, sequence_length: 4 };
        let dataset: Arc<dyn Dataset> = Arc::new(Synthetic::new(&input, 1).unwrap());
        let config = LoaderConfig { batch_size: 3, workers, prefetch_depth: 1, seed: 0 };
        Counted { loader: Loader::start(dataset, config), taken: 0 }
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn whole_rounds_are_counted_after_the_warm_up() {
        for workers in [0, 1, 3] {
            let round = workers.max(1) as u32;
            let extent = Extent { round, warmup_rounds: 2, rounds: 5, time: HOUR };
            let mut loader = loader(workers);
            let measured = throughput(&mut loader, extent, &|| false).unwrap().unwrap();
            assert_eq!((measured.seconds.len(), measured.batches()), (5, 5 * u64::from(round)));
            assert_eq!((measured.samples, measured.batch_bytes), (15 * u64::from(round), 3 * 2 * 4 * 4));
            assert_eq!(loader.taken, 7 * u64::from(round));
            assert!((measured.samples_per_second() / measured.batches_per_second() - 3.0).abs() < 1e-9);
        }
    }

    #[test]
    fn time_that_is_up_still_measures_a_round() {
        for (rounds, time) in [(0, HOUR), (u32::MAX, Duration::ZERO)] {
            let extent = Extent { round: 3, warmup_rounds: 0, rounds, time };
            assert_eq!(throughput(&mut loader(3), extent, &|| false).unwrap().unwrap().batches(), 3);
        }
    }

    #[test]
    fn a_stop_ends_it_without_an_answer() {
        let extent = Extent { round: 2, warmup_rounds: 1, rounds: u32::MAX, time: HOUR };
        for asked_before in [0, 1, 5] {
            let asked = Cell::new(0);
            let stop = || asked.replace(asked.get() + 1) >= asked_before;
            let mut loader = loader(1);
            assert_eq!(throughput(&mut loader, extent, &stop).unwrap(), None);
            assert_eq!(loader.taken, asked_before);
        }
    }

    #[test]
    fn the_rate_is_that_of_the_mean_round_and_always_finite() {
        let measured = Throughput { seconds: vec![0.5, 0.5, 0.5, 2.5], round: 4, samples: 128, batch_bytes: 0 };
        assert_eq!((measured.batches_per_second(), measured.samples_per_second()), (4.0, 32.0));
        assert!(Throughput { seconds: vec![0.0], round: 1, ..measured.clone() }.batches_per_second().is_finite());
        assert_eq!(Throughput::default().batches_per_second().to_bits(), 0.0_f64.to_bits());
    }
}
