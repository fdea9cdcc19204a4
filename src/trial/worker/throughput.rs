//! A trial of the loader alone: how many batches a second the workers of a point make when no step waits for them.
//!
//! Against what the step asks for, this tells how many workers it takes, without a model in memory and without a step
//! run. How it is measured, and what the figure is worth: see [`data::throughput`](crate::data::throughput()).

use std::io;
use std::time::Duration;

use super::inbox::Inbox;
use super::open::Supplies;
use super::trial::{Halt, failed};
use crate::data::{Extent, Throughput, throughput};
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
    let (outcome, measurement) = match load(spec, supplies, inbox) {
        Ok(loaded) => (Outcome::Completed, Some(measurement(&loaded))),
        Err(Halt::Ended(outcome)) => (outcome, None),
        // Loading needs no other replica.
        Err(Halt::Lost(error)) => (Outcome::Failed { message: error.to_string() }, None),
        Err(Halt::Unheard(error)) => return Err(error),
    };
    Ok(FromWorker::Ended { trial: spec.id, outcome, measurement, clean: true })
}

fn load(spec: &TrialSpec, supplies: &dyn Supplies, inbox: &Inbox) -> Result<Throughput, Halt> {
    let round = spec.loader_round();
    let (warmup_rounds, rounds) = (spec.warmup_steps.div_ceil(round), spec.steps.div_ceil(round));
    let extent = Extent { round, warmup_rounds, rounds, time: LONGEST };
    let mut batches = supplies.training_batches(&spec.point);
    let loaded = throughput(batches.as_mut(), extent, &|| inbox.stop_requested());
    loaded.map_err(|error| failed(with_causes(&error)))?.ok_or(Halt::Ended(Outcome::Cancelled))
}

/// The rate with its interval, which comes from how much rounds differ.
fn measurement(loaded: &Throughput) -> Measurement {
    let count = f64::from(loaded.round);
    let samples = loaded.samples as f64 / loaded.seconds.len().max(1) as f64;
    let mean_seconds = mean(&loaded.seconds).unwrap_or(0.0);
    let half_width = mean_half_width(&loaded.seconds);
    let in_seconds = |amount: f64, seconds: f64| amount / seconds.max(SHORTEST_ROUND_SECONDS);
    let batch_ms = SampleSet::new(loaded.seconds.iter().map(|seconds| 1e3 * seconds / count));
    Measurement {
        steps: u32::try_from(loaded.batches()).unwrap_or(u32::MAX),
        samples_per_second: loaded.samples_per_second(),
        samples_per_second_interval: (
            in_seconds(samples, mean_seconds + half_width),
            in_seconds(samples, mean_seconds - half_width),
        ),
        step_ms: StepQuantiles { p50: batch_ms.median().unwrap_or(0.0), p95: batch_ms.quantile(0.95).unwrap_or(0.0) },
        batches_per_second: Some(loaded.batches_per_second()),
        ..Measurement::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_mean_round() {
        // Four workers: rounds of half a second, and one that stalled.
        let loaded = Throughput { seconds: vec![0.5, 0.5, 0.5, 2.5], round: 4, samples: 16 * 8, batch_bytes: 0 };
        let measurement = measurement(&loaded);
        assert_eq!((measurement.steps, measurement.batches_per_second), (16, Some(4.0)));
        assert_eq!((measurement.samples_per_second, measurement.step_ms.p50), (32.0, 125.0));
        let (low, high) = measurement.samples_per_second_interval;
        assert!(low < 32.0 && 32.0 < high);
    }

    #[test]
    fn a_clock_that_stands_still_gives_finite_figures() {
        for seconds in [vec![], vec![0.0, 0.0]] {
            let measurement = measurement(&Throughput { seconds, round: 1, samples: 8, batch_bytes: 0 });
            assert!(
                measurement.samples_per_second.is_finite() && measurement.samples_per_second_interval.1.is_finite()
            );
        }
    }
}
