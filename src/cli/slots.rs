//! What runs the trials of a study: an executor for each of its devices.
//!
//! Workers of this program train a model, the user's own program is run for a command. Which devices there are says the
//! configuration; `all` is counted by NVML, which opens none of them.

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
use crate::trial::replicas::ReplicaExecutor;
use crate::trial::{Executor, Interrupt};
use crate::units::{Bytes, Fraction};

/// What is the same for all devices of a study.
struct Common<'a> {
    plan: &'a Plan,
    scratch: PathBuf,
    limit: LimitSpec,
    interrupt: Interrupt,
    deadline: Option<Instant>,
}

/// The devices of a plan, none of them open yet.
pub(super) fn slots(plan: &Plan, folder: &Path, interrupt: &Interrupt) -> Result<Slots<'static>, Error> {
    let devices = devices(plan);
    let common = Common {
        plan,
        scratch: folder
            .canonicalize()
            .map_err(|source| Error::Io { action: "cannot find the study directory", source })?,
        limit: limit(plan.memory.limit, &devices),
        interrupt: interrupt.child(),
        deadline: Instant::now().checked_add(plan.budget.time),
    };
    let slot = |(name, device)| Ok(Slot { name, executor: executor(&common, device)? });
    Ok(Slots {
        slots: names(plan, &devices).into_iter().zip(devices).map(slot).collect::<Result<_, Error>>()?,
        halt: common.interrupt.clone(),
    })
}

/// A device for each slot.
fn devices(plan: &Plan) -> Vec<DeviceChoice> {
    if let Some(launcher) = &plan.launcher {
        return vec![plan.device; launcher.workers];
    }
    match &plan.devices {
        DevicesPlan::One => vec![plan.device],
        DevicesPlan::Listed(devices) => devices.clone(),
        DevicesPlan::All => {
            // Workers of a build without CUDA see no card; a program of the user's own may.
            let sees_cards = cfg!(feature = "cuda") || plan.command().is_some();
            let cards = if sees_cards { visible::count() } else { 0 };
            if cards == 0 { vec![plan.device] } else { (0..cards).map(DeviceChoice::Cuda).collect() }
        }
    }
}

/// What each is called: `cuda:1`, or with a number where several have one name.
fn names(plan: &Plan, devices: &[DeviceChoice]) -> Vec<String> {
    if plan.launcher.is_some() {
        return (1..=devices.len()).map(|number| format!("worker {number}")).collect();
    }
    let count = |device: &DeviceChoice, among: &[DeviceChoice]| among.iter().filter(|other| *other == device).count();
    let name = |(index, device): (usize, &DeviceChoice)| match count(device, devices) {
        0 | 1 => device.to_string(),
        _ => format!("{device} ({})", count(device, &devices[..=index])),
    };
    devices.iter().enumerate().map(name).collect()
}

/// The limit of each device. Several virtual ones share the host's memory.
fn limit(limit: LimitSpec, devices: &[DeviceChoice]) -> LimitSpec {
    let count = devices.iter().filter(|device| **device == DeviceChoice::Cpu).count();
    match limit {
        LimitSpec::Auto if count > 1 => {
            let available_bytes = facts::memory(Path::new("/")).available_bytes;
            LimitSpec::Bytes(Bytes(available_bytes / 2 / count as u64))
        }
        LimitSpec::Fraction(share) if count > 1 => LimitSpec::Fraction(Fraction(share.0 / count as f64)),
        limit => limit,
    }
}

fn executor(common: &Common<'_>, device: DeviceChoice) -> Result<Box<dyn Executor + Send>, Error> {
    let Common { plan, scratch, limit, interrupt, deadline } = common;
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
    Ok(match plan.target.replicas {
        0 | 1 => Box::new(ProcessExecutor::new(config)),
        world => Box::new(ReplicaExecutor::new(config, world)),
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

    #[test]
    fn devices_of_one_name_are_numbered() {
        let plan = crate::search::scripted::plan(8);
        assert_eq!(names(&plan, &[CPU]), ["cpu"]);
        assert_eq!(names(&plan, &[CPU, CPU]), ["cpu (1)", "cpu (2)"]);
        assert_eq!(names(&plan, &[DeviceChoice::Cuda(1), DeviceChoice::Cuda(0)]), ["cuda:1", "cuda:0"]);
    }

    #[test]
    fn virtual_devices_share_the_host_s_memory_and_cards_do_not() {
        let share = LimitSpec::Fraction(Fraction(0.5));
        assert_eq!(limit(share, &[CPU]), share);
        assert_eq!(limit(share, &[CPU, CPU]), LimitSpec::Fraction(Fraction(0.25)));
        assert_eq!(limit(share, &[DeviceChoice::Cuda(0), DeviceChoice::Cuda(1)]), share);
        assert!(matches!(limit(LimitSpec::Auto, &[CPU, CPU]), LimitSpec::Bytes(_)));
        let bytes = LimitSpec::Bytes(Bytes(5));
        assert_eq!(limit(bytes, &[CPU, CPU]), bytes);
    }
}
