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
//! | SIGKILL that was not ours, and the cgroup's `oom_kill` counter rose | host out of memory |
//! | any other signal | crashed, with the signal |
//! | any exit status without an `ended` line, 0 too | crashed, with the status |
//! | a line that is no message, half a line, a message out of turn, a line too long | protocol error |
//! | nothing finished for too long | timed out |
//! | the user or the budget said stop | cancelled |
//!
//! # How long is too long
//! The configuration's timeout bounds the time without a finished step. The first step of a trial also has
//! [`Patience::build`], since the model is built before it (and on CUDA the driver compiles kernels); so has every wait
//! in a soak, since evaluation and checkpoint are no steps. A memory sample counts as a step here.

use std::time::{Duration, Instant};

use super::executor::{Executor, ExecutorError, Observation};
use super::exit_status::DONE;
use super::outcome::{Outcome, TrialRecord};
use super::protocol::{FromWorker, PROTOCOL, Refusal, ToWorker};
use super::spec::{TrialSpec, WorkloadSpec, checkpoint_path};
use crate::device::DeviceFacts;
use crate::device::collective::Replica;
use crate::memory::LimitSpec;
use crate::units::Bytes;

pub(in crate::trial) mod child;
mod config;
mod follow;
pub(in crate::trial) mod group;
mod host_memory;
pub(in crate::trial) mod reader;

pub use child::Manner;
use child::{Seen, Worker};
pub use config::{Patience, ProcessConfig, WorkerCommand};
pub(in crate::trial) use follow::LostPeer;
use follow::{Ending, Watch};
pub use host_memory::OomKills;

/// How often a wait looks at the interrupt and the budget.
const TICK: Duration = Duration::from_millis(50);
/// After a worker's end, for its output to end too: something it started may hold the pipe open.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long a new worker may find the device still occupied by the one before it.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

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
    /// The place of its worker among replicas.
    replica: Option<Replica>,
    /// Whom the worker of the last trial lost.
    lost_peer: Option<LostPeer>,
}

impl ProcessExecutor {
    /// An executor without a worker; [`start`](Executor::start) brings one up.
    pub fn new(config: ProcessConfig) -> Self {
        Self { config, worker: None, facts: None, replica: None, lost_peer: None }
    }

    /// The same for one of several replicas. It starts one worker and no other: a group is not mended, so a trial whose
    /// worker is gone is an error here.
    pub(in crate::trial) fn in_group(mut self, replica: Replica) -> Self {
        self.replica = Some(replica);
        self
    }

    /// Whether the worker may run another trial.
    pub(in crate::trial) fn has_worker(&self) -> bool {
        self.worker.is_some()
    }

    /// Whom the worker of the last trial lost.
    pub(in crate::trial) fn lost_peer(&self) -> Option<LostPeer> {
        self.lost_peer
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
        loop {
            match self.open_worker() {
                // Memory of the worker before may take a moment to come back.
                Err(ExecutorError::DeviceUnavailable(_)) if self.facts.is_some() && Instant::now() < free_by => {
                    if self.cancelled() {
                        return Err(ExecutorError::Cancelled);
                    }
                    std::thread::sleep(RETRY_PAUSE);
                }
                result => return result.map(|worker| (worker, Origin::New)),
            }
        }
    }

    fn open_worker(&mut self) -> Result<Worker, ExecutorError> {
        let mut worker = Worker::spawn(&self.config.command)?;
        match self.await_opening(&mut worker) {
            Ok(facts) => {
                // The first device's figures hold for the study; C above all must not change between trials.
                self.facts.get_or_insert(facts);
                Ok(worker)
            }
            Err(error) => {
                worker.end(Manner::Gently, &self.config.patience);
                Err(error)
            }
        }
    }

    fn await_opening(&self, worker: &mut Worker) -> Result<DeviceFacts, ExecutorError> {
        match self.await_message(worker)? {
            FromWorker::Hello { protocol: PROTOCOL, .. } => {}
            FromWorker::Hello { protocol, version, .. } => {
                return Err(ExecutorError::Startup {
                    reason: format!(
                        "it speaks protocol {protocol} (batchtune {}), expected {PROTOCOL} (hint: the worker's program \
                         must be of this version, {})",
                        reader::printable(&version),
                        env!("CARGO_PKG_VERSION")
                    ),
                });
            }
            other => return Err(out_of_turn(&other, "a hello")),
        }
        let workload = Box::new(self.pinned_workload());
        let (scratch, replica) = (self.config.scratch.clone(), self.replica.clone());
        worker.send(&ToWorker::Open { workload, scratch, replica });
        match self.await_message(worker)? {
            FromWorker::Ready { facts } => Ok(facts),
            FromWorker::Refused { cause: Refusal::Device, reason } => Err(ExecutorError::DeviceUnavailable(reason)),
            FromWorker::Refused { cause: Refusal::Workload, reason } => Err(ExecutorError::Workload(reason)),
            other => Err(out_of_turn(&other, "ready or refused")),
        }
    }

    /// The workload with the limit that the first worker found: an automatic one is taken from the memory that is free
    /// at the start, and trials under different limits cannot be compared.
    fn pinned_workload(&self) -> WorkloadSpec {
        let mut workload = self.config.workload.clone();
        if let (LimitSpec::Auto, Some(facts)) = (workload.limit, &self.facts) {
            workload.limit = LimitSpec::Bytes(Bytes(facts.limit_bytes));
        }
        workload
    }

    fn await_message(&self, worker: &mut Worker) -> Result<FromWorker, ExecutorError> {
        let patience = self.config.patience.start;
        let mut until = Instant::now() + patience;
        loop {
            if self.cancelled() {
                return Err(ExecutorError::Cancelled);
            }
            let why = match worker.next(TICK) {
                Seen::Said(message) => return Ok(*message),
                Seen::Log(line) => {
                    // While the device opens nothing else tells why it takes long.
                    tracing::warn!(target: "batchtune::worker", "{line}");
                    continue;
                }
                Seen::Nothing if Instant::now() < until => continue,
                // What it said last may still be on its way through the pipe's reader; the end of its output tells.
                Seen::Exited => {
                    until = until.min(Instant::now() + LAST_WORDS);
                    continue;
                }
                Seen::Nothing if worker.has_exited() => "it ended".to_owned(),
                Seen::Nothing => format!("it said nothing for {:.0} s", patience.as_secs_f64()),
                Seen::Spoiled(why) => why,
                Seen::Torn => "it ended within a line".to_owned(),
                Seen::Closed => "it ended".to_owned(),
            };
            let end = worker.end(Manner::Gently, &self.config.patience);
            let status = end.status.map_or(String::new(), |status| format!(", {status}"));
            let log = if end.log.is_empty() { String::new() } else { format!("; its log:\n{}", end.log) };
            return Err(ExecutorError::Startup { reason: format!("{why}{status}{log}") });
        }
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
        let outcome = loop {
            let (mut worker, origin) = match self.ready_worker() {
                Ok(ready) => ready,
                Err(ExecutorError::Cancelled) => return Ok(record),
                Err(error) => return Err(error),
            };
            worker.send(&ToWorker::Run { trial: spec.clone() });
            let mut watch = Watch::new(&config, &mut record);
            let ending = watch.follow(&mut worker, observe);
            let unheard = watch.heard_nothing() && self.replica.is_none();
            self.lost_peer = watch.lost_peer();
            match self.settle(worker, &watch, ending) {
                // It was on its way out when it was asked: no trial's fault. A new worker cannot end here again.
                Outcome::Crashed { signal: None, status: Some(DONE), .. } if unheard && origin == Origin::Reused => {}
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
}

impl Drop for ProcessExecutor {
    fn drop(&mut self) {
        if let Some(mut worker) = self.worker.take() {
            worker.end(Manner::Gently, &self.config.patience);
        }
    }
}

fn out_of_turn(message: &FromWorker, expected: &str) -> ExecutorError {
    ExecutorError::Startup { reason: format!("it said `{}`, expected {expected}", follow::name_of(message)) }
}
