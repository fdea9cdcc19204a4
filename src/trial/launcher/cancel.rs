//! Ending a launched worker for certain.
//!
//! Signals reach the launcher, which may pass them on. One that was killed, or hangs, does not: an `srun` ended by
//! SIGKILL leaves its worker alive, without an end of its input. So the cancel command runs at the end of every launched
//! worker, whatever was seen of it before; of a job that is over it costs some hundredths of a second.
//!
//! A job of Slurm's is named by the number that its worker said in its hello. While it is pending, and until the hello
//! has come, there is none: an argument that holds `{SLURM_JOB_ID}` is then `--name=…`, with the job's own name (one
//! name: `scancel` ignores lists of several without a word). Inside a job of the user's the step is cancelled and not the
//! job, which is the tuner's own; a step that has not said its number ends by its lease.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::place::Place;
use super::template::{Placeholder, Template};

/// The longest that a cancel command may take; `scancel` waits for a controller that does not answer.
const LONGEST: Duration = Duration::from_secs(15);
/// Between two looks at whether it has ended.
const POLL: Duration = Duration::from_millis(5);
/// What `scancel` would narrow its choice by, or ask before.
const FILTERS: &str = "SCANCEL_";

/// What ends one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancel {
    pub(super) command: Vec<Template>,
    pub(super) study: String,
    /// The worker's own name.
    pub(super) name: String,
    /// Whether the launcher was told the name.
    pub(super) is_named: bool,
    /// Where the tuner itself runs: that is never cancelled.
    pub(super) own: Place,
}

/// Who a worker is, as far as it has said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::trial) struct Identity {
    /// Where it runs.
    pub(in crate::trial) place: Place,
    /// Its process number there.
    pub(in crate::trial) pid: Option<u32>,
}

impl Cancel {
    /// The command for a worker; `None` where there is none, or nothing that it could name.
    pub(in crate::trial) fn arguments(&self, identity: &Identity) -> Option<Vec<String>> {
        if self.command.is_empty() {
            return None;
        }
        self.command.iter().map(|argument| self.argument(argument, identity)).collect()
    }

    fn argument(&self, argument: &Template, identity: &Identity) -> Option<String> {
        let place = &identity.place;
        let names_job = argument.holds(Placeholder::SlurmJob);
        if names_job && place.slurm_job_id.is_none() {
            return self.is_named.then(|| format!("--name={}", self.name));
        }
        if names_job && place.slurm_job_id == self.own.slurm_job_id {
            let job = place.slurm_job_id.as_ref()?;
            let step = place.slurm_step_id.as_ref().filter(|step| self.own.slurm_step_id.as_ref() != Some(*step))?;
            return Some(format!("{job}.{step}"));
        }
        argument.fill(|placeholder| match placeholder {
            Placeholder::Trial => Some(self.name.clone()),
            Placeholder::Study => Some(self.study.clone()),
            Placeholder::Pid => identity.pid.map(|pid| pid.to_string()),
            Placeholder::Node => place.node.clone(),
            Placeholder::SlurmJob => place.slurm_job_id.clone(),
            Placeholder::SlurmStep => place.slurm_step_id.clone(),
        })
    }

    /// Runs the command, for no longer than a bound. That it fails is for the log: the job may be over.
    pub(in crate::trial) fn run(&self, identity: &Identity) {
        let Some(arguments) = self.arguments(identity) else {
            if !self.command.is_empty() {
                tracing::debug!("worker `{}` has not said where it is, so it ends by its lease", self.name);
            }
            return;
        };
        let Some((program, rest)) = arguments.split_first() else { return };
        let mut command = Command::new(program);
        command.args(rest).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with(FILTERS) {
                command.env_remove(name);
            }
        }
        match command.spawn() {
            Ok(child) => await_end(child, program, LONGEST),
            Err(error) => tracing::warn!("cannot run `{program}` to end worker `{}`: {error}", self.name),
        }
    }
}

/// Waits for the command's end, and ends it with its group where that takes too long.
fn await_end(mut child: Child, program: &str, longest: Duration) {
    let until = Instant::now() + longest;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return,
            Ok(Some(status)) => return tracing::debug!("`{program}` ended with {status}"),
            Ok(None) if Instant::now() < until => thread::sleep(POLL),
            Ok(None) | Err(_) => break,
        }
    }
    tracing::warn!("`{program}` did not end within {:.0} s", longest.as_secs_f64());
    // Not reaped yet, so the number is still its own.
    if let Ok(id) = i32::try_from(child.id()) {
        let _ = killpg(Pid::from_raw(id), Signal::SIGKILL);
    }
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::super::Holder;
    use super::*;

    fn cancel(command: &[&str], own: Place) -> Cancel {
        Cancel {
            command: command.iter().map(|text| Template::parse(text, Holder::Cancel).unwrap()).collect(),
            study: "quickstart".to_owned(),
            name: "tune-quickstart-1".to_owned(),
            is_named: true,
            own,
        }
    }

    fn step(job: &str, step: Option<&str>) -> Place {
        Place {
            node: Some("n1".to_owned()),
            slurm_job_id: Some(job.to_owned()),
            slurm_step_id: step.map(str::to_owned),
            ..Place::default()
        }
    }

    fn arguments(cancel: &Cancel, place: Place) -> Option<Vec<String>> {
        cancel.arguments(&Identity { place, pid: Some(42) })
    }

    const SCANCEL: [&str; 3] = ["scancel", "--quiet", "{SLURM_JOB_ID}"];

    #[test]
    fn a_job_is_cancelled_by_its_number_and_while_pending_by_its_name() {
        let scancel = cancel(&SCANCEL, Place::default());
        assert_eq!(arguments(&scancel, step("12", Some("0"))).unwrap(), ["scancel", "--quiet", "12"]);
        assert_eq!(arguments(&scancel, Place::default()).unwrap(), ["scancel", "--quiet", "--name=tune-quickstart-1"]);
        let unnamed = Cancel { is_named: false, ..scancel };
        assert_eq!(arguments(&unnamed, Place::default()), None);
    }

    #[test]
    fn inside_a_job_a_step_is_cancelled_and_never_what_the_tuner_runs_in() {
        let inside = cancel(&SCANCEL, step("12", None));
        assert_eq!(arguments(&inside, step("12", Some("3"))).unwrap()[2], "12.3");
        assert_eq!(arguments(&inside, step("12", None)), None, "a container in the same job says the job's number");
        assert_eq!(arguments(&inside, step("13", Some("0"))).unwrap()[2], "13");
        let in_a_step = cancel(&SCANCEL, step("12", Some("3")));
        assert_eq!(arguments(&in_a_step, step("12", Some("3"))), None);
        assert_eq!(arguments(&in_a_step, step("12", Some("4"))).unwrap()[2], "12.4");
    }

    #[test]
    fn other_launchers_name_the_process_or_the_container() {
        let ssh = cancel(&["ssh", "{node}", "kill -9 {pid}"], Place::default());
        assert_eq!(arguments(&ssh, step("1", None)).unwrap(), ["ssh", "n1", "kill -9 42"]);
        assert_eq!(ssh.arguments(&Identity::default()), None, "nobody knows yet");
        let pod = cancel(&["kubectl", "delete", "pod", "{trial}"], Place::default());
        assert_eq!(pod.arguments(&Identity::default()).unwrap()[3], "tune-quickstart-1");
        assert_eq!(arguments(&cancel(&[], Place::default()), step("1", None)), None);
    }

    #[test]
    fn a_cancel_command_that_hangs_is_ended_with_what_it_started() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & sleep 600"]).process_group(0);
        let child = command.spawn().unwrap();
        let group = Pid::from_raw(i32::try_from(child.id()).unwrap());
        await_end(child, "sh", Duration::from_millis(50));
        let until = Instant::now() + Duration::from_secs(30);
        while killpg(group, None).is_ok() && Instant::now() < until {
            thread::sleep(POLL);
        }
        assert!(killpg(group, None).is_err(), "nothing of its group is left");
    }

    #[test]
    fn a_cancel_command_that_is_not_there_does_no_harm() {
        cancel(&["/nonexistent/scancel", "{trial}"], Place::default()).run(&Identity::default());
        cancel(&["false"], Place::default()).run(&Identity::default());
    }
}
