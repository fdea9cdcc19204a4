//! Values that contradict each other, or the world.
//!
//! Each check runs only where the keys that it reads were sound themselves, so that one slip gives one error. What a
//! check has to work out on the way (the ladder in samples, the path of the data) is kept for [`super::resolve`].

use std::path::{Path, PathBuf};

use super::file::File;
use super::leaf::amount::Rung;
use super::leaf::text::Text;
use super::plan::{BatchSizePlan, DevicesPlan};
use super::problem::{Problem, ProblemKind};
use super::source::Located;
use crate::device::DeviceChoice;
use crate::trial::command::{CommandSpec, Template};
use crate::trial::launcher::LauncherSpec;

mod data;
mod devices;
mod images;
mod launcher;
mod train;

/// Rungs between nothing and the target where `step` is `auto`.
const AUTO_RUNGS: usize = 8;

/// What the checks worked out.
#[derive(Clone, Debug)]
pub struct Checked {
    /// `device`, or the first that `devices` lists.
    pub device: DeviceChoice,
    /// `devices`.
    pub devices: DevicesPlan,
    /// The ladder in samples per device, unless a problem keeps it from having any.
    pub batch_size: Option<BatchSizePlan>,
    /// The data's file or folder, absolute, for sources that read one.
    pub path: Option<PathBuf>,
    /// The tokenizer's file, absolute, for a text that is cut by one.
    pub tokenizer: Option<PathBuf>,
    /// The file with the model's weights, absolute.
    pub weights: Option<PathBuf>,
    /// The model's `config.json`, absolute.
    pub config: Option<PathBuf>,
    /// The program of the user's own, if it is one that is tuned.
    pub command: Option<CommandSpec>,
    /// What starts workers somewhere else.
    pub launcher: Option<LauncherSpec>,
}

/// Checks a file as a whole and reports what is wrong.
pub fn check(file: &File, located: &Located, problems: &mut Vec<Problem>) -> Checked {
    let mut checks = Checks { file, located, problems };
    checks.check_workload();
    checks.check_target();
    checks.check_lengths();
    checks.check_range();
    checks.check_padding();
    checks.check_image_size();
    checks.check_source_keys();
    checks.check_trials();
    checks.check_training();
    let (device, devices) = checks.devices();
    Checked {
        device,
        devices,
        batch_size: checks.batch_size(),
        path: checks.data_path(),
        tokenizer: checks.tokenizer(),
        weights: checks.model_file("model.weights", |model| model.weights.as_ref()),
        config: checks.model_file("model.config", |model| model.config.as_ref()),
        command: checks.command(),
        launcher: checks.launcher(),
    }
}

struct Checks<'a> {
    file: &'a File,
    located: &'a Located,
    problems: &'a mut Vec<Problem>,
}

impl Checks<'_> {
    /// Whether nothing was found wrong so far with these keys, above them or below them.
    fn sound(&self, keys: &[&str]) -> bool {
        let related = |known: &str, key: &str| {
            let (long, short) = if known.len() >= key.len() { (known, key) } else { (key, known) };
            long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        !self.problems.iter().any(|problem| keys.iter().any(|key| related(problem.key(), key)))
    }

    fn refuse(&mut self, kind: ProblemKind, key: &str, message: &str) {
        self.problems.push(self.located.problem(kind, key, message));
    }

    fn missing(&mut self, key: &str, message: &str, hint: &str) {
        self.problems.push(self.located.problem_with_key(ProblemKind::MissingKey, key, message).with_hint(hint));
    }

    /// Exactly one of model and command, and what they cannot do without.
    fn check_workload(&mut self) {
        match (&self.file.model, &self.file.command) {
            (None, None) if self.sound(&["model", "command"]) => {
                self.missing(
                    "model",
                    "missing, and there is no `command` either",
                    "add `model: {family: gpt, preset: nano}`",
                );
            }
            (Some(_), Some(_)) => {
                let message = "`model` and `command` exclude each other, and both are given";
                self.problems.push(self.located.problem_with_key(ProblemKind::Conflict, "command", message));
            }
            (Some(model), None) if model.family.is_none() && self.sound(&["model.family"]) => {
                self.missing("model.family", "missing", "add `family: gpt` to `model`");
            }
            (None, Some(command)) if command.run.0.is_empty() && self.sound(&["command.run"]) => {
                self.missing("command.run", "missing", "add `run: [python, train.py]` to `command`");
            }
            (None, Some(command)) if command.run.0.first().is_some_and(|program| program.0.is_empty()) => {
                self.refuse(ProblemKind::InvalidValue, "command.run[0]", "the program's name is empty");
            }
            _ => {}
        }
    }

    /// The user's own program, with its placeholders read and its folder found.
    fn command(&mut self) -> Option<CommandSpec> {
        let command = self.file.command.as_ref()?;
        let mut template = |key: String, text: &str| {
            Template::parse(text).map_err(|error| self.refuse(ProblemKind::InvalidValue, &key, &error.to_string())).ok()
        };
        let run: Vec<Option<Template>> = command
            .run
            .0
            .iter()
            .enumerate()
            .map(|(at, text)| template(format!("command.run[{at}]"), &text.0))
            .collect();
        let env: Vec<(String, Option<Template>)> = command
            .env
            .iter()
            .map(|(name, text)| (name.clone(), template(format!("command.env.{name}"), &text.0)))
            .collect();
        for (name, _) in &env {
            let is_ours = name.starts_with("TUNE_");
            if is_ours || name.is_empty() || name.contains(['=', '\0']) {
                let name = name.escape_debug();
                let message = if is_ours {
                    format!("`{name}` is set by tune itself, as are all names that begin with `TUNE_`")
                } else {
                    format!("`{name}` is no name of an environment variable")
                };
                self.refuse(ProblemKind::InvalidValue, &format!("command.env.{name}"), &message);
            }
        }
        let cwd = command.cwd.as_ref().map(|cwd| self.command_folder(cwd));
        Some(CommandSpec {
            run: run.into_iter().collect::<Option<_>>()?,
            env: env.into_iter().map(|(name, value)| Some((name, value?))).collect::<Option<_>>()?,
            cwd: match cwd {
                Some(folder) => Some(folder?),
                None => None,
            },
            preload: command.preload.iter().map(|module| module.0.clone()).collect(),
            timeout: command.timeout.duration(),
        })
    }

    /// Where the program runs. Without a `cwd` that is where the tuner runs, wherever the configuration lies, so that it
    /// does not count as another configuration there.
    fn command_folder(&mut self, cwd: &Text) -> Option<PathBuf> {
        let key = "command.cwd";
        let path = self.base_of(key).join(&cwd.0);
        match std::fs::canonicalize(&path) {
            Ok(folder) if folder.is_dir() && folder.to_str().is_some() => return Some(folder),
            Ok(folder) => {
                let what = if folder.is_dir() { "its full path is not UTF-8" } else { "it is no folder" };
                self.refuse(ProblemKind::Outside, key, what);
            }
            Err(error) => self.refuse(ProblemKind::Outside, key, &format!("cannot find `{}`: {error}", path.display())),
        }
        None
    }

    /// The target is there and can be split over the replicas.
    fn check_target(&mut self) {
        if !self.sound(&["target"]) {
            return;
        }
        let target = &self.file.target;
        let Some(batch_size) = target.batch_size else {
            return self.missing("target.batch_size", "missing", "add `target: {batch_size: 64}`");
        };
        let (samples, replicas) = (batch_size.get(), target.replicas.get());
        if replicas > samples {
            let message = format!("{replicas} replicas cannot share {samples} samples");
            self.refuse(ProblemKind::Conflict, "target.replicas", &message);
        } else if samples % replicas != 0 && target.tolerance.fraction().0 <= 0.0 {
            let message =
                format!("{samples} samples cannot be shared evenly by {replicas} replicas with `tolerance: 0%`");
            self.refuse(ProblemKind::Conflict, "target.replicas", &message);
        }
    }

    /// A trial holds at least one memory sample.
    fn check_trials(&mut self) {
        let (every, steps) = (self.file.safety.sample_every.get(), self.file.trial.steps.get());
        if every > steps && self.sound(&["safety.sample_every", "trial.steps"]) {
            let message = format!("a sample every {every} steps is never taken in a trial of {steps} (`trial.steps`)");
            self.refuse(ProblemKind::Conflict, "safety.sample_every", &message);
        }
    }

    /// The ladder in samples per device.
    fn batch_size(&mut self) -> Option<BatchSizePlan> {
        if !self.sound(&["target", "search.batch_size"]) {
            return None;
        }
        let target = &self.file.target;
        let base = target.batch_size?.count() / target.replicas.count().max(1);
        let ladder = &self.file.search.batch_size;
        let (start, max) = (ladder.start.at_least(base), ladder.max.at_most(base));
        let step = match ladder.step {
            Rung::Auto => (base / AUTO_RUNGS).max(1),
            Rung::Amount(amount) => amount.at_most(base),
        };
        let over = [("start", start), ("max", max), ("step", step)];
        for (name, samples) in over.into_iter().filter(|(_, samples)| *samples > base) {
            let message = format!("{samples} samples on a device are more than the target of {base}");
            self.refuse(ProblemKind::Conflict, &format!("search.batch_size.{name}"), &message);
        }
        if start > max && self.sound(&["search.batch_size"]) {
            let message = format!("the ladder starts at {start} samples, above its `max` of {max}");
            self.refuse(ProblemKind::Conflict, "search.batch_size.start", &message);
        }
        Some(BatchSizePlan { start, max, step })
    }

    /// What a relative path is relative to: the configuration file's directory, or, for a path given with `--set`, the
    /// working directory, as the shell completes it.
    fn base_of(&self, key: &str) -> &Path {
        let directory = self.located.path().parent().unwrap_or(Path::new(""));
        if self.located.is_override(key) { Path::new("") } else { directory }
    }
}
