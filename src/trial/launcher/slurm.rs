//! `launcher: slurm`: the flags that suit where the tuner runs, and the environment that `srun` is not to have.
//!
//! - On a login node, `srun` asks for a job of its own: one task, one card, a name to find it by.
//! - Inside a job (`sbatch`, `salloc`), it makes a step of that job. `--exact` gives the step what it asks for and no
//!   more; without it the first step has the whole job and the others wait. The processors per task, which a step does not
//!   inherit since Slurm 22.05, are those of the job.
//!
//! What else a job needs (`SLURM_PARTITION`, `SLURM_ACCOUNT`, `SLURM_TIMELIMIT`, `SRUN_CPUS_PER_TASK`, …) `srun` reads
//! from the environment, or is said in a `command` of the user's own.

use super::place::JOB_VARIABLE;
use super::template::{Placeholder, Template};
use super::{LAUNCHER_FAILED, Surroundings};
use crate::device::DeviceChoice;

/// What would rewrite or divert the worker's lines. (`srun(1)`, "INPUT ENVIRONMENT VARIABLES".)
pub(super) const REMOVED: [&str; 5] =
    ["SLURM_LABELIO", "SLURM_STDINMODE", "SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_PTY_PORT"];

/// What is set: the status of `srun`'s own errors.
pub(super) fn added() -> (&'static str, String) {
    ("SLURM_EXIT_ERROR", LAUNCHER_FAILED.to_string())
}

/// The command that starts a worker for `device`.
pub(super) fn command(device: DeviceChoice, surroundings: &Surroundings) -> Vec<Template> {
    let mut command = vec!["srun".to_owned()];
    if surroundings.get(JOB_VARIABLE).is_some() {
        command.extend(["--nodes=1", "--ntasks=1", "--exact"].map(str::to_owned));
        let cpus = surroundings.get("SLURM_CPUS_PER_TASK").filter(|_| surroundings.get("SRUN_CPUS_PER_TASK").is_none());
        command.extend(cpus.and_then(|cpus| cpus.parse::<u32>().ok()).map(|cpus| format!("--cpus-per-task={cpus}")));
    } else {
        command.push("--ntasks=1".to_owned());
    }
    if device != DeviceChoice::Cpu {
        command.push("--gres=gpu:1".to_owned());
    }
    let mut command: Vec<Template> = command.iter().map(|argument| Template::plain(argument)).collect();
    command.push(Template::ending_in("--job-name=", Placeholder::Trial));
    command
}

/// The command that ends a job, or a step of the job that the tuner runs in.
pub(super) fn cancel() -> Vec<Template> {
    let mut command = ["scancel", "--quiet"].map(Template::plain).to_vec();
    command.push(Template::ending_in("", Placeholder::SlurmJob));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(device: DeviceChoice, variables: &[(&str, &str)]) -> String {
        let surroundings = Surroundings::of(variables.iter().copied());
        let command = command(device, &surroundings);
        command.iter().map(Template::as_written).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn on_a_login_node_a_job_is_asked_for() {
        assert_eq!(written(DeviceChoice::Auto, &[]), "srun --ntasks=1 --gres=gpu:1 --job-name={trial}");
        assert_eq!(written(DeviceChoice::Cpu, &[]), "srun --ntasks=1 --job-name={trial}");
    }

    #[test]
    fn inside_a_job_a_step_is_made_that_leaves_room_for_others() {
        let job = [("SLURM_JOB_ID", "7"), ("SLURM_CPUS_PER_TASK", "8")];
        let flags = "--nodes=1 --ntasks=1 --exact";
        assert_eq!(
            written(DeviceChoice::Cuda(0), &job),
            format!("srun {flags} --cpus-per-task=8 --gres=gpu:1 --job-name={{trial}}")
        );
        let told = [("SLURM_JOB_ID", "7"), ("SLURM_CPUS_PER_TASK", "8"), ("SRUN_CPUS_PER_TASK", "4")];
        assert_eq!(written(DeviceChoice::Cpu, &told), format!("srun {flags} --job-name={{trial}}"));
        let odd = [("SLURM_JOB_ID", "7"), ("SLURM_CPUS_PER_TASK", "--x")];
        assert_eq!(written(DeviceChoice::Cpu, &odd), format!("srun {flags} --job-name={{trial}}"));
    }
}
