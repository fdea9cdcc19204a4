//! The crew: one executor a device, each in a thread of its own.
//!
//! The driver's own thread alone touches journal, reporter and strategy. It sends a station a trial and takes what comes
//! back from all of them through one channel, in the order in which it happens.
//!
//! An executor lives and dies in its thread: a worker process asks the kernel to be ended with the *thread* that started
//! it ([`ProcessExecutor`](crate::trial::process::ProcessExecutor)), so the thread outlives its last worker.
//!
//! # Who runs what
//! - Only devices of one model run trials: speeds of another are of no use. The model is that of the weakest device, the
//!   one with the least C, for which the answer has to hold; the others stand idle, with a warning.
//! - The soak runs on the weakest device itself. Everything else runs wherever a device is free and is judged under the
//!   least C ([`under`]).
//! - Trials that compete for processors run side by side only while there is one for each of their threads
//!   ([`placement`]).

use std::fmt::Write;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, Scope};

mod placement;

use super::DriverError;
use crate::device::DeviceFacts;
use crate::memory::fragmentation::external_rate;
use crate::memory::{MemorySample, Rates};
use crate::search::Ask;
use crate::text::with_causes;
use crate::trial::launcher::{Place, WorkerFacts};
use crate::trial::{Executor, ExecutorError, Interrupt, Observation, TrialRecord, TrialSpec};
use crate::units::Bytes;

/// Observations that may wait for the driver before executors wait for it.
const BACKLOG: usize = 1024;
/// After so many failures of a device it is given up.
const FAILURES: u32 = 2;

/// A device that trials can run on.
pub struct Slot<'a> {
    /// What it is called: `cuda:1`.
    pub name: String,
    /// What runs trials on it.
    pub executor: Box<dyn Executor + Send + 'a>,
}

/// The devices that a study runs on.
pub struct Slots<'a> {
    /// Each of them.
    pub slots: Vec<Slot<'a>>,
    /// What their executors heed: a [child](Interrupt::child) of the study's interrupt, by which the driver ends trials that
    /// nobody waits for any more.
    pub halt: Interrupt,
}

impl<'a> Slots<'a> {
    /// A single device.
    pub fn one(executor: impl Executor + Send + 'a) -> Self {
        let slot = Slot { name: "the device".to_owned(), executor: Box::new(executor) };
        Self { slots: vec![slot], halt: Interrupt::default() }
    }

    /// The devices themselves; none are left.
    pub(super) fn take(&mut self) -> Self {
        Self { slots: std::mem::take(&mut self.slots), halt: self.halt.clone() }
    }
}

/// What comes back from a station.
pub(super) enum News {
    /// The device is open, and its workers run there; or it is not.
    Started(Result<(DeviceFacts, Vec<Place>), ExecutorError>),
    /// Its workers run somewhere else now.
    Moved(Vec<Place>),
    /// Something happened in the running trial.
    Seen(Observation),
    /// It ended.
    Ended(Box<Result<TrialRecord, ExecutorError>>),
    /// The thread is gone, by a bug of ours.
    Lost,
}

/// A device with its thread.
struct Station {
    name: String,
    /// `None` once it is given up.
    orders: Option<Sender<TrialSpec>>,
    facts: Option<DeviceFacts>,
    /// Where its workers run, as was heard last.
    places: Vec<Place>,
    running: Option<Job>,
    failures: u32,
}

/// A running trial.
pub(super) struct Job {
    /// What was asked for.
    pub(super) ask: Ask,
    /// How it is run.
    pub(super) spec: TrialSpec,
    /// Its steps as of now.
    pub(super) total: u32,
}

/// The stations.
pub(super) struct Crew {
    stations: Vec<Station>,
    news: Receiver<(usize, News)>,
    halt: Interrupt,
}

impl Crew {
    /// Starts a thread a device, each of which opens its device at once.
    pub(super) fn start<'scope, 'env, 'a: 'scope>(
        scope: &'scope Scope<'scope, 'env>,
        slots: Slots<'a>,
    ) -> Result<Self, DriverError> {
        let (reports, news) = sync_channel(BACKLOG);
        let mut crew = Self { stations: Vec::new(), news, halt: slots.halt };
        for (index, Slot { name, executor }) in slots.slots.into_iter().enumerate() {
            let (orders, received) = channel();
            let reports = Reports { index, reports: reports.clone() };
            Builder::new()
                .name(format!("device {index}"))
                .spawn_scoped(scope, move || work(executor, &received, &reports))
                .map_err(DriverError::Thread)?;
            crew.stations.push(Station {
                name,
                orders: Some(orders),
                facts: None,
                places: Vec::new(),
                running: None,
                failures: 0,
            });
        }
        Ok(crew)
    }

    /// Waits until every device is open. Gives those that cannot be; an error where there is no other.
    pub(super) fn open(&mut self) -> Result<Vec<String>, ExecutorError> {
        let mut refused: Vec<(usize, ExecutorError)> = Vec::new();
        for _ in 0..self.stations.len() {
            match self.next() {
                (index, News::Started(Ok((facts, places)))) => {
                    if let Some(station) = self.stations.get_mut(index) {
                        (station.facts, station.places) = (Some(facts), places);
                    }
                }
                (_, News::Started(Err(error))) if !is_of_device(&error) => return Err(error),
                (index, News::Started(Err(error))) => {
                    self.dismiss(index);
                    refused.push((index, error));
                }
                _ => return Err(lost()),
            }
        }
        refused.sort_by_key(|(index, _)| *index);
        if self.stations.iter().all(|station| station.orders.is_none()) {
            return Err(refused.into_iter().next().map_or_else(lost, |(_, error)| error));
        }
        let text = |(index, error): &(usize, ExecutorError)| {
            format!("{} is not used: {}", self.name(*index), with_causes(error))
        };
        let mut warnings: Vec<String> = refused.iter().map(text).collect();
        warnings.extend(self.leave_other_models());
        Ok(warnings)
    }

    /// Gives up the devices of another model than the weakest. Gives what is to be said of it.
    fn leave_other_models(&mut self) -> Vec<String> {
        let Some((least, weakest)) = self.weakest().and_then(|index| Some((index, self.facts(index)?.clone()))) else {
            return Vec::new();
        };
        let mut warnings = Vec::new();
        for index in 0..self.stations.len() {
            let Some(facts) = self.facts(index).filter(|facts| facts.name != weakest.name) else { continue };
            warnings.push(format!(
                "{} ({}) runs nothing: it is another model than {} ({}), which has the least memory for tensors, and speeds \
                 of two models cannot be compared (hint: tune for each model by itself)",
                self.name(index),
                facts.name,
                self.name(least),
                weakest.name
            ));
            self.dismiss(index);
        }
        warnings
    }

    /// The device that the answer has to hold for: the one with the least C, the first of equals.
    pub(super) fn weakest(&self) -> Option<usize> {
        let known = (0..self.stations.len()).filter_map(|index| Some((self.facts(index)?.limit_bytes, index)));
        known.min().map(|(_, index)| index)
    }

    /// What a device that is in use is.
    pub(super) fn facts(&self, index: usize) -> Option<&DeviceFacts> {
        self.stations.get(index).filter(|station| station.orders.is_some())?.facts.as_ref()
    }

    /// All devices in use.
    pub(super) fn all_facts(&self) -> impl Iterator<Item = &DeviceFacts> {
        (0..self.stations.len()).filter_map(|index| self.facts(index))
    }

    /// Where a trial on a device ran, as its record has it.
    pub(super) fn worker_facts(&self, index: usize) -> Option<WorkerFacts> {
        let facts = self.stations.get(index)?.facts.as_ref()?;
        Some(WorkerFacts::new(&Place::default(), facts))
    }

    /// What a device is called, for people.
    pub(super) fn name(&self, index: usize) -> &str {
        self.stations.get(index).map_or("", |station| &station.name)
    }

    /// The device's name where there is more than one.
    pub(super) fn label(&self, index: usize) -> Option<String> {
        (self.stations.len() > 1).then(|| self.name(index).to_owned())
    }

    /// What the recommendation says of the devices, where there are several.
    pub(super) fn notes(&self) -> Vec<String> {
        let limit = |index: usize| self.facts(index).map(|facts| facts.limit_bytes);
        let used: Vec<usize> = (0..self.stations.len()).filter(|index| limit(*index).is_some()).collect();
        let (Some(weakest), [_, _, ..]) = (self.weakest(), used.as_slice()) else { return Vec::new() };
        let names: Vec<&str> = used.iter().map(|index| self.name(*index)).collect();
        let mut note = format!("trials ran side by side on {}", names.join(", "));
        let (least, most) = (limit(weakest), used.iter().filter_map(|index| limit(*index)).max());
        if let (Some(least), Some(most)) = (least, most)
            && least < most
        {
            let _ = write!(
                note,
                "; the answer holds for the weakest, {}: {} for tensors, under which all were judged, against up to {}",
                self.name(weakest),
                Bytes(least),
                Bytes(most)
            );
        }
        vec![note]
    }

    /// What is running.
    pub(super) fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.stations.iter().filter_map(|station| station.running.as_ref())
    }

    /// The trial that a device is running.
    pub(super) fn job_mut(&mut self, index: usize) -> Option<&mut Job> {
        self.stations.get_mut(index)?.running.as_mut()
    }

    /// Takes the trial off a device, which has ended it.
    pub(super) fn take_job(&mut self, index: usize) -> Option<Job> {
        self.stations.get_mut(index)?.running.take()
    }

    /// Begins a trial.
    pub(super) fn begin(&mut self, index: usize, ask: Ask, spec: TrialSpec) {
        let Some(station) = self.stations.get_mut(index) else { return };
        // A thread that is gone has said so, or will.
        let _ = station.orders.as_ref().map(|orders| orders.send(spec.clone()));
        let total = spec.total_steps();
        station.running = Some(Job { ask, spec, total });
    }

    /// What happened next on any of the devices.
    pub(super) fn next(&mut self) -> (usize, News) {
        let (index, news) = self.news.recv().unwrap_or((0, News::Lost));
        if let (News::Moved(places), Some(station)) = (&news, self.stations.get_mut(index)) {
            station.places.clone_from(places);
        }
        (index, news)
    }

    /// Whether another device is in use.
    pub(super) fn has_others(&self, index: usize) -> bool {
        (0..self.stations.len()).any(|other| other != index && self.facts(other).is_some())
    }

    /// Counts a failure of a device. Whether it is given up by that.
    pub(super) fn fail(&mut self, index: usize) -> bool {
        let Some(station) = self.stations.get_mut(index) else { return false };
        station.failures += 1;
        let is_given_up = station.failures >= FAILURES;
        if is_given_up {
            self.dismiss(index);
        }
        is_given_up
    }

    /// Gives a device up.
    pub(super) fn dismiss(&mut self, index: usize) {
        if let Some(station) = self.stations.get_mut(index) {
            station.orders = None;
        }
    }

    /// Ends at once whatever is running.
    pub(super) fn halt(&self) {
        self.halt.request();
        self.halt.request();
    }
}

impl Drop for Crew {
    /// The threads are joined, so none may go on with a trial.
    fn drop(&mut self) {
        self.halt();
    }
}

/// What a thread says, and that it is gone.
struct Reports {
    index: usize,
    reports: SyncSender<(usize, News)>,
}

impl Reports {
    fn say(&self, news: News) {
        // Nobody listens once the study is over.
        let _ = self.reports.send((self.index, news));
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.say(News::Lost);
        }
    }
}

fn work(mut executor: Box<dyn Executor + Send + '_>, orders: &Receiver<TrialSpec>, reports: &Reports) {
    let started = executor.start();
    let mut places = executor.places();
    reports.say(News::Started(started.map(|facts| (facts, places.clone()))));
    for spec in orders {
        let ended = executor.run(&spec, &mut |observation| reports.say(News::Seen(observation)));
        let now = executor.places();
        if now != places {
            places.clone_from(&now);
            reports.say(News::Moved(now));
        }
        reports.say(News::Ended(Box::new(ended)));
    }
}

/// Whether another device may do where this error came up: what is wrong with the workload, the disk or the user's
/// patience is wrong everywhere.
pub(super) fn is_of_device(error: &ExecutorError) -> bool {
    !matches!(error, ExecutorError::Workload(_) | ExecutorError::Scratch { .. } | ExecutorError::Cancelled)
}

pub(super) fn lost() -> ExecutorError {
    ExecutorError::Startup { reason: "its thread is gone".to_owned() }
}

/// A record as it would be had its device no more than C. What was measured under more memory is judged by what that
/// device has: a peak above it leaves no headroom, and of the largest request that would have succeeded so much is gone.
pub(super) fn under(mut record: TrialRecord, limit_bytes: u64) -> TrialRecord {
    for sample in &mut record.samples {
        *sample = sample_under(*sample, limit_bytes);
    }
    record
}

fn sample_under(sample: MemorySample, limit_bytes: u64) -> MemorySample {
    let more = sample.limit_bytes.saturating_sub(limit_bytes);
    if more == 0 {
        return sample;
    }
    let largest_satisfiable_bytes = sample.largest_satisfiable_bytes.saturating_sub(more);
    let external = external_rate(largest_satisfiable_bytes, sample.allocated_bytes, limit_bytes);
    let rates = Rates { external, ..sample.rates };
    MemorySample { limit_bytes, largest_satisfiable_bytes, rates, ..sample }
}
