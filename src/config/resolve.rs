//! From what was written to what it means.
//!
//! Once [`super::checks`] has found nothing, [`resolve`] builds the [`Plan`]: shares of the target become samples,
//! relative paths absolute, and absent keys their defaults.

use std::time::Duration;

use super::checks::{self, Checked};
use super::file::File;
use super::leaf::list::{Accumulation, AllocConfs};
use super::leaf::memory::Size;
use super::leaf::number::Whole;
use super::leaf::time::Time;
use super::plan::{
    BatchSizePlan, BudgetPlan, MemoryPlan, Plan, SafetyPlan, SearchPlan, Subject, TargetPlan, TrialPlan,
};
use super::problem::Problem;
use super::sections::data::{ImageSize, Length};
use super::sections::model::ModelFile;
use super::source::Located;
use crate::data::{DataSpec, ImageSizeSpec, LengthSpec};
use crate::memory::AllocatorKind;
use crate::model::ModelSpec;
use crate::train::TrainSpec;
use crate::trial::command::ALLOC_CONF;

/// The settings that `search.alloc_conf: auto` tries: those that PyTorch's own advice names (CUDA semantics, "Optimizing
/// memory usage with PYTORCH_CUDA_ALLOC_CONF").
pub(crate) const USUAL_CONFS: [&str; 4] = [
    "expandable_segments:True",
    "garbage_collection_threshold:0.8",
    "max_split_size_mb:128",
    "roundup_power2_divisions:8",
];

/// The plan of a file, unless a problem keeps it from having one.
pub fn resolve(file: &File, located: &Located, problems: &mut Vec<Problem>) -> Option<Plan> {
    let Checked { device, devices, batch_size, path, tokenizer, weights, config, command, launcher } =
        checks::check(file, located, problems);
    if !problems.is_empty() {
        return None;
    }
    let subject = match (&file.model, command) {
        (Some(model), _) => Subject::Model(ModelSpec { weights, config, ..model_spec(model)? }),
        (None, command) => Subject::Command(command?),
    };
    Some(Plan {
        version: file.version.0,
        name: file.name.as_ref().map_or_else(|| default_name(&subject), |name| name.0.clone()),
        device,
        devices,
        train: train_spec(file),
        data: DataSpec {
            source: file.data.source.0,
            path,
            sequence_length: length_spec(file),
            image_size: image_size_spec(file),
            tokenizer,
            padding: file.data.padding.0,
            pad_to_multiple_of: file.data.pad_to_multiple_of.map(Whole::count),
            last_batch: file.data.last_batch.0,
            on_bad_sample: file.data.on_bad_sample.0,
            cost: file.data.cost.map_or(Duration::ZERO, Time::duration),
            sample_bytes: file.data.sample_bytes.map_or(0, Size::bytes),
        },
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
        launcher,
        subject,
    })
}

fn default_name(subject: &Subject) -> String {
    match subject {
        Subject::Model(model) => model.preset.clone().unwrap_or_else(|| model.family.clone()),
        Subject::Command(command) => command.name(),
    }
}

fn model_spec(model: &ModelFile) -> Option<ModelSpec> {
    Some(ModelSpec {
        family: model.family.as_ref()?.0.clone(),
        preset: model.preset.as_ref().map(|preset| preset.0.clone()),
        sequence_length: model.sequence_length.map(Whole::count),
        layers: model.layers.map(Whole::count),
        heads: model.heads.map(Whole::count),
        hidden_size: model.hidden_size.map(Whole::count),
        vocabulary_size: model.vocabulary_size.map(Whole::count),
        key_value_heads: model.key_value_heads.map(Whole::count),
        intermediate_size: model.intermediate_size.map(Whole::count),
        image_size: model.image_size.map(Whole::count),
        patch_size: model.patch_size.map(Whole::count),
        classes: model.classes.map(Whole::count),
        weights: None,
        config: None,
        options: model.options.clone(),
    })
}

fn train_spec(file: &File) -> TrainSpec {
    TrainSpec {
        precision: file.train.precision.0,
        optimizer: file.train.optimizer.0,
        learning_rate: file.train.learning_rate.0,
        momentum: file.train.momentum.0,
        gradient_checkpointing: file.train.gradient_checkpointing.0,
        batch_norm: file.train.batch_norm.0,
        evaluate_every: file.train.evaluate_every.map(Whole::steps),
        checkpoint_every: file.train.checkpoint_every.map(Whole::steps),
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

/// The data's own side; the model's is taken where it says none.
fn image_size_spec(file: &File) -> Option<ImageSizeSpec> {
    Some(match file.data.image_size.as_ref()? {
        ImageSize::Fixed(side) => ImageSizeSpec::Fixed(side.count()),
        ImageSize::Range(range) => ImageSizeSpec::Range {
            min: range.min?.count(),
            max: range.max?.count(),
            multiple_of: range.multiple_of.count(),
            every: range.every.steps(),
        },
    })
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
        alloc_conf: alloc_conf(file),
    }
}

/// Settings to try. A program that was given some, or an allocator, is to run with those; a model of ours has no such
/// settings.
fn alloc_conf(file: &File) -> Vec<String> {
    let Some(command) = &file.command else { return Vec::new() };
    let is_given = command.env.contains_key(ALLOC_CONF) || file.memory.allocator.0 != AllocatorKind::Auto;
    match &file.search.alloc_conf {
        AllocConfs::Auto if is_given => Vec::new(),
        AllocConfs::Auto => USUAL_CONFS.map(str::to_owned).to_vec(),
        AllocConfs::Some(confs) => confs.iter().map(|conf| conf.0.clone()).collect(),
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
        horizon_steps: file.safety.horizon_steps.steps(),
    }
}
