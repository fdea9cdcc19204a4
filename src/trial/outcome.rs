//! How trials end, and what they measured.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::launcher::WorkerFacts;
use super::outlook::Outlook;
use super::spec::TrialSpec;
use super::statistics::{Trust, round_for_json};
use crate::memory::{MemorySample, Phase};

/// How a trial ended. Every trial ends in exactly one of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// All steps ran.
    Completed,
    /// A request did not fit under the limit. Figures are `None` where the process could not report them.
    OutOfMemory {
        /// The request.
        requested_bytes: Option<u64>,
        /// A at that moment.
        allocated_bytes: Option<u64>,
        /// V at that moment.
        reserved_bytes: Option<u64>,
        /// C.
        limit_bytes: Option<u64>,
        /// The step, counted from 0; `None` while the model was built.
        step: Option<u32>,
        /// What the training thread was doing.
        phase: Option<Phase>,
    },
    /// No step finished within the timeout.
    TimedOut {
        /// The timeout.
        seconds: f64,
    },
    /// The worker was ended by a signal, or left without an answer.
    Crashed {
        /// The signal's number, where there was one.
        signal: Option<i32>,
        /// The exit status, where there was one.
        status: Option<i32>,
        /// The last lines of the worker's log.
        log: String,
    },
    /// The workload's own error.
    Failed {
        /// What it said, with its causes.
        message: String,
    },
    /// The device is in a state that only a new process can leave.
    DeviceError {
        /// What the driver said.
        message: String,
    },
    /// The worker spoke out of turn, or not the protocol at all.
    ProtocolError {
        /// What was wrong.
        message: String,
    },
    /// The loss is not finite.
    Diverged {
        /// The step, counted from 0.
        step: u32,
    },
    /// The host ran out of memory and the kernel ended the worker.
    HostOutOfMemory,
    /// The launcher started no worker in time, which says nothing of the trial.
    NotStarted {
        /// The start timeout.
        seconds: f64,
        /// The last lines of the launcher's log.
        log: String,
    },
    /// The user or the budget ended it.
    Cancelled,
}

impl Outcome {
    /// The outcome's name, as files hold it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::OutOfMemory { .. } => "out_of_memory",
            Self::TimedOut { .. } => "timed_out",
            Self::Crashed { .. } => "crashed",
            Self::Failed { .. } => "failed",
            Self::DeviceError { .. } => "device_error",
            Self::ProtocolError { .. } => "protocol_error",
            Self::Diverged { .. } => "diverged",
            Self::HostOutOfMemory => "host_out_of_memory",
            Self::NotStarted { .. } => "not_started",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether a smaller configuration could fare better. Anything else fails whatever the size.
    pub fn is_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::HostOutOfMemory)
    }
}

impl fmt::Display for Outcome {
    /// One line for people, without the log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completed => f.write_str("completed"),
            Self::OutOfMemory { requested_bytes, limit_bytes, step, .. } => {
                f.write_str("out of memory")?;
                if let Some(step) = step {
                    write!(f, " at step {step}")?;
                }
                if let (Some(requested), Some(limit)) = (requested_bytes, limit_bytes) {
                    write!(
                        f,
                        " ({} requested, limit {})",
                        crate::units::Bytes(*requested),
                        crate::units::Bytes(*limit)
                    )?;
                }
                Ok(())
            }
            Self::TimedOut { seconds } => write!(f, "no step finished within {seconds:.0} s"),
            Self::Crashed { signal: Some(signal), .. } => write!(f, "ended by signal {signal}"),
            Self::Crashed { status: Some(status), .. } => write!(f, "left with status {status} and no answer"),
            Self::Crashed { .. } => f.write_str("left without an answer"),
            Self::Failed { message } => write!(f, "failed: {message}"),
            Self::DeviceError { message } => write!(f, "device error: {message}"),
            Self::ProtocolError { message } => write!(f, "protocol error: {message}"),
            Self::Diverged { step } => write!(f, "the loss is not finite at step {step}"),
            Self::HostOutOfMemory => f.write_str("the host ran out of memory"),
            Self::NotStarted { seconds, .. } => write!(f, "the launcher started no worker within {seconds:.0} s"),
            Self::Cancelled => f.write_str("cancelled"),
        }
    }
}

/// Times of one step in milliseconds, with the device synchronised at each border.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    /// Blocked on the loader.
    pub data_wait_ms: f64,
    /// Copy to the device.
    pub load_ms: f64,
    /// Forward pass and loss.
    pub forward_ms: f64,
    /// Backward pass and accumulation.
    pub backward_ms: f64,
    /// Optimizer step; 0 in steps without an update.
    pub optimizer_ms: f64,
    /// The whole step, from asking for the batch to its end.
    pub total_ms: f64,
}

/// Quantiles of the step time in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepQuantiles {
    /// The median.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
}

/// What a completed trial measured, warm-up dropped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Steps measured.
    pub steps: u32,
    /// End to end, the loader included, at the accumulation of the planned run.
    pub samples_per_second: f64,
    /// The 95 % confidence interval of `samples_per_second`.
    pub samples_per_second_interval: (f64, f64),
    /// Whether the times had settled; absent where it was not judged.
    #[serde(default)]
    pub trust: Option<Trust>,
    /// Time of a step.
    pub step_ms: StepQuantiles,
    /// Median of each part of a step; the optimizer's over the steps that had an update.
    pub phases: StepTimes,
    /// Share of the time spent blocked on the loader.
    pub data_wait_fraction: f64,
    /// Highest A of the whole trial.
    pub peak_allocated_bytes: u64,
    /// Highest V of the whole trial.
    pub peak_reserved_bytes: u64,
    /// The largest single request of the whole trial.
    pub largest_request_bytes: u64,
    /// Mean loss over the first tenth of the steps (at least one); `None` where the program tells none.
    pub first_loss: Option<f64>,
    /// Mean loss over the last tenth of the steps (at least one); `None` where the program tells none.
    pub last_loss: Option<f64>,
    /// Loss of the evaluation pass, where the trial had one.
    pub evaluation_loss: Option<f64>,
    /// Bytes of the checkpoint, where the trial wrote one.
    pub checkpoint_bytes: Option<u64>,
    /// Batches that the loader alone makes in a second, where the trial ran nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batches_per_second: Option<f64>,
    /// Bytes of the largest batch in host memory; `None` where a program of the user's own loads them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_bytes: Option<u64>,
    /// Whether the model keeps running statistics, as one with batch normalisation does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_batch_norm: bool,
    /// Samples in the part of the data to train on; `None` where a program of the user's own loads them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training_samples: Option<usize>,
    /// Ranks that never reported beside others that did: nobody knows what they need.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen_ranks: Vec<usize>,
    /// Whether nothing shows that the program took the batch size: it reported nothing, and no placeholder gave it one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_batch_size_unseen: bool,
}

impl Measurement {
    fn round(&mut self) {
        let StepTimes { data_wait_ms, load_ms, forward_ms, backward_ms, optimizer_ms, total_ms } = &mut self.phases;
        let figures = [
            data_wait_ms,
            load_ms,
            forward_ms,
            backward_ms,
            optimizer_ms,
            total_ms,
            &mut self.samples_per_second,
            &mut self.samples_per_second_interval.0,
            &mut self.samples_per_second_interval.1,
            &mut self.step_ms.p50,
            &mut self.step_ms.p95,
            &mut self.data_wait_fraction,
        ];
        let optional =
            [&mut self.first_loss, &mut self.last_loss, &mut self.evaluation_loss, &mut self.batches_per_second];
        for figure in figures.into_iter().chain(optional.into_iter().flatten()) {
            *figure = round_for_json(*figure);
        }
    }
}

/// A finished trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialRecord {
    /// What was run.
    pub spec: TrialSpec,
    /// How it ended.
    pub outcome: Outcome,
    /// Which of several replicas ended it, where one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
    /// What it measured, if it completed.
    pub measurement: Option<Measurement>,
    /// The memory figures at every sample point, up to the end.
    pub samples: Vec<MemorySample>,
    /// What the workload should be told about, such as parameters without a gradient.
    pub warnings: Vec<String>,
    /// Wall time of the trial.
    pub seconds: f64,
    /// Where it ran; absent where the tuner does not know (a program of the user's own, an earlier version's journal).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerFacts>,
    /// Where each of several replicas ran, in their order; the first is `worker`. Empty where there is one alone, or where
    /// the tuner does not know of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<WorkerFacts>,
    /// What is forecast of the whole run, in a soak. It is part of the record so that a rule can read it, and so that a
    /// resumed study need not play the run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outlook: Option<Outlook>,
}

impl TrialRecord {
    /// The record of a trial that has not ended: cancelled, until something else is known.
    pub fn begun(spec: &TrialSpec) -> Self {
        Self {
            spec: spec.clone(),
            outcome: Outcome::Cancelled,
            rank: None,
            measurement: None,
            samples: Vec::new(),
            warnings: Vec::new(),
            outlook: None,
            seconds: 0.0,
            worker: None,
            ranks: Vec::new(),
        }
    }

    /// Whether the allocator was seen from inside. It is not where a program of the user's own does not report.
    pub fn is_observed(&self) -> bool {
        self.samples.iter().any(|sample| sample.allocated_bytes > 0 || sample.rates.peak.is_some())
    }

    /// Whether nothing of it was left unseen that another run of the point may differ in: a rank, or the batch size that the
    /// program took.
    pub fn is_fully_seen(&self) -> bool {
        let seen = |found: &Measurement| found.unseen_ranks.is_empty() && !found.is_batch_size_unseen;
        self.measurement.as_ref().is_none_or(seen)
    }

    /// How it ended, in one line for people, and where one of several replicas ended it, which.
    pub fn ending(&self) -> String {
        match self.rank {
            Some(rank) => format!("rank {rank}: {}", self.outcome),
            None => self.outcome.to_string(),
        }
    }

    /// Whether all steps ran.
    pub fn completed(&self) -> bool {
        self.outcome == Outcome::Completed
    }

    /// The record with every measured figure in a form that JSON gives back to the last bit, so that what is decided
    /// now is decided again when the journal is replayed.
    pub fn canonical(mut self) -> Self {
        for rates in
            self.samples.iter_mut().flat_map(|sample| std::iter::once(&mut sample.rates).chain(&mut sample.shadow))
        {
            for rate in [&mut rates.peak, &mut rates.external, &mut rates.reserved] {
                *rate = rate.map(round_for_json);
            }
        }
        if let Some(measurement) = &mut self.measurement {
            measurement.round();
        }
        if let Outcome::TimedOut { seconds } | Outcome::NotStarted { seconds, .. } = &mut self.outcome {
            *seconds = round_for_json(*seconds);
        }
        self.seconds = round_for_json(self.seconds);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_version_wrote_is_read_and_what_it_did_not_know_is_not_written() {
        let value = serde_json::to_value(Measurement::default()).unwrap();
        for name in ["batches_per_second", "batch_bytes", "has_batch_norm", "training_samples"] {
            assert!(value.get(name).is_none(), "{name}");
        }
        assert_eq!(serde_json::from_value::<Measurement>(value).unwrap(), Measurement::default());
    }

    #[test]
    fn a_measurement_of_a_version_that_did_not_judge_its_times_is_read() {
        let mut value = serde_json::to_value(Measurement::default()).unwrap();
        value.as_object_mut().unwrap().remove("trust");
        assert_eq!(serde_json::from_value::<Measurement>(value).unwrap(), Measurement::default());
    }
}
