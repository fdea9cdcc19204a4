//! What runs the trials of a plan.

use std::path::Path;
use std::time::Instant;

use crate::config::Plan;
use crate::config::plan::Subject;
use crate::error::Error;
use crate::trial::command::{CommandConfig, CommandExecutor};
use crate::trial::launcher::{Launcher, LauncherSpec, Setting, Starter, Surroundings};
use crate::trial::process::{OomKills, Patience, ProcessConfig, ProcessExecutor, WorkerCommand};
use crate::trial::replicas::ReplicaExecutor;
use crate::trial::{Executor, Interrupt};

/// What runs the trials: workers of this program for a model, the user's own program for a command.
pub(super) fn executor(plan: &Plan, folder: &Path, interrupt: &Interrupt) -> Result<Box<dyn Executor>, Error> {
    let scratch =
        folder.canonicalize().map_err(|source| Error::Io { action: "cannot find the study directory", source })?;
    let patience = Patience::with_step_timeout(plan.trial.timeout);
    let interrupt = interrupt.clone();
    let deadline = Instant::now().checked_add(plan.budget.time);
    // The worker of a launcher is in a control group of another machine.
    let oom_kills = if plan.launcher.is_some() { OomKills::default() } else { OomKills::of_this_process() };
    Ok(match &plan.subject {
        Subject::Command(command) => Box::new(CommandExecutor::new(CommandConfig {
            command: command.clone(),
            precision: plan.train.precision.to_string(),
            seed: plan.seed,
            replicas: plan.target.replicas,
            device: plan.device,
            limit: plan.memory.limit,
            allocator: plan.memory.allocator,
            scratch,
            patience,
            interrupt,
            deadline,
            oom_kills,
        })),
        Subject::Model(model) => {
            let failed = |source| Error::Io { action: "cannot find this program", source };
            let worker = WorkerCommand::this_program().map_err(failed)?;
            let launcher = match &plan.launcher {
                Some(spec) => Some(launcher(plan, spec, Starter::this_program().map_err(failed)?)),
                None => None,
            };
            let config = ProcessConfig {
                command: match launcher {
                    Some(_) => worker.launched(),
                    None => worker,
                },
                launcher,
                workload: plan.workload(model),
                scratch,
                patience,
                interrupt,
                deadline,
                oom_kills,
            };
            match plan.target.replicas {
                0 | 1 => Box::new(ProcessExecutor::new(config)),
                world => Box::new(ReplicaExecutor::new(config, world)),
            }
        }
    })
}

fn launcher(plan: &Plan, spec: &LauncherSpec, starter: Starter) -> Launcher {
    let surroundings = Surroundings::of_this_process();
    Launcher::new(spec, Setting { study: &plan.name, device: plan.device, surroundings, starter })
}
