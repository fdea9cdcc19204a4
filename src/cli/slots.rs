//! What runs the trials of a study: an executor for each device, or for each group of as many as there are replicas.
//!
//! Workers of this program train a model, the user's own program is run for a command. Which devices there are says the
//! configuration; `all` is counted by NVML, which opens none of them. Of a list, each group takes those that stand
//! together; what is left over at its end runs nothing.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::config::Plan;
use crate::config::plan::{DevicesPlan, Subject};
use crate::device::{DeviceChoice, facts, visible};
use crate::error::Error;
use crate::memory::LimitSpec;
use crate::search::driver::{Slot, Slots};
use crate::trial::command::{CommandConfig, CommandExecutor};
use crate::trial::launcher::{Launcher, LauncherSpec, Setting, Starter, Surroundings};
use crate::trial::process::{OomKills, Patience, ProcessConfig, ProcessExecutor, WorkerCommand};
use crate::trial::replicas::{Gathering, ReplicaExecutor};
use crate::trial::{Executor, Interrupt};
use crate::units::{Bytes, Fraction};

/// What is the same for all devices of a study.
struct Common<'a> {
    plan: &'a Plan,
    scratch: PathBuf,
    limit: LimitSpec,
    gathering: Gathering,
    interrupt: Interrupt,
    deadline: Option<Instant>,
}

/// The devices of a plan, none of them open yet.
pub(super) fn slots(plan: &Plan, folder: &Path, interrupt: &Interrupt) -> Result<Slots<'static>, Error> {
    let groups = groups(plan);
    let common = Common {
        plan,
        scratch: folder
            .canonicalize()
            .map_err(|source| Error::Io { action: "cannot find the study directory", source })?,
        limit: limit(plan, &groups),
        gathering: Gathering::default(),
        interrupt: interrupt.child(),
        deadline: Instant::now().checked_add(plan.budget.time),
    };
    let slot = |(name, group)| Ok(Slot { name, executor: executor(&common, group)? });
    Ok(Slots {
        slots: names(plan, &groups).into_iter().zip(groups).map(slot).collect::<Result<_, Error>>()?,
        halt: common.interrupt.clone(),
    })
}

/// The devices of each slot: one, or one a replica. A command finds those of its ranks itself, from the first on.
fn groups(plan: &Plan) -> Vec<Vec<DeviceChoice>> {
    let replicas = if plan.command().is_some() { 1 } else { plan.target.replicas.max(1) };
    if let Some(launcher) = &plan.launcher {
        // Which device a worker has is the launcher's choice.
        return vec![vec![plan.device; replicas]; (launcher.workers / replicas).max(1)];
    }
    let all = match &plan.devices {
        DevicesPlan::One => Vec::new(),
        DevicesPlan::Listed(devices) => devices.clone(),
        DevicesPlan::All => {
            // Workers of a build without CUDA see no card; a program of the user's own may.
            let sees_cards = cfg!(feature = "cuda") || plan.command().is_some();
            let cards = if sees_cards { visible::count() } else { 0 };
            (0..cards).map(DeviceChoice::Cuda).collect()
        }
    };
    let groups: Vec<_> = all.chunks_exact(replicas).map(<[DeviceChoice]>::to_vec).collect();
    if groups.is_empty() { vec![in_a_row(plan.device, replicas)] } else { groups }
}

/// A device and those after it. Where it is the workers' to find, each takes the one of its rank.
fn in_a_row(first: DeviceChoice, count: usize) -> Vec<DeviceChoice> {
    let device = |rank| match first {
        DeviceChoice::Cuda(first) => DeviceChoice::Cuda(first.saturating_add(rank)),
        DeviceChoice::Auto | DeviceChoice::Cpu => first,
    };
    (0..count).map(device).collect()
}

/// What each is called: `cuda:1`, or with a number where several have one name; a group by all of its devices.
fn names(plan: &Plan, groups: &[Vec<DeviceChoice>]) -> Vec<String> {
    if plan.launcher.is_some() {
        let what = if groups.iter().any(|group| group.len() > 1) { "group" } else { "worker" };
        return (1..=groups.len()).map(|number| format!("{what} {number}")).collect();
    }
    let all: Vec<DeviceChoice> = groups.concat();
    let count = |device: &DeviceChoice, among: &[DeviceChoice]| among.iter().filter(|other| *other == device).count();
    let name = |(index, device): (usize, &DeviceChoice)| match count(device, &all) {
        0 | 1 => device.to_string(),
        _ => format!("{device} ({})", count(device, all.get(..=index).unwrap_or_default())),
    };
    let mut each = all.iter().enumerate().map(name);
    groups.iter().map(|group| each.by_ref().take(group.len()).collect::<Vec<_>>().join(" + ")).collect()
}

/// The limit of each device. Several virtual ones share the host's memory; a launcher's workers have memory of their own.
/// The ranks of one group share an automatic limit themselves.
fn limit(plan: &Plan, groups: &[Vec<DeviceChoice>]) -> LimitSpec {
    let limit = plan.memory.limit;
    let sharers: Vec<usize> = groups.iter().filter(|group| group.contains(&DeviceChoice::Cpu)).map(Vec::len).collect();
    if plan.launcher.is_some() || sharers.len() < 2 {
        return limit;
    }
    match limit {
        LimitSpec::Auto => {
            let available_bytes = facts::memory(Path::new("/")).available_bytes;
            LimitSpec::Bytes(Bytes(available_bytes / 2 / sharers.iter().sum::<usize>() as u64))
        }
        LimitSpec::Fraction(share) => LimitSpec::Fraction(Fraction(share.0 / sharers.len() as f64)),
        LimitSpec::Bytes(_) => limit,
    }
}

fn executor(common: &Common<'_>, group: Vec<DeviceChoice>) -> Result<Box<dyn Executor + Send>, Error> {
    let Common { plan, scratch, limit, gathering, interrupt, deadline } = common;
    let device = group.first().copied().unwrap_or(plan.device);
    let patience = Patience::with_step_timeout(plan.trial.timeout);
    // The worker of a launcher is in a control group of another machine.
    let oom_kills = if plan.launcher.is_some() { OomKills::default() } else { OomKills::of_this_process() };
    let (scratch, interrupt, deadline) = (scratch.clone(), interrupt.clone(), *deadline);
    let model = match &plan.subject {
        Subject::Model(model) => model,
        Subject::Command(command) => {
            return Ok(Box::new(CommandExecutor::new(CommandConfig {
                command: command.clone(),
                precision: plan.train.precision.to_string(),
                seed: plan.seed,
                replicas: plan.target.replicas,
                device,
                limit: *limit,
                allocator: plan.memory.allocator,
                scratch,
                patience,
                interrupt,
                deadline,
                oom_kills,
            })));
        }
    };
    let failed = |source| Error::Io { action: "cannot find this program", source };
    let worker = WorkerCommand::this_program().map_err(failed)?;
    let launcher = match &plan.launcher {
        Some(spec) => Some(launcher(plan, spec, Starter::this_program().map_err(failed)?)),
        None => None,
    };
    let mut workload = plan.workload(model);
    (workload.device, workload.limit) = (device, *limit);
    let config = ProcessConfig {
        command: if launcher.is_some() { worker.launched() } else { worker },
        launcher,
        workload,
        scratch,
        patience,
        interrupt,
        deadline,
        oom_kills,
    };
    Ok(match group.len() {
        0 | 1 => Box::new(ProcessExecutor::new(config)),
        _ if plan.launcher.is_some() => Box::new(ReplicaExecutor::new(config, group).in_turn(gathering.clone())),
        _ => Box::new(ReplicaExecutor::new(config, group)),
    })
}

fn launcher(plan: &Plan, spec: &LauncherSpec, starter: Starter) -> Launcher {
    let surroundings = Surroundings::of_this_process();
    Launcher::new(spec, Setting { study: &plan.name, device: plan.device, surroundings, starter })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: DeviceChoice = DeviceChoice::Cpu;

    /// A plan for a model on these devices.
    fn plan(devices: DevicesPlan, replicas: usize) -> Plan {
        let mut plan = crate::search::scripted::plan(8);
        (plan.devices, plan.target.replicas) = (devices, replicas);
        plan
    }

    fn cards(numbers: &[usize]) -> Vec<DeviceChoice> {
        numbers.iter().copied().map(DeviceChoice::Cuda).collect()
    }

    #[test]
    fn a_list_is_cut_into_groups_of_as_many_as_there_are_replicas() {
        let listed = |numbers: &[usize]| DevicesPlan::Listed(cards(numbers));
        assert_eq!(groups(&plan(listed(&[0, 2, 1, 3]), 2)), [cards(&[0, 2]), cards(&[1, 3])]);
        assert_eq!(groups(&plan(listed(&[0, 1, 2, 3, 4]), 2)).len(), 2, "one is left over");
        assert_eq!(groups(&plan(listed(&[1, 0]), 1)), [cards(&[1]), cards(&[0])]);
        let one = Plan { device: DeviceChoice::Cuda(2), ..plan(DevicesPlan::One, 2) };
        assert_eq!(groups(&one), [cards(&[2, 3])]);
        assert_eq!(groups(&Plan { device: CPU, ..one }), [[CPU, CPU]]);
    }

    #[test]
    fn a_launcher_s_workers_are_shared_out_among_groups() {
        use crate::trial::launcher::LauncherCommand;
        let count = |workers: usize| {
            let start_timeout = std::time::Duration::from_secs(1);
            let launcher = LauncherSpec { command: LauncherCommand::Slurm, workers, start_timeout, cancel: None };
            let plan = Plan { launcher: Some(launcher), ..plan(DevicesPlan::One, 2) };
            let groups = groups(&plan);
            assert!(groups.iter().all(|group| group.len() == 2));
            assert_eq!(limit(&plan, &groups), plan.memory.limit);
            (groups.len(), names(&plan, &groups).concat())
        };
        assert_eq!(count(1), (1, "group 1".to_owned()), "a trial runs in any case");
        assert_eq!(count(5), (2, "group 1group 2".to_owned()));
    }

    #[test]
    fn devices_of_one_name_are_numbered() {
        let names = |groups: &[Vec<DeviceChoice>]| names(&plan(DevicesPlan::One, 1), groups);
        assert_eq!(names(&[vec![CPU]]), ["cpu"]);
        assert_eq!(names(&[vec![CPU], vec![CPU]]), ["cpu (1)", "cpu (2)"]);
        assert_eq!(names(&[cards(&[1]), cards(&[0])]), ["cuda:1", "cuda:0"]);
        assert_eq!(names(&[vec![CPU; 2], vec![CPU; 2]]), ["cpu (1) + cpu (2)", "cpu (3) + cpu (4)"]);
        assert_eq!(names(&[cards(&[0, 1])]), ["cuda:0 + cuda:1"]);
    }

    #[test]
    fn virtual_devices_share_the_host_s_memory_and_cards_do_not() {
        let limit = |spec: LimitSpec, groups: &[Vec<DeviceChoice>]| {
            let mut plan = plan(DevicesPlan::One, 1);
            plan.memory.limit = spec;
            limit(&plan, groups)
        };
        let share = LimitSpec::Fraction(Fraction(0.5));
        let half = LimitSpec::Fraction(Fraction(0.25));
        assert_eq!(limit(share, &[vec![CPU]]), share);
        assert_eq!(limit(share, &[vec![CPU], vec![CPU]]), half);
        assert_eq!(limit(share, &[vec![CPU; 2], vec![CPU; 2]]), half, "as a group alone has the whole");
        assert_eq!(limit(share, &[cards(&[0]), cards(&[1])]), share);
        assert!(matches!(limit(LimitSpec::Auto, &[vec![CPU], vec![CPU]]), LimitSpec::Bytes(_)));
        assert_eq!(limit(LimitSpec::Auto, &[vec![CPU; 2]]), LimitSpec::Auto, "its ranks share it themselves");
        let bytes = LimitSpec::Bytes(Bytes(5));
        assert_eq!(limit(bytes, &[vec![CPU], vec![CPU]]), bytes);
    }
}
