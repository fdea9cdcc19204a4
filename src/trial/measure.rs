//! From the step times of a trial to its [`Measurement`]: pure arithmetic.
//!
//! # Samples per second
//! A trial runs min(a, 2) micro-batches an update, the planned run a. What an update of the planned run takes is
//! therefore put together from parts:
//!
//! ```text
//! update(a) = a · (work + wait) + optimizer
//! samples per second = a · batch size / update(a) = batch size / (work + wait + optimizer / a)
//! ```
//!
//! - *work* is a step without its data wait and its optimizer step: the **median** over the measured steps, so that
//!   a step which the operating system preempted does not count.
//! - *wait* is the time blocked on the loader: the **mean**. A starved loader shows as a burst every few steps (with one
//!   worker thread and four batches ready, every fifth), which a median would hide.
//! - *optimizer* is the median over the steps that had an update. Of an exchange of gradients it has what was waited for:
//!   all of it, or, where it goes on beside the backward pass, what that did not hide.
//!
//! # Trust
//! Whether the times had settled is told by whole updates, waits included: the steps of an update differ by what they do
//! (the first makes the gradients that the others add to, the last has the optimizer), and that is no noise.
//!
//! The interval puts the order-statistics interval of the work and the standard error of the wait together at their
//! worst ends, so it is wider than 95 % where both matter.

use super::outcome::{Measurement, StepQuantiles, StepTimes};
use super::spec::TrialSpec;
use super::statistics::{SampleSet, Trust, mean, mean_half_width, median, round_for_json};
use crate::memory::MemorySample;

/// The shortest time a step can be taken to need: a fake clock may say 0, and rates must stay finite.
const SHORTEST_STEP_MS: f64 = 1e-6;
/// `first_loss` and `last_loss` are means over this share of the steps.
const LOSS_SHARE: usize = 10;

/// Everything that a trial recorded while it ran.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// The times of every step, warm-up included.
    pub times: Vec<StepTimes>,
    /// The loss of every step; finite, or the trial would have ended as diverged.
    pub losses: Vec<f64>,
    /// Every memory sample.
    pub samples: Vec<MemorySample>,
    /// Loss of the evaluation pass, where there was one.
    pub evaluation_loss: Option<f64>,
    /// Bytes of the checkpoint, where one was written.
    pub checkpoint_bytes: Option<u64>,
}

impl Series {
    /// The measurement of a completed trial.
    pub fn measure(&self, spec: &TrialSpec) -> Measurement {
        let measured = self.measured(spec.warmup_steps);
        let of = |part: fn(&StepTimes) -> f64| measured.iter().map(part).collect::<Vec<f64>>();
        let (waits, totals) = (of(|times| times.data_wait_ms), SampleSet::new(of(|times| times.total_ms)));
        let optimizer_ms = self.optimizer_ms(measured);
        let (samples_per_second, interval) = throughput(spec, measured, optimizer_ms);
        let total_ms: f64 = measured.iter().map(|times| times.total_ms).sum();
        let part = |part: fn(&StepTimes) -> f64| round_for_json(median(of(part)).unwrap_or(0.0));
        Measurement {
            steps: u32::try_from(measured.len()).unwrap_or(u32::MAX),
            samples_per_second: round_for_json(samples_per_second),
            samples_per_second_interval: (round_for_json(interval.0), round_for_json(interval.1)),
            trust: Some(self.trust(spec)),
            step_ms: StepQuantiles {
                p50: round_for_json(totals.median().unwrap_or(0.0)),
                p95: round_for_json(totals.quantile(0.95).unwrap_or(0.0)),
            },
            phases: StepTimes {
                data_wait_ms: part(|times| times.data_wait_ms),
                load_ms: part(|times| times.load_ms),
                forward_ms: part(|times| times.forward_ms),
                backward_ms: part(|times| times.backward_ms),
                optimizer_ms: round_for_json(optimizer_ms),
                total_ms: part(|times| times.total_ms),
            },
            data_wait_fraction: round_for_json((waits.iter().sum::<f64>() / total_ms.max(SHORTEST_STEP_MS)).min(1.0)),
            peak_allocated_bytes: self.highest(|sample| sample.peak_allocated_bytes),
            peak_reserved_bytes: self.highest(|sample| sample.peak_reserved_bytes),
            largest_request_bytes: self.highest(|sample| sample.largest_request_bytes),
            first_loss: self.mean_loss(LossWindow::First),
            last_loss: self.mean_loss(LossWindow::Last),
            evaluation_loss: self.evaluation_loss.filter(|loss| loss.is_finite()).map(round_for_json),
            checkpoint_bytes: self.checkpoint_bytes,
            batches_per_second: None,
            batch_bytes: None,
            has_batch_norm: false,
            training_samples: None,
            unseen_ranks: Vec::new(),
            is_batch_size_unseen: false,
        }
    }

    /// Whether the times of the measured updates may be believed. An update that the warm-up began is none of them.
    pub fn trust(&self, spec: &TrialSpec) -> Trust {
        let accumulation = spec.accumulation().max(1);
        let from = (spec.warmup_steps as usize).checked_next_multiple_of(accumulation).unwrap_or(usize::MAX);
        let updates = self.times.get(from..).unwrap_or_default().chunks_exact(accumulation);
        SampleSet::new(updates.map(|steps| steps.iter().map(|times| times.total_ms).sum())).trust()
    }

    /// The steps after the warm-up; where that leaves none, the last step, which is the warmest there is.
    fn measured(&self, warmup_steps: u32) -> &[StepTimes] {
        let from = (warmup_steps as usize).min(self.times.len().saturating_sub(1));
        self.times.get(from..).unwrap_or_default()
    }

    /// Median time of an optimizer step; over the whole trial where the measured steps had none, 0 without any.
    fn optimizer_ms(&self, measured: &[StepTimes]) -> f64 {
        let updates = |steps: &[StepTimes]| {
            median(steps.iter().map(|times| times.optimizer_ms).filter(|milliseconds| *milliseconds > 0.0))
        };
        updates(measured).or_else(|| updates(&self.times)).unwrap_or(0.0)
    }

    fn highest(&self, figure: fn(&MemorySample) -> u64) -> u64 {
        self.samples.iter().map(figure).max().unwrap_or(0)
    }

    /// The mean loss at one end of the trial. Warm-up steps count: they train like any other.
    fn mean_loss(&self, window: LossWindow) -> Option<f64> {
        let count = (self.losses.len() / LOSS_SHARE).max(1).min(self.losses.len());
        let losses = match window {
            LossWindow::First => self.losses.get(..count),
            LossWindow::Last => self.losses.get(self.losses.len() - count..),
        };
        losses.and_then(mean).map(round_for_json)
    }
}

#[derive(Clone, Copy)]
enum LossWindow {
    First,
    Last,
}

/// Samples per second at the planned accumulation, with the interval.
fn throughput(spec: &TrialSpec, measured: &[StepTimes], optimizer_ms: f64) -> (f64, (f64, f64)) {
    let batch_size = spec.point.batch_size as f64;
    let optimizer_share_ms = optimizer_ms / spec.point.accumulation_steps.max(1) as f64;
    let waits: Vec<f64> = measured.iter().map(|times| times.data_wait_ms).collect();
    let work = SampleSet::new(
        measured.iter().map(|times| (times.total_ms - times.data_wait_ms - times.optimizer_ms).max(0.0)),
    );
    let wait_ms = mean(&waits).unwrap_or(0.0);
    let wait_half_width_ms = mean_half_width(&waits);
    let per_second = |work_ms: f64, wait_ms: f64| {
        1e3 * batch_size / (work_ms + wait_ms.max(0.0) + optimizer_share_ms).max(SHORTEST_STEP_MS)
    };
    let work_ms = work.median().unwrap_or(0.0);
    let (quickest_ms, slowest_ms) = work.median_interval().unwrap_or((work_ms, work_ms));
    let interval =
        (per_second(slowest_ms, wait_ms + wait_half_width_ms), per_second(quickest_ms, wait_ms - wait_half_width_ms));
    (per_second(work_ms, wait_ms), interval)
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the expected values are exact")]
mod tests {
    use super::*;
    use crate::trial::spec::{Point, Purpose, TrialId};

    fn spec(batch_size: usize, accumulation_steps: usize, warmup_steps: u32) -> TrialSpec {
        TrialSpec {
            id: TrialId(1),
            purpose: Purpose::Ladder,
            point: Point { accumulation_steps, ..Point::plain(batch_size) },
            warmup_steps,
            steps: 10,
            sample_every: 2,
            sample_size: None,
        }
    }

    fn step(wait: f64, work: f64, optimizer: f64) -> StepTimes {
        StepTimes {
            data_wait_ms: wait,
            load_ms: 0.0,
            forward_ms: work / 3.0,
            backward_ms: work * 2.0 / 3.0,
            optimizer_ms: optimizer,
            total_ms: wait + work + optimizer,
        }
    }

    fn series(times: Vec<StepTimes>) -> Series {
        let losses = (0..times.len()).map(|i| 4.0 - i as f64 * 0.1).collect();
        Series { times, losses, ..Series::default() }
    }

    #[test]
    fn the_optimizer_is_shared_by_the_planned_micro_batches_not_by_the_trial_s() {
        // The trial updates every second step; the planned run every eighth.
        let times = (0..12).map(|i| step(0.0, 100.0, if i % 2 == 1 { 40.0 } else { 0.0 })).collect();
        let measurement = series(times).measure(&spec(16, 8, 2));
        // 8 steps of 100 ms and one update of 40 ms make 128 samples in 840 ms.
        assert!((measurement.samples_per_second - 128.0 / 0.840).abs() < 1e-6);
        assert_eq!(measurement.steps, 10);
        assert_eq!(measurement.phases.optimizer_ms, 40.0);
    }

    #[test]
    fn a_preempted_step_does_not_count_but_a_starved_loader_does() {
        let mut times: Vec<StepTimes> = (0..20).map(|_| step(0.0, 100.0, 0.0)).collect();
        times[5] = step(0.0, 5_000.0, 0.0);
        let preempted = series(times.clone()).measure(&spec(10, 1, 0));
        assert!((preempted.samples_per_second - 100.0).abs() < 1e-9);

        // Every fifth step waits half a second: the median wait is 0, the mean 100 ms.
        for (index, times) in times.iter_mut().enumerate() {
            *times = step(if index % 5 == 0 { 500.0 } else { 0.0 }, 100.0, 0.0);
        }
        let starved = series(times).measure(&spec(10, 1, 0));
        assert!((starved.samples_per_second - 50.0).abs() < 1e-9);
        assert_eq!(starved.phases.data_wait_ms, 0.0);
        assert!((starved.data_wait_fraction - 0.5).abs() < 1e-9);
        let (low, high) = starved.samples_per_second_interval;
        assert!(low < 50.0 && 50.0 < high);
    }

    #[test]
    fn warm_up_is_dropped_from_times_and_kept_in_losses() {
        let mut times: Vec<StepTimes> = (0..20).map(|_| step(0.0, 10.0, 0.0)).collect();
        times[0] = step(0.0, 9_000.0, 0.0);
        let measurement = series(times).measure(&spec(1, 1, 1));
        assert_eq!(measurement.step_ms.p95, 10.0);
        assert!((measurement.first_loss.unwrap() - 3.95).abs() < 1e-9, "mean of the first two of twenty");
        assert!((measurement.last_loss.unwrap() - 2.15).abs() < 1e-9);
    }

    #[test]
    fn steps_that_differ_within_an_update_are_no_noise() {
        // The second of two micro-batches has the optimizer: steps alternate between 100 and 160 ms, updates do not.
        let times =
            (0..16).map(|i| step(0.0, if i % 2 == 1 { 120.0 } else { 100.0 }, if i % 2 == 1 { 40.0 } else { 0.0 }));
        let series = series(times.collect());
        assert_eq!(series.trust(&spec(16, 8, 2)), Trust::Reliable);
        assert_eq!(series.trust(&spec(16, 1, 2)), Trust::Wide);
        assert_eq!(series.measure(&spec(16, 8, 2)).trust, Some(Trust::Reliable));
    }

    #[test]
    fn updates_that_the_warm_up_began_or_the_end_cut_off_are_not_judged() {
        let mut times = vec![step(0.0, 100.0, 0.0); 15];
        times[1] = step(0.0, 9_000.0, 0.0);
        times[14] = step(0.0, 9_000.0, 0.0);
        let series = series(times);
        assert_eq!(series.trust(&spec(4, 2, 1)), Trust::Reliable, "six whole updates are left");
        assert_eq!(series.trust(&spec(4, 2, 3)), Trust::TooFew);
        assert_eq!(series.trust(&spec(4, 2, u32::MAX)), Trust::TooFew);
    }

    #[test]
    fn a_loader_that_runs_dry_after_its_first_batches_is_a_drift() {
        let wait = |index: i32| if index < 8 { 0.0 } else { 40.0 };
        let times: Vec<StepTimes> = (0..14).map(|index| step(wait(index), 100.0, 0.0)).collect();
        assert_eq!(series(times).trust(&spec(4, 1, 2)), Trust::Drifting);
    }

    #[test]
    fn a_trial_shorter_than_its_warm_up_measures_its_last_step() {
        let measurement = series(vec![step(0.0, 90.0, 0.0), step(0.0, 10.0, 0.0)]).measure(&spec(1, 1, 5));
        assert_eq!((measurement.steps, measurement.step_ms.p50), (1, 10.0));
    }

    #[test]
    fn peaks_are_the_highest_over_all_samples() {
        let sample = |allocated, reserved, request| MemorySample {
            peak_allocated_bytes: allocated,
            peak_reserved_bytes: reserved,
            largest_request_bytes: request,
            ..MemorySample::default()
        };
        let series = Series { samples: vec![sample(5, 9, 1), sample(7, 8, 3)], ..series(vec![step(0.0, 1.0, 0.0)]) };
        let measurement = series.measure(&spec(1, 1, 0));
        assert_eq!(
            (measurement.peak_allocated_bytes, measurement.peak_reserved_bytes, measurement.largest_request_bytes),
            (7, 9, 3)
        );
    }

    #[test]
    fn nothing_recorded_and_clocks_that_stand_still_give_finite_figures() {
        let standing = series(vec![StepTimes::default(); 8]).measure(&spec(4, 2, 1));
        let empty = Series::default().measure(&spec(4, 2, 1));
        for measurement in [standing, empty] {
            assert!(measurement.samples_per_second.is_finite());
            assert!(measurement.data_wait_fraction.is_finite());
            assert!(
                measurement.first_loss.is_none_or(f64::is_finite) && measurement.last_loss.is_none_or(f64::is_finite)
            );
        }
    }
}
