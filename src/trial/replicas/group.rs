//! The members of a group, and the folder where their workers meet.

use std::hash::{BuildHasher, RandomState};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};
use tempfile::TempDir;

use super::member::{Member, News};
use crate::device::DeviceChoice;
use crate::device::collective::{Cards, Meeting, Replica};
use crate::trial::executor::ExecutorError;
use crate::trial::process::{Muster, ProcessConfig};
use crate::trial::spec::TrialSpec;

/// A group that is up, or coming up. Dropping it ends every worker.
#[derive(Debug)]
pub(super) struct Group {
    members: Vec<Member>,
    news: Receiver<(usize, News)>,
    /// Dropped last: the workers meet in it.
    _meeting: TempDir,
}

impl Group {
    /// Starts a member on each device; they open them side by side. `number` tells a study's groups apart.
    pub(super) fn start(config: &ProcessConfig, devices: &[DeviceChoice], number: u32) -> Result<Self, ExecutorError> {
        let world = devices.len();
        let scratch = |source| ExecutorError::Scratch { path: config.scratch.clone(), source };
        let meeting = tempfile::Builder::new().prefix("replicas-").tempdir_in(&config.scratch).map_err(scratch)?;
        let (sender, news) = unbounded();
        // What a process of this machine could guess only by reading this one's memory.
        let token = RandomState::new().hash_one(std::process::id());
        let muster = Muster::of(world);
        let cards = if config.launcher.is_some() { Cards::Assigned } else { Cards::Shared };
        let mut members = Vec::new();
        for (rank, device) in devices.iter().enumerate() {
            let replica = Replica {
                rank,
                world,
                meeting: Meeting::Folder(meeting.path().to_owned()),
                token,
                cards,
                start: config.patience.start,
                build: config.patience.build,
                step: config.patience.step,
            };
            let mut config = of_rank(config, world);
            config.workload.device = *device;
            config.launcher = config.launcher.map(|launcher| launcher.of_rank(number, rank));
            let member = Member::start(config, (replica, muster.clone()), sender.clone());
            members.push(member.ok_or_else(|| ExecutorError::Startup {
                reason: "the system refuses a thread for another replica".to_owned(),
            })?);
        }
        Ok(Self { members, news, _meeting: meeting })
    }

    /// What happens next on any rank.
    pub(super) fn news(&self, patience: Duration) -> Result<(usize, News), RecvTimeoutError> {
        self.news.recv_timeout(patience)
    }

    /// Gives all ranks a trial.
    pub(super) fn run(&self, spec: &TrialSpec) {
        self.members.iter().for_each(|member| member.run(spec));
    }

    /// Asks all ranks to stop, once more.
    pub(super) fn interrupt(&self) {
        self.members.iter().for_each(|member| member.interrupt().request());
    }

    /// Ends all ranks.
    pub(super) fn dismiss(&mut self) {
        self.members.iter_mut().for_each(Member::dismiss);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // All at once, and then each is waited for.
        self.dismiss();
    }
}

/// What a rank's worker is started with: its share of the processors. A launcher's workers count those of their machine
/// themselves.
fn of_rank(config: &ProcessConfig, world: usize) -> ProcessConfig {
    let mut config = config.clone();
    let threads = "RAYON_NUM_THREADS";
    let is_chosen = std::env::var_os(threads).is_some()
        || config.command.environment.iter().any(|(name, _)| name.to_str() == Some(threads));
    if !is_chosen && config.launcher.is_none() {
        let cpus = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        config.command.environment.push((threads.into(), (cpus / world.max(1)).max(1).to_string().into()));
    }
    config
}
