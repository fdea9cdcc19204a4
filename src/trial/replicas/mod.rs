//! A trial of several replicas: a group of workers, one device each, seen by the search as one.
//!
//! [`ReplicaExecutor`] starts a worker for each rank of `target.replicas`, which meet and form a
//! [group](crate::device::collective), and gives every trial to all of them. To the search it is an executor like the one
//! for a single worker: it gets one record, in which the worst rank decides (`merge`).
//!
//! # How a group ends
//! A rank that runs out of memory, crashes, hangs, or fails ends the trial for all. The others need not find out by
//! waiting: the rank itself tells them if it still can, the kernel closes its connections if it cannot, and who waits for
//! a silent one gives up a little before the driver does. So each says whom it lost and ends its trial; one that does not
//! within a moment is ended. The outcome is that of the rank that began it, which the record names. Where the driver was the
//! first to give up, all ranks have told it how far they had come, and the one that is behind is the one that hangs.
//!
//! Behind a launcher each rank is a job, or a step, of its own. None opens its device before all have begun. Those
//! that are on several machines meet by this process, which passes on what they have for each other. One that never begins, or is cancelled, ends the group as any other loss does, and every
//! job of it is cancelled.
//!
//! A group in which all ranks completed runs the next trial. Any other is ended whole, and the next trial gets a new one:
//! neither NCCL nor a half-done exchange can be mended.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crossbeam_channel::RecvTimeoutError;

use self::group::Group;
use self::member::News;
use self::merge::{CancelledBy, Part, merge};
use super::executor::{Executor, ExecutorError, Observation};
use super::exit_status::LEASE_EXPIRED;
use super::launcher::Place;
use super::outcome::{Outcome, StepTimes, TrialRecord};
use super::process::{LEASES, Peers, ProcessConfig};
use super::spec::TrialSpec;
use super::worst_rank;
use crate::device::{DeviceChoice, DeviceFacts};
use crate::memory::{LimitSpec, MemorySample};
use crate::units::Bytes;

mod gathering;
mod group;
mod member;
mod merge;
#[cfg(test)]
mod tests;

pub use gathering::Gathering;

/// How often a wait looks at the interrupt.
const TICK: Duration = Duration::from_millis(50);
/// How long a new group may find a device still occupied by the one before it: between two tries.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Runs each trial in a group of workers.
#[derive(Debug)]
pub struct ReplicaExecutor {
    config: ProcessConfig,
    devices: Vec<DeviceChoice>,
    group: Option<Group>,
    facts: Option<DeviceFacts>,
    /// Where the ranks of the last group ran.
    places: Vec<Place>,
    /// Groups started so far.
    started: u32,
    /// Whose turn it is to start one, where that matters.
    gathering: Option<Gathering>,
}

impl ReplicaExecutor {
    /// An executor without a group; [`start`](Executor::start) brings one up, with a rank for each device.
    pub fn new(config: ProcessConfig, devices: Vec<DeviceChoice>) -> Self {
        Self { config, devices, group: None, facts: None, places: Vec::new(), started: 0, gathering: None }
    }

    /// The same for one of several executors behind a launcher, which start their groups one after the other.
    #[must_use]
    pub fn in_turn(self, gathering: Gathering) -> Self {
        Self { gathering: Some(gathering), ..self }
    }

    /// A group whose devices are open: the one at hand, or a new one.
    fn ready_group(&mut self) -> Result<Group, ExecutorError> {
        if let Some(group) = self.group.take() {
            return Ok(group);
        }
        let free_by = Instant::now() + self.config.patience.baseline;
        loop {
            match self.open_group() {
                // Memory of the group before may take a moment to come back, and a scheduler that worked may have a
                // moment of its own.
                Err(ExecutorError::DeviceUnavailable(_) | ExecutorError::Launcher { .. })
                    if self.facts.is_some() && Instant::now() < free_by && !self.is_cancelled() =>
                {
                    std::thread::sleep(RETRY_PAUSE);
                }
                result => return result,
            }
        }
    }

    fn open_group(&mut self) -> Result<Group, ExecutorError> {
        let mut config = self.config.clone();
        if let (LimitSpec::Auto, Some(facts)) = (config.workload.limit, &self.facts) {
            // C is that of the first group: trials under different limits cannot be compared.
            config.workload.limit = LimitSpec::Bytes(Bytes(facts.limit_bytes));
        }
        let gathering = self.gathering.clone();
        let _turn = match &gathering {
            Some(gathering) => Some(gathering.turn(|| self.is_cancelled()).ok_or(ExecutorError::Cancelled)?),
            None => None,
        };
        self.started = self.started.saturating_add(1);
        let group = Group::start(&config, &self.devices, self.started)?;
        let mut of_ranks: Vec<Option<(DeviceFacts, Place)>> = vec![None; self.devices.len()];
        while of_ranks.iter().any(Option::is_none) {
            if self.is_cancelled() {
                return Err(ExecutorError::Cancelled);
            }
            match group.news(TICK) {
                Ok((rank, News::Opened(Ok(opened)))) => {
                    if let Some(of_rank) = of_ranks.get_mut(rank) {
                        *of_rank = Some(opened);
                    }
                }
                Ok((rank, News::Opened(Err(error)))) => return Err(of_rank(rank, error)),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(ExecutorError::Startup { reason: "the replicas ended".to_owned() });
                }
            }
        }
        let (facts, places): (Vec<DeviceFacts>, Vec<Place>) = of_ranks.into_iter().flatten().unzip();
        self.places = places;
        self.facts = self.facts.take().or_else(|| weakest(facts.into_iter()));
        Ok(group)
    }

    fn is_cancelled(&self) -> bool {
        self.config.interrupt.requested() || self.is_overdue()
    }

    fn is_overdue(&self) -> bool {
        self.config.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

impl Executor for ReplicaExecutor {
    fn start(&mut self) -> Result<DeviceFacts, ExecutorError> {
        let group = self.ready_group()?;
        self.group = Some(group);
        self.facts.clone().ok_or(ExecutorError::Startup { reason: "the devices have no facts".to_owned() })
    }

    fn run(&mut self, spec: &TrialSpec, observe: &mut dyn FnMut(Observation)) -> Result<TrialRecord, ExecutorError> {
        let started = Instant::now();
        if self.is_cancelled() {
            return Ok(TrialRecord::begun(spec));
        }
        let mut leases = LEASES;
        loop {
            let is_used = self.group.is_some();
            let mut group = match self.ready_group() {
                Ok(group) => group,
                Err(ExecutorError::Cancelled) => return Ok(TrialRecord::begun(spec)),
                Err(ExecutorError::NotStarted { seconds, log, .. }) => {
                    let (outcome, seconds) = (Outcome::NotStarted { seconds, log }, started.elapsed().as_secs_f64());
                    return Ok(TrialRecord { outcome, seconds, ..TrialRecord::begun(spec) });
                }
                Err(error) => return Err(error),
            };
            group.run(spec);
            let mut watch = Watch::new(&self.config, self.devices.len(), spec);
            match watch.follow(&mut group, observe) {
                Ok(is_whole) => {
                    let by = if self.is_cancelled() { CancelledBy::Driver } else { CancelledBy::Group };
                    let record = merge(watch.parts(), by).unwrap_or_else(|| TrialRecord::begun(spec));
                    // The ranks waited for us in vain: this process stood still.
                    if matches!(record.outcome, Outcome::Crashed { signal: None, status: Some(LEASE_EXPIRED), .. })
                        && leases > 0
                    {
                        leases -= 1;
                        continue;
                    }
                    if is_whole && record.completed() {
                        self.group = Some(group);
                    }
                    let seconds = started.elapsed().as_secs_f64();
                    return Ok(TrialRecord { seconds, ..record }.canonical());
                }
                // A worker that ended between two trials is no trial's fault. A new group has none of those.
                Err(_) if is_used => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn places(&self) -> Vec<Place> {
        self.places.clone()
    }
}

/// A trial that is being followed on all ranks.
struct Watch<'a> {
    config: &'a ProcessConfig,
    spec: &'a TrialSpec,
    ranks: Vec<Seen>,
    /// Steps and samples that were passed on.
    passed: (usize, usize),
    /// The longest extension that was passed on.
    total: u32,
    /// When the other ranks are ended, once one has ended badly.
    ended_by: Option<Instant>,
    /// Requests to stop that were passed on.
    stops: u8,
}

/// What was seen of one rank and not of all others yet.
#[derive(Debug, Default)]
struct Seen {
    steps: VecDeque<(f64, StepTimes)>,
    samples: VecDeque<MemorySample>,
    part: Option<Part>,
    is_whole: bool,
}

impl<'a> Watch<'a> {
    fn new(config: &'a ProcessConfig, world: usize, spec: &'a TrialSpec) -> Self {
        let ranks = (0..world).map(|_| Seen::default()).collect();
        Self { config, spec, ranks, passed: (0, 0), total: spec.total_steps(), ended_by: None, stops: 0 }
    }

    /// Follows the trial until every rank has ended it. Whether all of them may run another.
    fn follow(&mut self, group: &mut Group, observe: &mut dyn FnMut(Observation)) -> Result<bool, ExecutorError> {
        while self.ranks.iter().any(|rank| rank.part.is_none()) {
            self.pass_on_stops(group);
            match group.news(TICK) {
                Ok((rank, News::Saw(observation))) => self.see(rank, observation, observe),
                Ok((rank, News::Ended { part, is_whole })) => {
                    if !part.record.completed() {
                        // The others need a moment to say whom they lost.
                        self.ended_by.get_or_insert(Instant::now() + self.config.patience.stop);
                    }
                    if let Some(seen) = self.ranks.get_mut(rank) {
                        (seen.part, seen.is_whole) = (Some(*part), is_whole);
                    }
                }
                Ok((rank, News::Missing(error))) => return Err(of_rank(rank, error)),
                Ok((_, News::Opened(_))) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(ExecutorError::Startup { reason: "the replicas ended".to_owned() });
                }
            }
            if self.ended_by.is_some_and(|until| Instant::now() >= until) {
                group.dismiss();
                self.ended_by = None;
            }
        }
        Ok(self.ranks.iter().all(|rank| rank.is_whole))
    }

    /// The user's wish to stop reaches every rank; the budget's end they see for themselves.
    fn pass_on_stops(&mut self, group: &Group) {
        let asked = u8::from(self.config.interrupt.requested()) + u8::from(self.config.interrupt.at_once());
        while self.stops < asked {
            group.interrupt();
            self.stops += 1;
        }
    }

    fn see(&mut self, rank: usize, observation: Observation, observe: &mut dyn FnMut(Observation)) {
        let Some(seen) = self.ranks.get_mut(rank) else { return };
        match observation {
            Observation::Step { loss, times, .. } => seen.steps.push_back((loss, times)),
            Observation::Sample(sample) => seen.samples.push_back(sample),
            Observation::Extended { total } if total > self.total => {
                self.total = total;
                observe(Observation::Extended { total });
            }
            Observation::Extended { .. } => {}
            // A warning of the workload is the same on all ranks; the driver shows each text once.
            Observation::Warning(text) => observe(Observation::Warning(text)),
            Observation::Log(line) => observe(Observation::Log(format!("rank {rank}: {line}"))),
        }
        self.pass_on(observe);
    }

    /// Passes on the steps and samples that all ranks have finished.
    fn pass_on(&mut self, observe: &mut dyn FnMut(Observation)) {
        while let Some(of_ranks) = taken(&mut self.ranks, |rank| &mut rank.steps) {
            self.passed.0 += 1;
            let loss = of_ranks.iter().map(|(loss, _)| loss).sum::<f64>() / of_ranks.len().max(1) as f64;
            let times: Vec<StepTimes> = of_ranks.iter().map(|(_, times)| *times).collect();
            let step = u32::try_from(self.passed.0).unwrap_or(u32::MAX);
            observe(Observation::Step { step, loss, times: merge::times(&times) });
        }
        while let Some(of_ranks) = taken(&mut self.ranks, |rank| &mut rank.samples) {
            self.passed.1 += 1;
            if let Some(sample) = worst_rank::sample(&of_ranks.iter().collect::<Vec<_>>()) {
                observe(Observation::Sample(sample));
            }
        }
    }

    /// What the ranks have to tell, in their order.
    fn parts(self) -> Vec<Part> {
        let unheard = || Part { record: TrialRecord::begun(self.spec), peers: Peers::default() };
        self.ranks.into_iter().map(|rank| rank.part.unwrap_or_else(unheard)).collect()
    }
}

/// The first of each rank's queue, once all have one.
fn taken<T>(ranks: &mut [Seen], queue: impl Fn(&mut Seen) -> &mut VecDeque<T>) -> Option<Vec<T>> {
    if ranks.iter_mut().any(|rank| queue(rank).is_empty()) {
        return None;
    }
    ranks.iter_mut().map(|rank| queue(rank).pop_front()).collect()
}

/// An error with the rank it is of.
fn of_rank(rank: usize, error: ExecutorError) -> ExecutorError {
    match error {
        ExecutorError::DeviceUnavailable(reason) => ExecutorError::DeviceUnavailable(format!("rank {rank}: {reason}")),
        ExecutorError::Startup { reason } => ExecutorError::Startup { reason: format!("rank {rank}: {reason}") },
        // The workload is the same on all of them.
        other => other,
    }
}

/// What holds for every device: rank 0's facts with the least memory of all.
fn weakest(of_ranks: impl Iterator<Item = DeviceFacts>) -> Option<DeviceFacts> {
    let least = |facts: DeviceFacts, other: DeviceFacts| DeviceFacts {
        total_bytes: facts.total_bytes.min(other.total_bytes),
        free_bytes: facts.free_bytes.min(other.free_bytes),
        external_bytes: facts.external_bytes.max(other.external_bytes),
        limit_bytes: facts.limit_bytes.min(other.limit_bytes),
        ..facts
    };
    of_ranks.reduce(least)
}
