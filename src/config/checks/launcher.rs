//! The launcher: its placeholders, and what it cannot be combined with.

use super::Checks;
use crate::config::leaf::text::Arguments;
use crate::config::problem::ProblemKind;
use crate::config::sections::launcher::LauncherCommand as Written;
use crate::device::DeviceChoice;
use crate::trial::launcher::{Holder, LauncherCommand, LauncherSpec, Template};

impl Checks<'_> {
    /// The launcher, with its placeholders read.
    pub(super) fn launcher(&mut self) -> Option<LauncherSpec> {
        let launcher = &self.file.launcher.as_ref()?.0;
        if self.file.command.is_some() {
            let message = "a launcher for a `command` is not supported yet";
            let problem = self.located.problem_with_key(ProblemKind::NotSupported, "launcher", message);
            self.problems.push(problem.with_hint("write it into `command.run`, before the program"));
        }
        let cancel = launcher.cancel.as_ref();
        if cancel.is_some_and(|cancel| cancel.0.is_empty()) {
            let problem = self.located.problem(ProblemKind::InvalidValue, "launcher.cancel", "an empty list");
            self.problems.push(problem.with_hint("leave the key out"));
        }
        let cancel = cancel.map(|cancel| self.templates("launcher.cancel", cancel, Holder::Cancel));
        let command = match &launcher.command {
            Written::Slurm => {
                self.check_slurm_s_device();
                LauncherCommand::Slurm
            }
            Written::Own(command) => {
                if command.0.is_empty() && self.sound(&["launcher.command"]) {
                    self.missing(
                        "launcher.command",
                        "missing",
                        "write `launcher: slurm`, or add `command: [srun, --ntasks=1, \"--job-name={trial}\"]` to it",
                    );
                }
                LauncherCommand::Own(self.templates("launcher.command", command, Holder::Command)?)
            }
        };
        Some(LauncherSpec {
            command,
            workers: launcher.workers.count(),
            start_timeout: launcher.start_timeout.duration(),
            cancel: match cancel {
                Some(cancel) => Some(cancel?),
                None => None,
            },
        })
    }

    fn templates(&mut self, key: &str, arguments: &Arguments, holder: Holder) -> Option<Vec<Template>> {
        let mut templates = Vec::new();
        for (at, argument) in arguments.0.iter().enumerate() {
            match Template::parse(&argument.0, holder) {
                Ok(_) if at == 0 && argument.0.trim().is_empty() => {
                    self.refuse(ProblemKind::InvalidValue, &format!("{key}[0]"), "no program is named");
                }
                Ok(template) => templates.push(template),
                Err(error) => self.refuse(ProblemKind::InvalidValue, &format!("{key}[{at}]"), &error.to_string()),
            }
        }
        (templates.len() == arguments.0.len()).then_some(templates)
    }

    /// Slurm chooses the card, and a job sees no other: its number is 0 there.
    fn check_slurm_s_device(&mut self) {
        if let DeviceChoice::Cuda(index) = self.file.device.0
            && index > 0
        {
            let message = format!("`cuda:{index}` is the launcher's to choose: a job sees its own card alone");
            let problem = self.located.problem(ProblemKind::Conflict, "device", &message);
            self.problems.push(problem.with_hint("write `cuda`"));
        }
    }
}
