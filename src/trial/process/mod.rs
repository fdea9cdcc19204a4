//! The executor that ships: trials in worker processes.
//!
//! [`ProcessExecutor`] starts `tune worker` (or whatever [`WorkerCommand`] says) in a process group of its own and
//! speaks the line protocol with it. A worker that says it is clean is used for the next trial; after anything else
//! it is ended, with everything that it started, and the next trial gets a new one.
//!
//! # How a trial's outcome is told
//! | seen | outcome |
//! |---|---|
//! | an `ended` line | what it says, whatever the exit status is afterwards |
//! | exit status [`FAR_OVER_LIMIT`](super::exit_status::FAR_OVER_LIMIT) | out of memory |
//! | exit status [`HOST_OUT_OF_MEMORY`](super::exit_status::HOST_OUT_OF_MEMORY) | host out of memory |
//! | SIGKILL that was not ours, and the cgroup's `oom_kill` counter rose | host out of memory |
//! | any other signal | crashed, with the signal |
//! | any exit status without an `ended` line, 0 too | crashed, with the status |
//! | a line that is no message, half a line, a message out of turn, a line too long | protocol error |
//! | nothing finished for too long | timed out |
//! | exit status [`LEASE_EXPIRED`]: we stood still | none; the trial is run again |
//! | a [launcher](super::launcher) that starts nothing in time | not started |
//! | the user or the budget said stop | cancelled |
//!
//! Behind a launcher these are the launcher's statuses, which pass the worker's on; 128 + n stands for signal n, and there
//! is no counter to look at.
//!
//! # How long is too long
//! The configuration's timeout bounds the time without a finished step. The first step of a trial also has
//! [`Patience::build`], since the model is built before it (and on CUDA the driver compiles kernels); so has the one wait
//! in a soak that holds its evaluation pass and its checkpoint, since they are no steps
//! ([`TrialSpec::soak_checks_after`]). A memory sample counts as a step here.

use std::time::{Duration, Instant};

use super::executor::{Executor, ExecutorError, Observation};
use super::exit_status::{DONE, LEASE_EXPIRED};
use super::launcher::Place;
use super::outcome::{Outcome, TrialRecord};
use super::protocol::ToWorker;
use super::spec::{TrialSpec, checkpoint_path};
use crate::device::DeviceFacts;
use crate::device::collective::Replica;

pub(in crate::trial) mod child;
mod config;
mod follow;
pub(in crate::trial) mod group;
mod host_memory;
mod muster;
mod opening;
mod pause;
pub(in crate::trial) mod reader;
mod start;

pub use child::Manner;
use child::Worker;
pub use config::{Patience, ProcessConfig, WorkerCommand};
use follow::{Ending, Watch};
pub(in crate::trial) use follow::{LostPeer, Peers};
pub use host_memory::OomKills;
pub(in crate::trial) use muster::Muster;

/// How often a wait looks at the interrupt and the budget.
const TICK: Duration = Duration::from_millis(50);
/// After a worker's end, for its output to end too: something it started may hold the pipe open.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long a new worker may find the device still occupied by the one before it.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// How often a trial is run again because this process stood still. Each time it did so for longer than a lease.
pub(in crate::trial) const LEASES: u32 = 5;

/// Where a worker comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    New,
    Reused,
}

/// Runs trials in worker processes, one at a time.
///
/// Use it from one thread, and keep that thread alive: a worker asks the kernel to be ended with the *thread* that
/// started it. Dropping the executor ends the worker and everything in its process group.
#[derive(Debug)]
pub struct ProcessExecutor {
    config: ProcessConfig,
    worker: Option<Worker>,
    facts: Option<DeviceFacts>,
    /// Where the last worker ran.
    place: Place,
    /// The place of its worker among replicas.
    replica: Option<Replica>,
    /// Where that worker waits for the others.
    muster: Option<Muster>,
    /// What the worker of the last trial said of the other replicas.
    peers: Peers,
    /// Workers started so far.
    started: u32,
}

impl ProcessExecutor {
    /// An executor without a worker; [`start`](Executor::start) brings one up.
    pub fn new(config: ProcessConfig) -> Self {
        Self {
            config,
            worker: None,
            facts: None,
            place: Place::default(),
            replica: None,
            muster: None,
            peers: Peers::default(),
            started: 0,
        }
    }

    /// The same for one of several replicas. It starts one worker and no other: a group is not mended, so a trial whose
    /// worker is gone is an error here.
    pub(in crate::trial) fn in_group(mut self, replica: Replica, muster: Muster) -> Self {
        (self.replica, self.muster) = (Some(replica), Some(muster));
        self
    }

    /// Whether the worker may run another trial.
    pub(in crate::trial) fn has_worker(&self) -> bool {
        self.worker.is_some()
    }

    /// Where the last worker ran.
    pub(in crate::trial) fn place(&self) -> &Place {
        &self.place
    }

    /// What the worker of the last trial said of the other replicas.
    pub(in crate::trial) fn peers(&self) -> Peers {
        self.peers
    }

    /// A worker whose device is open: the one at hand, or a new one.
    fn ready_worker(&mut self) -> Result<(Worker, Origin), ExecutorError> {
        if let Some(mut worker) = self.worker.take() {
            if worker.is_idle() {
                return Ok((worker, Origin::Reused));
            }
            // It died, or spoke out of turn, between two trials: that is no trial's fault.
            worker.end(Manner::Gently, &self.config.patience);
        }
        if self.replica.is_some() && self.facts.is_some() {
            return Err(ExecutorError::Startup { reason: "it ended after its last trial".to_owned() });
        }
        let free_by = Instant::now() + self.config.patience.baseline;
        let mut leases = LEASES;
        loop {
            match self.open_worker() {
                // Memory of the worker before may take a moment to come back, and a scheduler that worked may have a
                // moment of its own.
                Err(ExecutorError::DeviceUnavailable(_) | ExecutorError::Launcher { .. })
                    if self.facts.is_some() && Instant::now() < free_by =>
                {
                    if self.cancelled() {
                        return Err(ExecutorError::Cancelled);
                    }
                    std::thread::sleep(RETRY_PAUSE);
                }
                Err(ExecutorError::LeaseExpired { .. }) if leases > 0 => leases -= 1,
                result => return result.map(|worker| (worker, Origin::New)),
            }
        }
    }

    /// The record of a trial that this worker begins. Behind a launcher each worker may have another card.
    fn begin(&self, spec: &TrialSpec, worker: &Worker, observe: &mut dyn FnMut(Observation)) -> TrialRecord {
        let mut record = TrialRecord { worker: worker.facts.clone(), ..TrialRecord::begun(spec) };
        if let (Some(facts), Some(first)) = (&worker.facts, &self.facts)
            && facts.name != first.name
        {
            let text = format!("trial {} ran on {} and not on {} as the first", spec.id, facts.name, first.name);
            let text = reader::printable(&text);
            record.warnings.push(text.clone());
            observe(Observation::Warning(text));
        }
        record
    }

    fn cancelled(&self) -> bool {
        self.config.interrupt.requested() || self.config.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// What the end of a trial's worker means; ends the worker unless it may be used again.
    fn settle(&mut self, mut worker: Worker, watch: &Watch<'_>, ending: Ending) -> Outcome {
        let patience = &self.config.patience;
        match ending {
            Ending::Answered { outcome, clean: true } => {
                self.worker = Some(worker);
                outcome
            }
            Ending::Answered { outcome, clean: false } => {
                worker.end(Manner::Gently, patience);
                outcome
            }
            Ending::Broken(message) => {
                worker.end(Manner::Gently, patience);
                Outcome::ProtocolError { message }
            }
            Ending::Silent(waited) => {
                worker.end(Manner::Gently, patience);
                Outcome::TimedOut { seconds: waited.as_secs_f64() }
            }
            Ending::Cancelled(manner) => {
                worker.end(manner, patience);
                Outcome::Cancelled
            }
            Ending::Gone => {
                let end = worker.end(Manner::AtOnce, patience);
                watch.classify(&end, self.facts.as_ref().map(|facts| facts.limit_bytes))
            }
        }
    }
}

impl Executor for ProcessExecutor {
    fn start(&mut self) -> Result<DeviceFacts, ExecutorError> {
        let (worker, _) = self.ready_worker()?;
        self.worker = Some(worker);
        self.facts.clone().ok_or(ExecutorError::Startup { reason: "the device has no facts".to_owned() })
    }

    fn run(&mut self, spec: &TrialSpec, observe: &mut dyn FnMut(Observation)) -> Result<TrialRecord, ExecutorError> {
        let started = Instant::now();
        let mut record = TrialRecord::begun(spec);
        if self.cancelled() {
            return Ok(record);
        }
        let config = self.config.clone();
        let mut leases = LEASES;
        let outcome = loop {
            let (mut worker, origin) = match self.ready_worker() {
                Ok(ready) => ready,
                Err(ExecutorError::Cancelled) => return Ok(TrialRecord::begun(spec)),
                Err(ExecutorError::NotStarted { seconds, log, .. }) => break Outcome::NotStarted { seconds, log },
                Err(error) => return Err(error),
            };
            record = self.begin(spec, &worker, observe);
            worker.send(&ToWorker::Run { trial: spec.clone() });
            let mut watch = Watch::new(&config, &mut record);
            let ending = watch.follow(&mut worker, observe);
            let unheard = watch.heard_nothing() && self.replica.is_none();
            // How far it was in the trial before holds until it has said more.
            let Peers { lost, entered } = watch.peers();
            self.peers = Peers { lost, entered: entered.max(self.peers.entered) };
            match self.settle(worker, &watch, ending) {
                // It was on its way out when it was asked: no trial's fault. A new worker cannot end here again.
                Outcome::Crashed { signal: None, status: Some(DONE), .. } if unheard && origin == Origin::Reused => {}
                // It waited for us in vain.
                Outcome::Crashed { signal: None, status: Some(LEASE_EXPIRED), .. }
                    if leases > 0 && self.replica.is_none() =>
                {
                    leases -= 1;
                }
                outcome => break outcome,
            }
        };
        if spec.is_soak() {
            // A worker that was killed could not remove it.
            let _ = std::fs::remove_file(checkpoint_path(&self.config.scratch, spec.id));
        }
        record.outcome = outcome;
        record.seconds = started.elapsed().as_secs_f64();
        Ok(record.canonical())
    }

    fn places(&self) -> Vec<Place> {
        vec![self.place.clone()]
    }
}

impl Drop for ProcessExecutor {
    fn drop(&mut self) {
        if let Some(mut worker) = self.worker.take() {
            worker.end(Manner::Gently, &self.config.patience);
        }
    }
}
