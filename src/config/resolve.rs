//! From what was written to what it means.
//!
//! [`resolve`] first looks for values that contradict each other or the world (a text file that is not there), each
//! check only where the keys it reads were sound themselves, so that one slip gives one error. Then it builds the
//! [`Plan`]: shares of the target become samples, relative paths absolute, and absent keys their defaults.

use std::path::{Path, PathBuf};

use super::error::{Problem, ProblemKind};
use super::file::File;
use super::leaf::amount::Rung;
use super::leaf::list::{Accumulation, Devices};
use super::plan::{BatchSizePlan, BudgetPlan, MemoryPlan, Plan, SafetyPlan, SearchPlan, TargetPlan, TrialPlan};
use super::sections::data::Length;
use super::sections::model::ModelFile;
use super::source::Located;
use crate::data::{DataSpec, LengthSpec, SourceKind};
use crate::device::DeviceChoice;
use crate::model::ModelSpec;
use crate::train::TrainSpec;

/// Rungs between nothing and the target where `step` is `auto`.
const AUTO_RUNGS: usize = 8;

/// The plan of a file, unless a problem keeps it from having one.
pub fn resolve(file: &File, located: &Located, problems: &mut Vec<Problem>) -> Option<Plan> {
    let mut resolver = Resolver { file, located, problems };
    resolver.check_workload();
    resolver.check_target();
    resolver.check_lengths();
    resolver.check_trials();
    let device = resolver.device();
    let batch_size = resolver.batch_size();
    let path = resolver.data_path();
    if !resolver.problems.is_empty() {
        return None;
    }
    let model = model_spec(file.model.as_ref()?)?;
    Some(Plan {
        version: file.version.0,
        name: file
            .name
            .as_ref()
            .map(|name| name.0.clone())
            .or_else(|| model.preset.clone())
            .unwrap_or_else(|| model.family.clone()),
        device,
        train: train_spec(file),
        data: DataSpec { source: file.data.source.0, path, sequence_length: length_spec(file) },
        pin_memory: file.data.pin_memory.0,
        target: TargetPlan {
            batch_size: file.target.batch_size?.count(),
            replicas: file.target.replicas.count(),
            tolerance: file.target.tolerance.fraction(),
        },
        search: search_plan(file, batch_size?),
        memory: MemoryPlan { limit: file.memory.limit.0, allocator: file.memory.allocator.0, trim: file.memory.trim.0 },
        safety: safety_plan(file),
        trial: TrialPlan {
            warmup_steps: file.trial.warmup_steps.steps(),
            steps: file.trial.steps.steps(),
            soak_steps: file.trial.soak_steps.steps(),
            timeout: file.trial.timeout.duration(),
        },
        budget: BudgetPlan { time: file.budget.time.duration(), trials: file.budget.trials.steps() },
        seed: file.seed.get(),
        model,
    })
}

fn model_spec(model: &ModelFile) -> Option<ModelSpec> {
    Some(ModelSpec {
        family: model.family.as_ref()?.0.clone(),
        preset: model.preset.as_ref().map(|preset| preset.0.clone()),
        sequence_length: model.sequence_length.map(|tokens| tokens.count()),
        layers: model.layers.map(|layers| layers.count()),
        heads: model.heads.map(|heads| heads.count()),
        hidden_size: model.hidden_size.map(|width| width.count()),
        vocabulary_size: model.vocabulary_size.map(|tokens| tokens.count()),
        options: model.options.clone(),
    })
}

fn train_spec(file: &File) -> TrainSpec {
    TrainSpec {
        precision: file.train.precision.0,
        optimizer: file.train.optimizer.0,
        learning_rate: file.train.learning_rate.0,
        gradient_checkpointing: file.train.gradient_checkpointing.0,
        batch_norm: file.train.batch_norm.0,
    }
}

/// The data's own length, else the model's; none where only the preset knows it.
fn length_spec(file: &File) -> Option<LengthSpec> {
    match &file.data.sequence_length {
        Some(Length::Fixed(tokens)) => Some(LengthSpec::Fixed(tokens.count())),
        Some(Length::Range(range)) => Some(LengthSpec::Range {
            min: range.min?.count(),
            max: range.max?.count(),
            distribution: range.distribution.0,
        }),
        None => file.model.as_ref()?.sequence_length.map(|tokens| LengthSpec::Fixed(tokens.count())),
    }
}

fn search_plan(file: &File, batch_size: BatchSizePlan) -> SearchPlan {
    let ascending = |mut counts: Vec<usize>| {
        counts.sort_unstable();
        counts
    };
    SearchPlan {
        strategy: file.search.strategy.0,
        batch_size,
        accumulation_steps: match &file.search.accumulation_steps {
            Accumulation::Auto => None,
            Accumulation::Steps(steps) => Some(ascending(steps.counts())),
        },
        loader_workers: ascending(file.search.loader_workers.counts()),
        prefetch_depth: file.search.prefetch_depth.counts(),
        device_prefetch: file.search.device_prefetch.counts(),
    }
}

fn safety_plan(file: &File) -> SafetyPlan {
    SafetyPlan {
        fragmentation_threshold: file.safety.fragmentation_threshold.fraction(),
        fragmentation_metric: file.safety.fragmentation_metric.0,
        fragmentation_source: file.safety.fragmentation_source.0,
        sample_every: file.safety.sample_every.steps(),
        largest_block_factor: file.safety.largest_block_factor.0,
        headroom: file.safety.headroom.fraction(),
    }
}

struct Resolver<'a> {
    file: &'a File,
    located: &'a Located,
    problems: &'a mut Vec<Problem>,
}

impl Resolver<'_> {
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
            (None, Some(command)) if command.run.is_empty() && self.sound(&["command.run"]) => {
                self.missing("command.run", "missing", "add `run: [python, train.py]` to `command`");
            }
            _ => {}
        }
        if self.file.launcher.as_ref().is_some_and(|launcher| launcher.command.is_empty())
            && self.sound(&["launcher.command"])
        {
            self.missing("launcher.command", "missing", "add `command: [srun, --ntasks=1]` to `launcher`");
        }
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

    /// Samples are as long as the model takes them.
    fn check_lengths(&mut self) {
        let key = "data.sequence_length";
        if !self.sound(&[key, "model.sequence_length"]) {
            return;
        }
        let model = self.file.model.as_ref().and_then(|model| model.sequence_length).map(|tokens| tokens.get());
        match (&self.file.data.sequence_length, model) {
            (Some(Length::Fixed(tokens)), Some(model)) if tokens.get() != model => {
                let message = format!("samples of {} tokens do not fit `model.sequence_length: {model}`", tokens.get());
                self.refuse(ProblemKind::Conflict, key, &message);
            }
            (Some(Length::Fixed(tokens)), None) if self.file.model.is_some() => {
                let message =
                    format!("samples of {} tokens, and the model's length is left to its preset", tokens.get());
                let hint = format!("write `sequence_length: {}` under `model` in its place", tokens.get());
                self.problems.push(self.located.problem(ProblemKind::Conflict, key, &message).with_hint(&hint));
            }
            _ => {}
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

    /// `device`, or the one that `devices` lists.
    fn device(&mut self) -> DeviceChoice {
        let device = self.file.device.0;
        let Devices::Some(list) = &self.file.devices else { return device };
        match list.first() {
            None => {
                self.refuse(ProblemKind::InvalidValue, "devices", "an empty list, expected at least one device");
                device
            }
            Some(listed) if device == DeviceChoice::Auto || device == listed.0 => listed.0,
            Some(listed) => {
                let message = format!("`{}` contradicts `device: {device}`", listed.0);
                if self.sound(&["devices", "device"]) {
                    self.refuse(ProblemKind::Conflict, "devices", &message);
                }
                device
            }
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

    /// The data's file or folder, absolute. Sources that read none have none.
    fn data_path(&mut self) -> Option<PathBuf> {
        let key = "data.path";
        if self.file.data.source.0 == SourceKind::Synthetic || !self.sound(&[key, "data.source"]) {
            return None;
        }
        let Some(written) = &self.file.data.path else {
            self.missing(key, "missing, and `source: text` reads a file or a folder", "add `path: …` to `data`");
            return None;
        };
        let path = self.base_of(key).join(&written.0);
        match std::fs::canonicalize(&path) {
            Ok(absolute) if absolute.to_str().is_some() => Some(absolute),
            Ok(_) => {
                self.refuse(ProblemKind::Outside, key, "its full path is not UTF-8");
                None
            }
            Err(error) => {
                let shown = std::path::absolute(&path).unwrap_or(path);
                self.refuse(ProblemKind::Outside, key, &format!("cannot find `{}`: {error}", shown.display()));
                None
            }
        }
    }

    /// What a relative path is relative to: the configuration file's directory, or, for a path given with `--set`, the
    /// working directory, as the shell completes it.
    fn base_of(&self, key: &str) -> &Path {
        let directory = self.located.path().parent().unwrap_or(Path::new(""));
        if self.located.is_override(key) { Path::new("") } else { directory }
    }
}
