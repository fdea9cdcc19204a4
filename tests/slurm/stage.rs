//! A study whose workers play a part in jobs of Slurm's.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use batchtune::device::DeviceChoice;
use batchtune::model::Registry;
use batchtune::trial::launcher::{
    Holder, Launcher, LauncherCommand, LauncherSpec, Setting, Starter, Surroundings, Template,
};
use batchtune::trial::process::{OomKills, Patience, ProcessConfig, ProcessExecutor, WorkerCommand};
use batchtune::trial::{Executor, Interrupt, Observation, Purpose, TrialRecord};

use crate::toy::{Stuck, spec, workload};
use crate::{cluster, scripted};

/// Names this program as what becomes `srun`.
pub(crate) const LAUNCH: &str = "launch";
/// The part of the worker that ships.
pub(crate) const REAL_WORKER: &str = "the_real_worker";
/// For a process to be gone that was cancelled.
const GONE_WITHIN: Duration = Duration::from_secs(30);

/// A study whose workers play a part.
pub(crate) struct Stage {
    executor: Option<ProcessExecutor>,
    pub(crate) interrupt: Interrupt,
    directory: tempfile::TempDir,
}

impl Stage {
    /// Workers that play `part` through `launcher: slurm`, each with one of the two cards.
    pub(crate) fn new(part: &str) -> Self {
        Self::with(part, &spec_of(LauncherCommand::Slurm), |_| {})
    }

    pub(crate) fn with(part: &str, launcher: &LauncherSpec, adjust: impl FnOnce(&mut ProcessConfig)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let environment =
            [(scripted::PART, part.into()), (scripted::PIDS, directory.path().join("pids").into_os_string())];
        let interrupt = Interrupt::default();
        let program = std::env::current_exe().unwrap();
        let setting = Setting {
            study: "faults",
            device: DeviceChoice::Auto,
            surroundings: Surroundings::of_this_process(),
            starter: Starter { program: program.clone(), arguments: vec![LAUNCH.into()] },
        };
        let mut config = ProcessConfig {
            command: WorkerCommand {
                program,
                arguments: Vec::new(),
                environment: environment.map(|(name, value)| (name.into(), value)).to_vec(),
            },
            launcher: Some(Launcher::new(launcher, setting)),
            workload: workload("toy"),
            scratch: directory.path().to_owned(),
            patience: Patience {
                leave: Duration::from_secs(5),
                ..Patience::with_step_timeout(Duration::from_secs(60))
            },
            interrupt: interrupt.clone(),
            deadline: None,
            oom_kills: OomKills::default(),
        };
        adjust(&mut config);
        Self { executor: Some(ProcessExecutor::new(config)), interrupt, directory }
    }

    pub(crate) fn executor(&mut self) -> &mut ProcessExecutor {
        self.executor.as_mut().unwrap()
    }

    /// Runs a trial: odd ones get the fault, even ones are run well.
    pub(crate) fn run(&mut self, id: u32) -> TrialRecord {
        self.run_and(id, &mut |_| {})
    }

    pub(crate) fn run_and(&mut self, id: u32, observe: &mut dyn FnMut(Observation)) -> TrialRecord {
        self.executor().run(&spec(id, Purpose::Ladder), observe).unwrap()
    }

    /// Process numbers of all workers so far.
    pub(crate) fn pids(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.directory.path().join("pids")).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// A file of the study's.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Ends the executor; nothing must be left, neither jobs nor processes.
    pub(crate) fn close(mut self) {
        drop(self.executor.take());
        self.assert_workers_are_gone();
        cluster::assert_nothing_is_left();
    }

    pub(crate) fn assert_workers_are_gone(&self) {
        let living = || self.pids().into_iter().filter(|pid| is_alive(*pid)).collect::<Vec<_>>();
        let until = Instant::now() + GONE_WITHIN;
        while !living().is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(living(), Vec::<i32>::new(), "no worker is left");
    }
}

/// Whether a process runs; a zombie does not.
fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// A launcher with the waits of a test.
pub(crate) fn spec_of(command: LauncherCommand) -> LauncherSpec {
    LauncherSpec { command, workers: 2, start_timeout: Duration::from_secs(60), cancel: None }
}

/// A command of the user's own.
pub(crate) fn own(arguments: &[&str]) -> LauncherCommand {
    LauncherCommand::Own(arguments.iter().map(|text| Template::parse(text, Holder::Command).unwrap()).collect())
}

/// The worker that ships, which notes its process number too.
pub(crate) fn real_worker() -> ExitCode {
    scripted::note_pid(std::process::id());
    batchtune::trial::worker::launched(&Registry::default().with(Stuck))
}
