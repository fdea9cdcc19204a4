//! A launcher that is ready to use: its command for one worker after the other.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::place::Place;
use super::template::{Placeholder, Template};
use super::{Cancel, LauncherCommand, LauncherSpec, slurm};
use crate::device::DeviceChoice;
use crate::trial::process::WorkerCommand;

/// Of a study's name, what a job's name holds. With the rest it stays within the 63 characters that Kubernetes takes.
const STUDY_CHARS: usize = 30;

/// The environment of the tuner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings(BTreeMap<String, String>);

impl Surroundings {
    /// This process's; variables that are not UTF-8 are none of those that matter.
    pub fn of_this_process() -> Self {
        let text = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
        Self(std::env::vars_os().filter_map(text).collect())
    }

    /// Given variables.
    pub fn of<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// A variable that is set to something.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// What becomes the launcher, in a session of its own: see [`session`](super::session).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Starter {
    /// The program.
    pub program: PathBuf,
    /// Its arguments; the launcher's command follows.
    pub arguments: Vec<OsString>,
}

impl Starter {
    /// This program with the argument `launch`.
    pub fn this_program() -> io::Result<Self> {
        Ok(Self { program: std::env::current_exe()?, arguments: vec!["launch".into(), "--".into()] })
    }
}

/// What a launcher is used for, and where.
#[derive(Clone, Debug)]
pub struct Setting<'a> {
    /// The study's name.
    pub study: &'a str,
    /// The device that workers are to open.
    pub device: DeviceChoice,
    /// The tuner's environment.
    pub surroundings: Surroundings,
    /// What becomes the launcher.
    pub starter: Starter,
}

/// A launcher of a study's workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    command: Vec<Template>,
    cancel: Vec<Template>,
    start_timeout: Duration,
    starter: Starter,
    study: String,
    /// Tells this run's jobs from those of any other, of whatever user on whatever machine.
    run: String,
    own: Place,
}

/// What starts one worker, and ends it.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program to start.
    pub program: PathBuf,
    /// Its arguments: the launcher, the worker's program, and its arguments.
    pub arguments: Vec<OsString>,
    /// Set in its environment.
    pub added: Vec<(&'static str, String)>,
    /// Not in its environment.
    pub removed: &'static [&'static str],
    /// What ends the worker for certain.
    pub cancel: Cancel,
}

impl Launcher {
    /// The launcher of a configuration.
    pub fn new(spec: &LauncherSpec, setting: Setting<'_>) -> Self {
        let command = match &spec.command {
            LauncherCommand::Slurm => slurm::command(setting.device, &setting.surroundings),
            LauncherCommand::Own(command) => command.clone(),
        };
        let cancel = match &spec.cancel {
            Some(cancel) => cancel.clone(),
            None if spec.is_slurm() => slurm::cancel(),
            None => Vec::new(),
        };
        let own = Place::of(|name| setting.surroundings.get(name).map(str::to_owned), "");
        Self {
            command,
            cancel,
            start_timeout: spec.start_timeout,
            starter: setting.starter,
            study: name_of(setting.study),
            run: format!("{:08x}", rand::random::<u32>()),
            own,
        }
    }

    /// The same for one rank of a group of replicas, whose jobs have names of their own.
    #[must_use]
    pub fn of_rank(&self, group: u32, rank: usize) -> Self {
        Self { run: format!("{}-{group}r{rank}", self.run), ..self.clone() }
    }

    /// What starts the worker with this number, counted from 1.
    pub fn launch(&self, number: u32, worker: &WorkerCommand) -> Launch {
        let name = format!("tune-{}-{}-{number}", self.study, self.run);
        let value = |placeholder| match placeholder {
            Placeholder::Trial => Some(name.clone()),
            Placeholder::Study => Some(self.study.clone()),
            // Refused by the configuration: nothing is known of a worker that is not there yet.
            Placeholder::Pid | Placeholder::Node | Placeholder::SlurmJob | Placeholder::SlurmStep => None,
        };
        let mut arguments = self.starter.arguments.clone();
        arguments.extend(self.command.iter().filter_map(|argument| argument.fill(value)).map(OsString::from));
        arguments.push(worker.program.clone().into_os_string());
        arguments.extend(worker.arguments.iter().cloned());
        let is_named = self.command.iter().any(|argument| argument.holds(Placeholder::Trial));
        Launch {
            program: self.starter.program.clone(),
            arguments,
            added: vec![slurm::added()],
            removed: &slurm::REMOVED,
            cancel: Cancel {
                command: self.cancel.clone(),
                study: self.study.clone(),
                is_named,
                name,
                own: self.own.clone(),
            },
        }
    }

    /// The longest wait for a worker's first word.
    pub fn start_timeout(&self) -> Duration {
        self.start_timeout
    }

    /// The launcher's program, for messages.
    pub fn program(&self) -> &str {
        self.command.first().map_or("", Template::as_written)
    }
}

/// A study's name as jobs, containers and pods may have it: lower case, digits and single dashes.
fn name_of(study: &str) -> String {
    let mut name = String::new();
    for character in study.chars().map(|character| character.to_ascii_lowercase()) {
        if name.len() == STUDY_CHARS {
            break;
        }
        if character.is_ascii_alphanumeric() {
            name.push(character);
        } else if !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
    }
    let name = name.trim_end_matches('-');
    if name.is_empty() { "study".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::super::Holder;
    use super::*;

    fn launcher(command: LauncherCommand) -> Launcher {
        let spec = LauncherSpec { command, workers: 1, start_timeout: Duration::from_secs(1), cancel: None };
        let setting = Setting {
            study: "GPT-2 «medium»",
            device: DeviceChoice::Cpu,
            surroundings: Surroundings::default(),
            starter: Starter { program: "/bin/tune".into(), arguments: vec!["launch".into()] },
        };
        Launcher::new(&spec, setting)
    }

    fn worker() -> WorkerCommand {
        WorkerCommand { program: "/bin/tune".into(), arguments: vec!["worker".into()], environment: Vec::new() }
    }

    #[test]
    fn a_worker_is_started_through_the_launcher_under_a_name_of_its_own() {
        let command = ["srun", "--job-name={trial}"].map(|text| Template::parse(text, Holder::Command).unwrap());
        let launcher = launcher(LauncherCommand::Own(command.to_vec()));
        let launch = launcher.launch(3, &worker());
        let arguments: Vec<&str> = launch.arguments.iter().map(|argument| argument.to_str().unwrap()).collect();
        let name = format!("tune-gpt-2-medium-{}-3", launcher.run);
        assert_eq!(arguments, ["launch", "srun", &format!("--job-name={name}"), "/bin/tune", "worker"]);
        assert!(name.len() <= 63, "{name}");
        assert!(launch.added.contains(&("SLURM_EXIT_ERROR", "201".to_owned())));
        assert!(launch.removed.contains(&"SLURM_LABELIO"));
        assert_ne!(launcher.launch(4, &worker()).cancel.name, launch.cancel.name);
        let of_rank = launcher.of_rank(2, 63).launch(1, &worker()).cancel.name;
        assert_eq!(of_rank, format!("tune-gpt-2-medium-{}-2r63-1", launcher.run));
    }

    #[test]
    fn any_study_gives_a_name_that_schedulers_take() {
        assert_eq!(name_of("../../x y"), "x-y");
        assert_eq!(name_of("日本"), "study");
        assert_eq!(name_of(&"a.".repeat(100)).len(), STUDY_CHARS - 1);
    }

    #[test]
    fn only_slurm_s_jobs_are_cancelled_unasked() {
        let plain = |text: &str| LauncherCommand::Own(vec![Template::plain(text)]);
        assert!(launcher(plain("ssh")).cancel.is_empty());
        assert_eq!(launcher(plain("/opt/slurm/bin/srun")).cancel, slurm::cancel());
        assert_eq!(launcher(LauncherCommand::Slurm).cancel, slurm::cancel());
    }
}
