//! A plan in the shape of the file, for `tune check`: every default shown, and fed back it gives the same plan.

use super::error::ConfigError;
use super::file::File;
use super::leaf::amount::{Amount, Rung, Share};
use super::leaf::choice::{Choice, Pinning};
use super::leaf::list::{Accumulation, AllocConfs, Candidates, Devices};
use super::leaf::memory::{Limit, Size};
use super::leaf::number::{Factor, LearningRate, Momentum, Version, Whole};
use super::leaf::text::{Argument, Arguments, ConfText, DeviceName, Text};
use super::leaf::time::Time;
use super::parse;
use super::plan::{DevicesPlan, Plan, Subject};
use super::sections::budget::BudgetFile;
use super::sections::command::CommandFile;
use super::sections::data::{DataFile, ImageSize, Length, LengthRange, SideRange};
use super::sections::launcher::{Launcher, LauncherCommand, LauncherFile};
use super::sections::memory::MemoryFile;
use super::sections::model::ModelFile;
use super::sections::safety::SafetyFile;
use super::sections::search::{BatchSizeFile, SearchFile};
use super::sections::target::TargetFile;
use super::sections::train::TrainFile;
use super::sections::trial::TrialFile;
use crate::data::{ImageSizeSpec, LengthSpec};
use crate::trial::command::{CommandSpec, Template};
use crate::trial::launcher::{self, LauncherSpec};

impl Plan {
    /// The plan as a configuration file that gives this plan.
    pub fn to_yaml(&self) -> Result<String, ConfigError> {
        parse::print(&File::from(self)).map_err(|message| ConfigError::Print { message })
    }
}

impl From<&Plan> for File {
    fn from(plan: &Plan) -> Self {
        Self {
            version: Version(plan.version),
            name: Some(Text(plan.name.clone())),
            device: if plan.devices == DevicesPlan::One { DeviceName(plan.device) } else { DeviceName::default() },
            model: model(plan),
            command: plan.command().map(command),
            train: train(plan),
            data: data(plan),
            target: TargetFile {
                batch_size: Some(Whole::clamped(plan.target.batch_size as u64)),
                replicas: Whole::clamped(plan.target.replicas as u64),
                tolerance: Share::clamped(plan.target.tolerance),
            },
            search: search(plan),
            memory: MemoryFile {
                limit: Limit(plan.memory.limit),
                allocator: Choice(plan.memory.allocator),
                trim: Choice(plan.memory.trim),
            },
            safety: safety(plan),
            trial: TrialFile {
                warmup_steps: Whole::clamped(plan.trial.warmup_steps.into()),
                steps: Whole::clamped(plan.trial.steps.into()),
                soak_steps: Whole::clamped(plan.trial.soak_steps.into()),
                timeout: Time::clamped(plan.trial.timeout),
            },
            budget: BudgetFile {
                time: Time::clamped(plan.budget.time),
                trials: Whole::clamped(plan.budget.trials.into()),
            },
            devices: devices(&plan.devices),
            launcher: plan.launcher.as_ref().map(launcher),
            seed: Whole::clamped(plan.seed),
        }
    }
}

fn launcher(launcher: &LauncherSpec) -> Launcher {
    let arguments = |templates: &Vec<launcher::Template>| {
        Arguments(templates.iter().map(|template| Argument(template.as_written().to_owned())).collect())
    };
    Launcher(LauncherFile {
        command: match &launcher.command {
            launcher::LauncherCommand::Slurm => LauncherCommand::Slurm,
            launcher::LauncherCommand::Own(command) => LauncherCommand::Own(arguments(command)),
        },
        workers: Whole::clamped(launcher.workers as u64),
        start_timeout: Time::clamped(launcher.start_timeout),
        cancel: launcher.cancel.as_ref().map(arguments),
    })
}

fn devices(devices: &DevicesPlan) -> Devices {
    match devices {
        DevicesPlan::One => Devices::Auto,
        DevicesPlan::All => Devices::All,
        DevicesPlan::Listed(devices) => Devices::Some(devices.iter().copied().map(DeviceName).collect()),
    }
}

fn command(command: &CommandSpec) -> CommandFile {
    let argument = |template: &Template| Argument(template.as_written().to_owned());
    CommandFile {
        run: Arguments(command.run.iter().map(argument).collect()),
        env: command.env.iter().map(|(name, value)| (name.clone(), argument(value))).collect(),
        cwd: command.cwd.as_ref().map(|cwd| Text(cwd.to_string_lossy().into_owned())),
        preload: command.preload.iter().cloned().map(Text).collect(),
        timeout: Time::clamped(command.timeout),
    }
}

fn model(plan: &Plan) -> Option<ModelFile> {
    let Subject::Model(model) = &plan.subject else { return None };
    Some(ModelFile {
        family: Some(Text(model.family.clone())),
        preset: model.preset.clone().map(Text),
        sequence_length: model.sequence_length.map(|tokens| Whole::clamped(tokens as u64)),
        layers: model.layers.map(|layers| Whole::clamped(layers as u64)),
        heads: model.heads.map(|heads| Whole::clamped(heads as u64)),
        hidden_size: model.hidden_size.map(|width| Whole::clamped(width as u64)),
        vocabulary_size: model.vocabulary_size.map(|tokens| Whole::clamped(tokens as u64)),
        key_value_heads: model.key_value_heads.map(|heads| Whole::clamped(heads as u64)),
        intermediate_size: model.intermediate_size.map(|width| Whole::clamped(width as u64)),
        image_size: model.image_size.map(|pixels| Whole::clamped(pixels as u64)),
        patch_size: model.patch_size.map(|pixels| Whole::clamped(pixels as u64)),
        classes: model.classes.map(|classes| Whole::clamped(classes as u64)),
        weights: model.weights.as_ref().map(|path| Text(path.to_string_lossy().into_owned())),
        config: model.config.as_ref().map(|path| Text(path.to_string_lossy().into_owned())),
        options: model.options.clone(),
    })
}

fn train(plan: &Plan) -> TrainFile {
    TrainFile {
        precision: Choice(plan.train.precision),
        optimizer: Choice(plan.train.optimizer),
        learning_rate: LearningRate(plan.train.learning_rate),
        momentum: Momentum(plan.train.momentum),
        gradient_checkpointing: Choice(plan.train.gradient_checkpointing),
        batch_norm: Choice(plan.train.batch_norm),
        evaluate_every: plan.train.evaluate_every.map(|updates| Whole::clamped(updates.into())),
        checkpoint_every: plan.train.checkpoint_every.map(|updates| Whole::clamped(updates.into())),
    }
}

fn data(plan: &Plan) -> DataFile {
    DataFile {
        source: Choice(plan.data.source),
        path: plan.data.path.as_ref().map(|path| Text(path.to_string_lossy().into_owned())),
        sequence_length: plan.data.sequence_length.map(|length| match length {
            LengthSpec::Fixed(tokens) => Length::Fixed(Whole::clamped(tokens as u64)),
            LengthSpec::Range { min, max, distribution } => Length::Range(LengthRange {
                min: Some(Whole::clamped(min as u64)),
                max: Some(Whole::clamped(max as u64)),
                distribution: Choice(distribution),
            }),
        }),
        image_size: plan.data.image_size.map(|size| match size {
            ImageSizeSpec::Fixed(side) => ImageSize::Fixed(Whole::clamped(side as u64)),
            ImageSizeSpec::Range { min, max, multiple_of, every } => ImageSize::Range(SideRange {
                min: Some(Whole::clamped(min as u64)),
                max: Some(Whole::clamped(max as u64)),
                multiple_of: Whole::clamped(multiple_of as u64),
                every: Whole::clamped(every.into()),
            }),
        }),
        padding: Choice(plan.data.padding),
        pad_to_multiple_of: plan.data.pad_to_multiple_of.map(|tokens| Whole::clamped(tokens as u64)),
        tokenizer: plan.data.tokenizer.as_ref().map(|path| Text(path.to_string_lossy().into_owned())),
        last_batch: Choice(plan.data.last_batch),
        on_bad_sample: Choice(plan.data.on_bad_sample),
        cost: (!plan.data.cost.is_zero()).then(|| Time::clamped(plan.data.cost)),
        sample_bytes: (plan.data.sample_bytes > 0).then(|| Size::clamped(plan.data.sample_bytes)),
        pin_memory: Pinning(plan.pin_memory),
    }
}

fn search(plan: &Plan) -> SearchFile {
    let search = &plan.search;
    SearchFile {
        strategy: Choice(search.strategy),
        batch_size: BatchSizeFile {
            start: Amount::Samples(search.batch_size.start),
            max: Amount::Samples(search.batch_size.max),
            step: Rung::Amount(Amount::Samples(search.batch_size.step)),
        },
        accumulation_steps: match &search.accumulation_steps {
            None => Accumulation::Auto,
            Some(steps) => Accumulation::Steps(Candidates::clamped(steps)),
        },
        loader_workers: Candidates::clamped(&search.loader_workers),
        prefetch_depth: Candidates::clamped(&search.prefetch_depth),
        device_prefetch: Candidates::clamped(&search.device_prefetch),
        alloc_conf: match plan.command() {
            Some(_) => AllocConfs::Some(search.alloc_conf.iter().cloned().map(ConfText).collect()),
            None => AllocConfs::Auto,
        },
    }
}

fn safety(plan: &Plan) -> SafetyFile {
    SafetyFile {
        fragmentation_threshold: Share::clamped(plan.safety.fragmentation_threshold),
        fragmentation_metric: Choice(plan.safety.fragmentation_metric),
        fragmentation_source: Choice(plan.safety.fragmentation_source),
        sample_every: Whole::clamped(plan.safety.sample_every.into()),
        largest_block_factor: Factor(plan.safety.largest_block_factor),
        headroom: Share::clamped(plan.safety.headroom),
        horizon_steps: Whole::clamped(plan.safety.horizon_steps.into()),
    }
}
