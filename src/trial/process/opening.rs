//! From a process to a worker whose device is open: hello, open, ready.
//!
//! Behind a launcher the first word may take as long as a queue is, and has a timeout of its own; what the launcher says
//! meanwhile is shown. A launcher that ends before its worker said anything has failed itself (nothing like that is
//! there, nobody may have it, the program is not on that machine), and its last words are the message. So has one that
//! prints without end on the output that is its worker's, or does not pass its worker's input on: no workload ran.

use std::time::{Duration, Instant};

use super::child::{End, Manner, Seen, Worker};
use super::pause::LastLook;
use super::{LAST_WORDS, ProcessExecutor, TICK, follow, reader};
use crate::device::DeviceFacts;
use crate::device::collective::Replica;
use crate::memory::LimitSpec;
use crate::trial::executor::ExecutorError;
use crate::trial::exit_status::{LEASE_EXPIRED, ORPHANED};
use crate::trial::launcher::{Identity, Launcher, WorkerFacts};
use crate::trial::protocol::{FromWorker, PROTOCOL, Refusal, ToWorker};
use crate::trial::spec::WorkloadSpec;
use crate::units::Bytes;

/// Between two looks at whether the other replicas are there.
const LOOK: Duration = Duration::from_millis(5);

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    /// The process's first word.
    Hello,
    /// The other replicas.
    Others,
    /// The device.
    Ready,
}

/// Why a wait is over without a message.
#[derive(Debug)]
enum Unheard {
    /// Nothing came in time.
    Silent(Duration),
    /// The process ended, or its output did.
    Ended(&'static str),
    /// What came is no message.
    Spoiled(String),
}

impl ProcessExecutor {
    /// Starts a worker and has it open the device.
    pub(super) fn open_worker(&mut self) -> Result<Worker, ExecutorError> {
        self.started = self.started.saturating_add(1);
        let launch = self.config.launcher.as_ref().map(|launcher| launcher.launch(self.started, &self.config.command));
        let mut worker = Worker::spawn(&self.config.command, launch, self.config.patience.lease)?;
        match self.await_opening(&mut worker) {
            Ok(facts) => {
                worker.facts = Some(WorkerFacts::new(&worker.identity.place, &facts));
                self.place = worker.identity.place.clone();
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
        match self.await_message(worker, Awaited::Hello)? {
            FromWorker::Hello { protocol: PROTOCOL, pid, place, .. } => {
                worker.identity = Identity { place: place.checked(), pid: Some(pid) };
            }
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
        let replica = self.await_others(worker)?;
        worker.send(&ToWorker::Open {
            workload: Box::new(self.pinned_workload()),
            scratch: self.config.scratch.clone(),
            replica,
            lease: self.config.patience.lease,
        });
        match self.await_message(worker, Awaited::Ready)? {
            FromWorker::Ready { facts } => Ok(facts),
            FromWorker::Refused { cause: Refusal::Device, reason } => Err(ExecutorError::DeviceUnavailable(reason)),
            FromWorker::Refused { cause: Refusal::Workload, reason } => Err(ExecutorError::Workload(reason)),
            other => Err(out_of_turn(&other, "ready or refused")),
        }
    }

    /// Waits until the workers of all replicas have said where they run. Gives this one's place among them.
    fn await_others(&self, worker: &mut Worker) -> Result<Option<Replica>, ExecutorError> {
        let (Some(replica), Some(muster)) = (&self.replica, &self.muster) else { return Ok(None) };
        worker.take_seat(muster, replica.rank);
        // Pings follow the first message, and the worker has had its lease since it came.
        worker.send(&ToWorker::Ping);
        loop {
            if let Some(meeting) = worker.meeting(&replica.meeting) {
                return Ok(Some(Replica { meeting, ..replica.clone() }));
            }
            if self.cancelled() {
                return Err(ExecutorError::Cancelled);
            }
            let unheard = match worker.next(LOOK) {
                Seen::Nothing => continue,
                Seen::Log(line) => {
                    tracing::warn!(target: "batchtune::worker", "{line}");
                    continue;
                }
                Seen::Said(message) => return Err(out_of_turn(&message, "nothing")),
                Seen::Spoiled(why) => Unheard::Spoiled(why),
                Seen::Exited | Seen::Closed | Seen::Torn => Unheard::Ended("it ended"),
            };
            let end = worker.end(Manner::Gently, &self.config.patience);
            return Err(self.explain(&unheard, &end, Awaited::Others));
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

    fn await_message(&self, worker: &mut Worker, awaited: Awaited) -> Result<FromWorker, ExecutorError> {
        let patience = match (&self.config.launcher, awaited) {
            (Some(launcher), Awaited::Hello) => launcher.start_timeout(),
            _ => self.config.patience.start,
        };
        let mut until = Instant::now() + patience;
        let mut last_look = LastLook::now();
        let mut is_closed = false;
        let unheard = loop {
            if self.cancelled() {
                return Err(ExecutorError::Cancelled);
            }
            until += last_look.pause();
            match worker.next(TICK) {
                Seen::Said(message) => return Ok(*message),
                // While the device opens nothing else tells why it takes long.
                Seen::Log(line) => tracing::warn!(target: "batchtune::worker", "{line}"),
                Seen::Nothing => {}
                // What it said last may still be on its way through the pipe's reader; the end of its output tells.
                Seen::Exited => until = until.min(Instant::now() + LAST_WORDS),
                // A launcher's status is on its way.
                Seen::Closed if worker.is_launched() && !worker.has_exited() => {
                    is_closed = true;
                    until = until.min(Instant::now() + LAST_WORDS);
                }
                Seen::Closed => break Unheard::Ended("it ended"),
                Seen::Spoiled(why) => break Unheard::Spoiled(why),
                Seen::Torn => break Unheard::Ended("it ended within a line"),
            }
            if Instant::now() >= until {
                let is_over = is_closed || worker.has_exited();
                break if is_over { Unheard::Ended("it ended") } else { Unheard::Silent(patience) };
            }
        };
        let end = worker.end(Manner::Gently, &self.config.patience);
        Err(self.explain(&unheard, &end, awaited))
    }

    fn explain(&self, unheard: &Unheard, end: &End, awaited: Awaited) -> ExecutorError {
        match (&self.config.launcher, awaited, unheard) {
            (Some(launcher), _, Unheard::Ended(_)) if end.code() == Some(ORPHANED) => {
                ExecutorError::LauncherInput { launcher: launcher.program().to_owned(), log: end.log.clone() }
            }
            (Some(launcher), Awaited::Hello, Unheard::Spoiled(why)) => {
                ExecutorError::LauncherOutput { launcher: launcher.program().to_owned(), reason: why.clone() }
            }
            (Some(launcher), Awaited::Hello, Unheard::Silent(waited)) => ExecutorError::NotStarted {
                launcher: launcher.program().to_owned(),
                seconds: waited.as_secs_f64(),
                log: end.log.clone(),
            },
            (Some(launcher), Awaited::Hello, Unheard::Ended(_)) => self.launcher_failed(launcher, end),
            (_, Awaited::Others | Awaited::Ready, Unheard::Ended(_)) if end.code() == Some(LEASE_EXPIRED) => {
                ExecutorError::LeaseExpired { seconds: self.config.patience.lease.as_secs_f64() }
            }
            _ => ExecutorError::Startup { reason: reason(unheard, end) },
        }
    }

    fn launcher_failed(&self, launcher: &Launcher, end: &End) -> ExecutorError {
        ExecutorError::Launcher {
            launcher: launcher.program().to_owned(),
            status: end.status.map_or_else(|| "no status".to_owned(), |status| status.to_string()),
            worker: self.config.command.program.display().to_string(),
            log: end.log.clone(),
        }
    }
}

fn reason(unheard: &Unheard, end: &End) -> String {
    let why = match unheard {
        Unheard::Silent(waited) => format!("it said nothing for {:.0} s", waited.as_secs_f64()),
        Unheard::Ended(how) => (*how).to_owned(),
        Unheard::Spoiled(why) => why.clone(),
    };
    let status = end.status.map_or(String::new(), |status| format!(", {status}"));
    let log = if end.log.is_empty() { String::new() } else { format!("; its log:\n{}", end.log) };
    format!("{why}{status}{log}")
}

fn out_of_turn(message: &FromWorker, expected: &str) -> ExecutorError {
    ExecutorError::Startup { reason: format!("it said `{}`, expected {expected}", follow::name_of(message)) }
}
