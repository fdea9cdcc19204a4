//! A study whose workers play a part, and what a driver holds of the machine.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use batchtune::trial::process::{OomKills, Patience, ProcessConfig, ProcessExecutor, WorkerCommand};
use batchtune::trial::{Executor, Interrupt, Outcome, Purpose, TrialRecord};
use nix::errno::Errno;
use nix::sys::signal::{kill, killpg};
use nix::unistd::Pid;

use crate::scripted;
use crate::toy::{spec, workload};

/// How often every fault is repeated: a leak of one thing a fault shows long before a study has as many.
pub(crate) const REPEATS: u32 = 20;

/// What a driver holds of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holdings {
    descriptors: usize,
    threads: usize,
    /// Processes that it started, zombies among them.
    children: usize,
}

impl Holdings {
    pub(crate) fn now() -> Self {
        let own = std::process::id().to_string();
        Self {
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
            threads: fs::read_dir("/proc/self/task").unwrap().count(),
            children: stats().iter().filter(|stat| fields_of(stat)[1] == own).count(),
        }
    }

    /// Whether nothing is held that was not held before.
    pub(crate) fn is_within(self, before: Self) -> bool {
        self.descriptors <= before.descriptors && self.threads <= before.threads && self.children <= before.children
    }

    /// Fails unless what is held falls to what was held before.
    pub(crate) fn assert_back_at(before: Self) {
        // Threads that tend pipes close them in their own time.
        let until = Instant::now() + Duration::from_secs(30);
        while !Self::now().is_within(before) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(Self::now().is_within(before), "{:?} are left of {before:?}", Self::now());
    }
}

/// A study whose workers play a part.
pub(crate) struct Stage {
    pub(crate) executor: Option<ProcessExecutor>,
    pub(crate) interrupt: Interrupt,
    pub(crate) directory: tempfile::TempDir,
    /// Started before any worker, in a group of its own: it must live to the end.
    bystander: Child,
}

impl Stage {
    pub(crate) fn new(part: &str) -> Self {
        Self::with(part, |_| {})
    }

    pub(crate) fn with(part: &str, adjust: impl FnOnce(&mut ProcessConfig)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let counter = directory.path().join("memory.events");
        fs::write(&counter, "oom_kill 3\n").unwrap();
        let environment = [
            (scripted::PART, part.into()),
            (scripted::PIDS, directory.path().join("pids").into_os_string()),
            (scripted::OOM_COUNTER, counter.clone().into_os_string()),
        ];
        let interrupt = Interrupt::default();
        let mut config = ProcessConfig {
            command: WorkerCommand {
                program: std::env::current_exe().unwrap(),
                arguments: Vec::new(),
                environment: environment.map(|(name, value)| (name.into(), value)).to_vec(),
            },
            launcher: None,
            workload: workload("toy"),
            scratch: directory.path().to_owned(),
            patience: patient(),
            interrupt: interrupt.clone(),
            deadline: None,
            oom_kills: OomKills::in_file(counter),
        };
        adjust(&mut config);
        let bystander = Command::new("sleep").arg("600").stdout(Stdio::null()).spawn().unwrap();
        Self { executor: Some(ProcessExecutor::new(config)), interrupt, directory, bystander }
    }

    pub(crate) fn executor(&mut self) -> &mut ProcessExecutor {
        self.executor.as_mut().unwrap()
    }

    pub(crate) fn run(&mut self, id: u32) -> TrialRecord {
        self.executor().run(&spec(id, Purpose::Ladder), &mut |_| {}).unwrap()
    }

    /// Process numbers of all workers and their children so far.
    pub(crate) fn pids(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.pids_file()).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    pub(crate) fn pids_file(&self) -> PathBuf {
        self.directory.path().join("pids")
    }

    /// A fault, then a good trial, many times over; then nothing may be left. Gives the faults' outcomes.
    pub(crate) fn fault_then_good(self) -> Vec<Outcome> {
        let before = Holdings::now();
        let outcomes = self.play();
        Holdings::assert_back_at(before);
        outcomes
    }

    pub(crate) fn play(mut self) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for round in 0..REPEATS {
            outcomes.push(self.run(2 * round + 1).outcome);
            let good = self.run(2 * round + 2);
            assert_eq!(good.outcome, Outcome::Completed, "the trial after {:?}", outcomes.last());
        }
        self.close();
        outcomes
    }

    /// Ends the executor; every group must be gone, and the bystander alive.
    pub(crate) fn close(mut self) {
        drop(self.executor.take());
        assert!(!self.pids().is_empty(), "no worker was ever started");
        for pid in self.pids() {
            assert_eq!(living_members(pid), Vec::<String>::new(), "nothing of group {pid} is left");
            assert!(!is_alive(pid), "process {pid} is gone");
        }
        assert_eq!(self.bystander.try_wait().unwrap(), None, "the bystander lives");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.bystander.kill();
        let _ = self.bystander.wait();
    }
}

/// [`Stage::fault_then_good`] of several parts at the same time: workers that hang have to be waited for.
pub(crate) fn faults_then_good(parts: &[&str], adjust: fn(&mut ProcessConfig)) -> Vec<Vec<Outcome>> {
    let before = Holdings::now();
    let outcomes = std::thread::scope(|scope| {
        let play = |part: &&str| {
            let stage = Stage::with(part, adjust);
            scope.spawn(move || stage.play())
        };
        let playing: Vec<_> = parts.iter().map(play).collect();
        playing.into_iter().map(|part| part.join().unwrap()).collect()
    });
    Holdings::assert_back_at(before);
    outcomes
}

/// Whether a process runs. A zombie that init has not reaped yet does not.
pub(crate) fn is_alive(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH)
        && fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| fields_of(&stat)[0] != "Z")
}

/// The `stat` lines of all members of a group that run.
pub(crate) fn living_members(group: i32) -> Vec<String> {
    if killpg(Pid::from_raw(group), None) == Err(Errno::ESRCH) {
        return Vec::new();
    }
    let is_member = |stat: &String| fields_of(stat)[2] == group.to_string() && fields_of(stat)[0] != "Z";
    stats().into_iter().filter(is_member).collect()
}

/// The `stat` lines of all processes.
pub(crate) fn stats() -> Vec<String> {
    fs::read_dir("/proc").unwrap().filter_map(|p| fs::read_to_string(p.ok()?.path().join("stat")).ok()).collect()
}

/// State, parent, and group of a `stat` line. A name in it may hold anything but ends with the last bracket.
pub(crate) fn fields_of(stat: &str) -> [&str; 3] {
    let mut fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    [(); 3].map(|()| fields.next().unwrap())
}

/// Waits that a loaded machine does not run into.
pub(crate) fn patient() -> Patience {
    Patience {
        start: Duration::from_secs(60),
        build: Duration::from_secs(60),
        step: Duration::from_secs(60),
        stop: Duration::from_secs(60),
        leave: Duration::from_secs(10),
        kill: Duration::from_secs(10),
        baseline: Duration::ZERO,
        lease: Duration::from_secs(60),
    }
}

/// Waits for workers that are known to hang. A good trial has one step, which `build` covers.
pub(crate) fn impatient(config: &mut ProcessConfig) {
    config.patience.step = Duration::from_millis(300);
    config.patience.leave = Duration::from_millis(20);
    config.patience.kill = Duration::from_millis(100);
}

pub(crate) fn crashed_by(outcome: &Outcome, expected: i32) -> bool {
    matches!(outcome, Outcome::Crashed { signal: Some(signal), status: None, .. } if *signal == expected)
}

pub(crate) fn protocol_error(outcome: &Outcome, words: &str) -> bool {
    matches!(outcome, Outcome::ProtocolError { message } if message.contains(words))
}
