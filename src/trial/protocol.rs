//! The line protocol between the driver and a worker: versioned JSON, one message a line.
//!
//! ```text
//! worker                                driver
//!   hello {protocol, version, pid}  ──▶
//!                                   ◀──  open {workload, study}
//!   ready {facts}  or  refused      ──▶
//!                                   ◀──  run {trial}
//!   step, sample, extended …        ──▶
//!                                   ◀──  (stop)
//!   ended {outcome, measurement}    ──▶
//!                                   ◀──  run … or exit, or end of file
//! ```
//!
//! A worker ends when its input ends. Its exit status is never success without the `ended` line. Unknown fields are
//! ignored, so that a newer side can add some; unknown messages are a protocol error.

use serde::{Deserialize, Serialize};

use super::outcome::{Measurement, Outcome, StepTimes};
use super::spec::{TrialId, TrialSpec, WorkloadSpec};
use crate::device::DeviceFacts;
use crate::device::collective::Replica;
use crate::memory::MemorySample;

/// The protocol's version; both sides must speak the same.
pub const PROTOCOL: u32 = 1;

/// The longest line that either side accepts.
pub const MAX_LINE_BYTES: usize = 4 << 20;

/// What the driver says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum ToWorker {
    /// Open the device and get the workload ready.
    Open {
        /// The workload.
        workload: Box<WorkloadSpec>,
        /// Where a soak may write its checkpoint.
        scratch: std::path::PathBuf,
        /// The worker's place, where it is one of several replicas. It is ready once all of them are.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replica: Option<Replica>,
    },
    /// Run a trial.
    Run {
        /// Which.
        trial: TrialSpec,
    },
    /// Finish the running step, then end the trial as cancelled.
    Stop,
    /// Leave.
    Exit,
}

/// What a worker says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum FromWorker {
    /// The first line.
    Hello {
        /// The protocol it speaks.
        protocol: u32,
        /// batchtune's version.
        version: String,
        /// Its process.
        pid: u32,
    },
    /// The device is open.
    Ready {
        /// What it is.
        facts: DeviceFacts,
    },
    /// The device cannot be used, or the workload cannot be set up on any.
    Refused {
        /// Whose fault it is.
        cause: Refusal,
        /// What is wrong, with its causes.
        reason: String,
    },
    /// A step finished.
    Step {
        /// The trial.
        trial: TrialId,
        /// Steps finished so far.
        step: u32,
        /// Its loss.
        loss: f64,
        /// Its times.
        times: StepTimes,
    },
    /// All steps ran, and the trial goes on: their times cannot be believed yet.
    Extended {
        /// The trial.
        trial: TrialId,
        /// Steps in all as of now, at most [`TrialSpec::longest_steps`].
        total: u32,
    },
    /// A memory sample was taken.
    Sample {
        /// The trial.
        trial: TrialId,
        /// The figures.
        sample: MemorySample,
    },
    /// The user should know.
    Warning {
        /// The trial.
        trial: TrialId,
        /// About what.
        text: String,
    },
    /// This worker's trial cannot go on, since another replica is lost.
    PeerLost {
        /// The trial.
        trial: TrialId,
        /// The rank of the other.
        rank: usize,
        /// How long it was waited for; `None` where it ended or left.
        seconds: Option<f64>,
    },
    /// The trial is over.
    Ended {
        /// The trial.
        trial: TrialId,
        /// How it ended.
        outcome: Outcome,
        /// What it measured, if it completed.
        measurement: Option<Measurement>,
        /// Whether the device is as clean as before the trial, so that this worker may run another.
        clean: bool,
    },
}

/// Whose fault a refusal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The device is not there or cannot be used.
    Device,
    /// The data or the model is wrong.
    Workload,
}
