//! The line protocol between the driver and a worker: versioned JSON, one message a line.
//!
//! ```text
//! worker                                driver
//!   hello {protocol, …, place}      ──▶
//!                                   ◀──  open {workload, study, lease}
//!   ready {facts}  or  refused      ──▶
//!                                   ◀──  run {trial}
//!   step, sample, extended …        ──▶
//!                                   ◀──  (stop), (ping), (ping) …
//!   ended {outcome, measurement}    ──▶
//!                                   ◀──  run … or exit, or end of file
//! ```
//!
//! A worker that is one of several replicas hears nothing but pings after its hello until all of them have said theirs.
//!
//! Where the replicas' machines are apart the driver passes on, as `relay`, what the workers have for each other.
//!
//! A worker ends when its input ends. Its exit status is never success without the `ended` line. Unknown fields are
//! ignored, so that a newer side can add some; unknown messages are a protocol error.
//!
//! # The lease
//! A worker that hears nothing from its driver for as long as its lease leaves by itself, with a status of its own, whatever
//! it is doing. On one machine the end of its input says the same, sooner; behind a launcher the input may stay open when
//! everything in between is dead, and the worker would hold its card for ever. So the driver pings, from the thread that
//! writes to the worker, and any other message counts as well.
//!
//! Who stands still is not dead. Time in which the *worker* does not run (SIGSTOP, a suspended machine) does not count. A
//! *driver* that stands still for longer than the lease (Ctrl-Z, a suspended laptop in front of a cluster) loses its
//! worker, which gives the card back; when it goes on it sees the status, and the trial is run again by a new worker: it
//! is no trial's fault. Where driver and worker are suspended together neither notices, since their clock
//! (`CLOCK_MONOTONIC`) stands still too.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::launcher::Place;
use super::outcome::{Measurement, Outcome, StepTimes};
use super::spec::{TrialId, TrialSpec, WorkloadSpec};
use crate::device::DeviceFacts;
use crate::device::collective::Replica;
use crate::memory::MemorySample;

/// The protocol's version; both sides must speak the same.
pub const PROTOCOL: u32 = 4;

/// The lease of a worker that was not told another.
pub const LEASE: Duration = Duration::from_secs(60);

/// Pings in a lease: a message may be late or two, and the lease still holds.
pub const PINGS_PER_LEASE: u32 = 6;

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
        /// The longest silence after which the worker still takes the driver for alive.
        #[serde(default = "default_lease")]
        lease: Duration,
    },
    /// Run a trial.
    Run {
        /// Which.
        trial: TrialSpec,
    },
    /// What another replica said.
    Relay {
        /// Its rank.
        rank: usize,
        /// What it said; nothing where it is gone.
        bytes: Vec<u8>,
    },
    /// Finish the running step, then end the trial as cancelled.
    Stop,
    /// The driver lives.
    Ping,
    /// Leave.
    Exit,
}

fn default_lease() -> Duration {
    LEASE
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
        /// Where it runs.
        #[serde(default)]
        place: Place,
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
    /// How far this worker has come in what all replicas do together. Said where it stays there for a moment: then it waits for
    /// another one there, or works on what comes next, or hangs.
    Entered {
        /// The trial.
        trial: TrialId,
        /// Exchanges that it has come to since the replicas met.
        exchanges: u64,
    },
    /// This worker has something for another replica.
    Relay {
        /// The rank of the other.
        rank: usize,
        /// What it says; nothing where it will say no more.
        bytes: Vec<u8>,
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
