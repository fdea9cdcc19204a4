//! Following one trial: what its worker says, until the trial has ended one way or another.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::child::{End, Manner, Seen, Worker};
use super::pause::LastLook;
use super::reader::printable;
use super::{ProcessConfig, TICK};
use crate::trial::executor::Observation;
use crate::trial::exit_status::{FAR_OVER_LIMIT, HOST_OUT_OF_MEMORY};
use crate::trial::outcome::{Outcome, TrialRecord};
use crate::trial::protocol::{FromWorker, ToWorker};
use crate::trial::spec::TrialId;

/// Warnings of a trial that are kept.
const WARNINGS: usize = 32;
/// Samples beyond one a step: after the build, the evaluation, the checkpoint and the last step, with some to spare.
const EXTRA_SAMPLES: usize = 16;
/// After the worker's end, for what it said before to be read to the end.
const DRAIN: Duration = Duration::from_secs(1);
const TORN: &str = "its output ended within a line";

/// How a trial ended, as far as its worker's words and signs of life go.
#[derive(Debug)]
pub(super) enum Ending {
    /// It said so.
    Answered {
        /// How.
        outcome: Outcome,
        /// Whether it may run another trial.
        clean: bool,
    },
    /// It left without an answer.
    Gone,
    /// It does not speak the protocol.
    Broken(String),
    /// It finished nothing for this long.
    Silent(Duration),
    /// It was asked to stop and did not answer in time, or there was no time to ask.
    Cancelled(Manner),
}

/// A trial that is being followed.
pub(super) struct Watch<'a> {
    config: &'a ProcessConfig,
    record: &'a mut TrialRecord,
    steps: u32,
    /// Steps of the trial in all, as far as the worker has said.
    total: u32,
    last_progress: Instant,
    last_look: LastLook,
    stop: Stop,
    /// Until when what is still in the pipes is read, once the worker or its output has ended.
    drained_by: Option<Instant>,
    /// Whether the output ended within a line.
    torn: bool,
    /// Whether the output ended.
    closed: bool,
    oom_kills: Option<u64>,
    /// What the worker said of the others, where it is one of several replicas.
    peers: Peers,
}

/// What a worker that is one of several replicas has said of its place among them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::trial) struct Peers {
    /// Whom it lost.
    pub(in crate::trial) lost: Option<LostPeer>,
    /// Exchanges that it has come to since it met them.
    pub(in crate::trial) entered: u64,
}

/// Another replica that a worker lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::trial) struct LostPeer {
    pub(in crate::trial) rank: usize,
    /// How long it was waited for; `None` where it ended or left.
    pub(in crate::trial) seconds: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    NotAsked,
    /// By the user, who waits for the running step.
    Asked,
    /// By the budget, or by the user before there was any step to wait for: not for longer than this.
    Until(Instant),
}

impl<'a> Watch<'a> {
    pub(super) fn new(config: &'a ProcessConfig, record: &'a mut TrialRecord) -> Self {
        Self {
            config,
            total: record.spec.total_steps(),
            record,
            steps: 0,
            last_progress: Instant::now(),
            last_look: LastLook::now(),
            stop: Stop::NotAsked,
            drained_by: None,
            torn: false,
            closed: false,
            oom_kills: config.oom_kills.count(),
            peers: Peers::default(),
        }
    }

    /// Follows the trial to its end. Samples and warnings go into the record as they come.
    pub(super) fn follow(&mut self, worker: &mut Worker, observe: &mut dyn FnMut(Observation)) -> Ending {
        loop {
            if let Some(ending) = self.overdue(worker) {
                return ending;
            }
            match worker.next(TICK) {
                Seen::Said(message) => {
                    if let Some(ending) = self.hear(*message, observe) {
                        return ending;
                    }
                }
                Seen::Log(line) => observe(Observation::Log(line)),
                Seen::Spoiled(why) => return Ending::Broken(why),
                Seen::Torn => self.torn = true,
                Seen::Closed if worker.has_exited() => return Ending::Gone,
                Seen::Closed => {
                    self.closed = true;
                    self.drained_by.get_or_insert(Instant::now() + DRAIN);
                }
                Seen::Exited => {
                    // What it started may hold the pipe open, and is to go anyway.
                    worker.signal(Signal::SIGKILL);
                    if self.closed {
                        return Ending::Gone;
                    }
                    self.drained_by = Some(Instant::now() + DRAIN);
                }
                Seen::Nothing => {}
            }
        }
    }

    /// Whether it is time to ask the worker to stop, or to wait no longer.
    fn overdue(&mut self, worker: &Worker) -> Option<Ending> {
        let now = Instant::now();
        // While this process stood still the worker may well have gone on.
        self.last_progress += self.last_look.pause();
        if self.config.interrupt.at_once() {
            return Some(Ending::Cancelled(Manner::AtOnce));
        }
        let soon = Stop::Until(now + self.config.patience.stop);
        if self.config.interrupt.requested() && self.stop == Stop::NotAsked {
            worker.send(&ToWorker::Stop);
            // A large model is built for minutes, in which the worker looks at nothing, and there is nothing to finish yet.
            self.stop = if self.steps == 0 { soon } else { Stop::Asked };
        }
        if self.config.deadline.is_some_and(|deadline| now >= deadline) && !matches!(self.stop, Stop::Until(_)) {
            worker.send(&ToWorker::Stop);
            self.stop = soon;
        }
        if matches!(self.stop, Stop::Until(until) if now >= until) {
            return Some(Ending::Cancelled(Manner::AtOnce));
        }
        if self.drained_by.is_some_and(|until| now >= until) {
            return Some(if worker.has_exited() {
                Ending::Gone
            } else if self.torn {
                Ending::Broken(TORN.to_owned())
            } else {
                Ending::Broken("it closed its output without an answer".to_owned())
            });
        }
        let allowance = self.allowance();
        if now.duration_since(self.last_progress) < allowance {
            return None;
        }
        Some(match self.stop {
            Stop::NotAsked => Ending::Silent(allowance),
            Stop::Asked | Stop::Until(_) => Ending::Cancelled(Manner::Gently),
        })
    }

    /// The longest time without progress that is allowed now.
    fn allowance(&self) -> Duration {
        let patience = &self.config.patience;
        let is_more = self.record.spec.has_more_than_a_step_ahead(self.steps);
        if is_more { patience.build + patience.step } else { patience.step }
    }

    fn hear(&mut self, message: FromWorker, observe: &mut dyn FnMut(Observation)) -> Option<Ending> {
        let said = name_of(&message);
        if let Some(trial) = trial_of(&message)
            && trial != self.record.spec.id
        {
            return Some(Ending::Broken(format!("it said `{said}` of trial {trial} in trial {}", self.record.spec.id)));
        }
        match message {
            FromWorker::Step { step, loss, times, .. } => {
                if step != self.steps + 1 || step > self.total {
                    return Some(Ending::Broken(format!("it finished step {step} after step {}", self.steps)));
                }
                self.steps = step;
                self.last_progress = Instant::now();
                observe(Observation::Step { step, loss, times });
            }
            FromWorker::Sample { sample, .. } => {
                if self.record.samples.len() >= self.total as usize + EXTRA_SAMPLES {
                    return Some(Ending::Broken(format!("it took more than {} samples", self.record.samples.len())));
                }
                self.last_progress = Instant::now();
                self.record.samples.push(sample);
                observe(Observation::Sample(sample));
            }
            FromWorker::Extended { total, .. } => {
                if self.steps != self.total || total <= self.total || total > self.record.spec.longest_steps() {
                    return Some(Ending::Broken(format!("it went on to {total} steps after step {}", self.steps)));
                }
                self.total = total;
                observe(Observation::Extended { total });
            }
            FromWorker::Warning { text, .. } => {
                if self.record.warnings.len() < WARNINGS {
                    let text = printable(&text);
                    self.record.warnings.push(text.clone());
                    observe(Observation::Warning(text));
                }
            }
            FromWorker::PeerLost { rank, seconds, .. } => {
                // What ended this worker's trial shows in the other's.
                let seconds = seconds.filter(|seconds| seconds.is_finite());
                self.peers.lost.get_or_insert(LostPeer { rank, seconds });
            }
            // No progress: it may be the last that it comes to.
            FromWorker::Entered { exchanges, .. } => self.peers.entered = exchanges,
            FromWorker::Ended { outcome, measurement, clean, .. } => {
                if outcome == Outcome::Completed && measurement.is_none() {
                    return Some(Ending::Broken("it completed without a measurement".to_owned()));
                }
                self.record.measurement = measurement;
                return Some(Ending::Answered { outcome: printable_outcome(outcome), clean });
            }
            // What is for another replica has been passed on.
            FromWorker::Hello { .. }
            | FromWorker::Ready { .. }
            | FromWorker::Refused { .. }
            | FromWorker::Relay { .. } => {
                return Some(Ending::Broken(format!("it said `{said}` in a trial")));
            }
        }
        None
    }

    /// What the worker said of the other replicas.
    pub(super) fn peers(&self) -> Peers {
        self.peers
    }

    /// Whether the worker said nothing of this trial.
    pub(super) fn heard_nothing(&self) -> bool {
        self.steps == 0 && self.record.samples.is_empty() && self.record.warnings.is_empty()
    }

    /// What it means that the worker left without an answer.
    pub(super) fn classify(&self, end: &End, limit_bytes: Option<u64>) -> Outcome {
        let (mut signal, mut status) = end.status.map_or((None, None), |status| (status.signal(), status.code()));
        if end.was_launched
            && let Some(passed_on) = signal_of(status)
        {
            (signal, status) = (Some(passed_on), None);
        }
        if signal.is_none() && status == Some(FAR_OVER_LIMIT) {
            return Outcome::OutOfMemory {
                requested_bytes: None,
                allocated_bytes: None,
                reserved_bytes: None,
                limit_bytes,
                step: None,
                phase: None,
            };
        }
        let is_refused = signal.is_none() && status == Some(HOST_OUT_OF_MEMORY);
        let is_killed = signal == Some(Signal::SIGKILL as i32) && self.config.oom_kills.count() > self.oom_kills;
        if is_refused || is_killed {
            return Outcome::HostOutOfMemory;
        }
        if signal.is_none() && self.torn {
            return Outcome::ProtocolError { message: TORN.to_owned() };
        }
        Outcome::Crashed { signal, status, log: end.log.clone() }
    }
}

/// The signal that a launcher's status stands for: it ends with 128 + n where its worker was ended by signal n, as a
/// shell has it.
fn signal_of(status: Option<i32>) -> Option<i32> {
    let signal = status?.checked_sub(128)?;
    Signal::try_from(signal).is_ok().then_some(signal)
}

/// The message's name, as the line holds it.
pub(super) fn name_of(message: &FromWorker) -> &'static str {
    match message {
        FromWorker::Hello { .. } => "hello",
        FromWorker::Ready { .. } => "ready",
        FromWorker::Refused { .. } => "refused",
        FromWorker::Step { .. } => "step",
        FromWorker::Extended { .. } => "extended",
        FromWorker::Sample { .. } => "sample",
        FromWorker::Warning { .. } => "warning",
        FromWorker::PeerLost { .. } => "peer_lost",
        FromWorker::Entered { .. } => "entered",
        FromWorker::Relay { .. } => "relay",
        FromWorker::Ended { .. } => "ended",
    }
}

fn trial_of(message: &FromWorker) -> Option<TrialId> {
    match message {
        FromWorker::Hello { .. } | FromWorker::Ready { .. } | FromWorker::Refused { .. } | FromWorker::Relay { .. } => {
            None
        }
        FromWorker::Step { trial, .. }
        | FromWorker::Extended { trial, .. }
        | FromWorker::Sample { trial, .. }
        | FromWorker::Warning { trial, .. }
        | FromWorker::PeerLost { trial, .. }
        | FromWorker::Entered { trial, .. }
        | FromWorker::Ended { trial, .. } => Some(*trial),
    }
}

/// The outcome with texts that a terminal does not obey: they hold what a workload's own code put into its errors.
fn printable_outcome(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Failed { message } => Outcome::Failed { message: printable(&message) },
        Outcome::DeviceError { message } => Outcome::DeviceError { message: printable(&message) },
        Outcome::ProtocolError { message } => Outcome::ProtocolError { message: printable(&message) },
        Outcome::Crashed { signal, status, log } => Outcome::Crashed { signal, status, log: printable(&log) },
        other => other,
    }
}
