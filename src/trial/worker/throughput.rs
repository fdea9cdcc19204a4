//! The loader alone: how many batches a second the workers of a point make when no step waits for them.
//!
//! Against what the step asks for, this tells how many workers it takes, without a model in memory and without a step
//! run. It is an upper bound: a step that shares processors or memory bandwidth with the workers slows them, so the
//! search verifies its choice with real steps.
//!
//! Batches come in *rounds*, one of each worker. All workers begin at once and are done at about the same time, so the
//! first round says nothing of the rate; it is part of the warm-up, and only whole rounds are counted: the start of one
//! would look too fast and its end too slow.

use std::io;
use std::time::{Duration, Instant};

use super::inbox::Inbox;
use super::open::{Batches, Supplies};
use super::trial::{Halt, failed};
use crate::text::with_causes;
use crate::trial::outcome::{Measurement, Outcome, StepQuantiles};
use crate::trial::protocol::FromWorker;
use crate::trial::spec::TrialSpec;
use crate::trial::statistics::{SampleSet, mean, mean_half_width};

/// A loader so slow that the batches asked for take longer is measured for as long as this, and for one round at least.
const LONGEST: Duration = Duration::from_secs(10);
/// The shortest time a round can be taken to need: rates must stay finite.
const SHORTEST_ROUND_SECONDS: f64 = 1e-9;

/// Runs the loader alone and gives the trial's last message, which is to be said. The device is not touched, so the
/// worker is as clean as before.
pub(super) fn run(spec: &TrialSpec, supplies: &dyn Supplies, inbox: &Inbox) -> io::Result<FromWorker> {
    let (outcome, measurement) = match Rounds::load(spec, supplies.training_batches(&spec.point).as_mut(), inbox) {
        Ok(rounds) => (Outcome::Completed, Some(rounds.measure(spec))),
        Err(Halt::Ended(outcome)) => (outcome, None),
        Err(Halt::Unheard(error)) => return Err(error),
    };
    Ok(FromWorker::Ended { trial: spec.id, outcome, measurement, clean: true })
}

/// What was loaded after the warm-up.
#[derive(Debug, Default)]
struct Rounds {
    /// The time of each, in seconds.
    seconds: Vec<f64>,
    /// Batches of a round.
    batches: u32,
}

impl Rounds {
    fn load(spec: &TrialSpec, batches: &mut dyn Batches, inbox: &Inbox) -> Result<Self, Halt> {
        let mut rounds = Self { batches: spec.loader_round(), ..Self::default() };
        for _ in 0..spec.warmup_steps.div_ceil(rounds.batches) {
            rounds.round(batches, inbox)?;
        }
        let begun = Instant::now();
        for _ in 0..spec.steps.div_ceil(rounds.batches).max(1) {
            let seconds = rounds.round(batches, inbox)?.as_secs_f64();
            rounds.seconds.push(seconds);
            if begun.elapsed() >= LONGEST {
                break;
            }
        }
        Ok(rounds)
    }

    fn round(&self, batches: &mut dyn Batches, inbox: &Inbox) -> Result<Duration, Halt> {
        let begun = Instant::now();
        for _ in 0..self.batches {
            if inbox.stop_requested() {
                return Err(Halt::Ended(Outcome::Cancelled));
            }
            batches.next_batch().map_err(|error| failed(with_causes(&error)))?;
        }
        Ok(begun.elapsed())
    }

    /// The rate is that of the mean round: a loader that stalls now and then is as slow as that makes it.
    fn measure(&self, spec: &TrialSpec) -> Measurement {
        let count = f64::from(self.batches);
        let samples = count * spec.point.batch_size as f64;
        let mean_seconds = mean(&self.seconds).unwrap_or(0.0);
        let half_width = mean_half_width(&self.seconds);
        let in_seconds = |amount: f64, seconds: f64| amount / seconds.max(SHORTEST_ROUND_SECONDS);
        let batch_ms = SampleSet::new(self.seconds.iter().map(|seconds| 1e3 * seconds / count));
        Measurement {
            steps: u32::try_from(self.seconds.len()).unwrap_or(u32::MAX).saturating_mul(self.batches),
            samples_per_second: in_seconds(samples, mean_seconds),
            samples_per_second_interval: (
                in_seconds(samples, mean_seconds + half_width),
                in_seconds(samples, mean_seconds - half_width),
            ),
            step_ms: StepQuantiles {
                p50: batch_ms.median().unwrap_or(0.0),
                p95: batch_ms.quantile(0.95).unwrap_or(0.0),
            },
            batches_per_second: Some(in_seconds(count, mean_seconds)),
            ..Measurement::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::rules::testing::point;
    use crate::trial::{Point, Purpose, TrialId};

    fn spec(workers: usize) -> TrialSpec {
        let point = Point { loader_workers: workers, prefetch_depth: 1, ..point(8) };
        TrialSpec { id: TrialId(1), purpose: Purpose::Throughput, point, warmup_steps: 4, steps: 8, sample_every: 2 }
    }

    #[test]
    fn the_rate_is_that_of_the_mean_round() {
        // Four workers: rounds of half a second, and one that stalled.
        let rounds = Rounds { seconds: vec![0.5, 0.5, 0.5, 2.5], batches: 4 };
        let measurement = rounds.measure(&spec(4));
        assert_eq!((measurement.steps, measurement.batches_per_second), (16, Some(4.0)));
        assert_eq!((measurement.samples_per_second, measurement.step_ms.p50), (32.0, 125.0));
        let (low, high) = measurement.samples_per_second_interval;
        assert!(low < 32.0 && 32.0 < high);
    }

    #[test]
    fn a_clock_that_stands_still_gives_finite_figures() {
        for seconds in [vec![], vec![0.0, 0.0]] {
            let measurement = Rounds { seconds, batches: 1 }.measure(&spec(0));
            assert!(
                measurement.samples_per_second.is_finite() && measurement.samples_per_second_interval.1.is_finite()
            );
        }
    }
}
