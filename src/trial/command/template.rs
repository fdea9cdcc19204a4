//! Arguments with placeholders: `--batch-size={batch_size}`.
//!
//! The grammar is that of [`placeholders`](crate::trial::placeholders), with names in small letters.
//!
//! What is filled in are numbers and fixed words; nothing that a shell or an option parser could take for more.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::data::SampleSize;
use crate::trial::placeholders::{Piece, fill, parse};
use crate::trial::spec::TrialSpec;

/// What a placeholder stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placeholder {
    /// Samples per forward and backward pass.
    BatchSize,
    /// Micro-batches per optimizer step, as the trial runs them.
    AccumulationSteps,
    /// Samples per optimizer step over all ranks, as the trial runs it.
    EffectiveBatchSize,
    /// Loader workers.
    LoaderWorkers,
    /// Batches that a worker keeps ready.
    PrefetchDepth,
    /// Batches staged on the device.
    DevicePrefetch,
    /// Whether host batches are page-locked: `true` or `false`.
    PinMemory,
    /// The precision of `train.precision`.
    Precision,
    /// Recomputation of activations: `none` or `blocks`.
    GradientCheckpointing,
    /// Micro-batches to run, the warm-up included.
    Steps,
    /// Of these, how many are not measured.
    WarmupSteps,
    /// The seed.
    Seed,
    /// The length that every batch is padded to; 0 leaves lengths as they come.
    SequenceLength,
    /// The side of the images of every batch, in pixels; 0 leaves sides as they come.
    ImageSize,
    /// Ranks that train together.
    Replicas,
}

impl Placeholder {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::BatchSize,
        Self::AccumulationSteps,
        Self::EffectiveBatchSize,
        Self::LoaderWorkers,
        Self::PrefetchDepth,
        Self::DevicePrefetch,
        Self::PinMemory,
        Self::Precision,
        Self::GradientCheckpointing,
        Self::Steps,
        Self::WarmupSteps,
        Self::Seed,
        Self::SequenceLength,
        Self::ImageSize,
        Self::Replicas,
    ];

    /// The name between the braces. Its environment variable is `TUNE_` and the name in capitals.
    pub fn name(self) -> &'static str {
        match self {
            Self::BatchSize => "batch_size",
            Self::AccumulationSteps => "accumulation_steps",
            Self::EffectiveBatchSize => "effective_batch_size",
            Self::LoaderWorkers => "loader_workers",
            Self::PrefetchDepth => "prefetch_depth",
            Self::DevicePrefetch => "device_prefetch",
            Self::PinMemory => "pin_memory",
            Self::Precision => "precision",
            Self::GradientCheckpointing => "gradient_checkpointing",
            Self::Steps => "steps",
            Self::WarmupSteps => "warmup_steps",
            Self::Seed => "seed",
            Self::SequenceLength => "sequence_length",
            Self::ImageSize => "image_size",
            Self::Replicas => "replicas",
        }
    }

    /// The one that tells a program of which size all samples are to be.
    pub fn of_sample_size(size: SampleSize) -> Self {
        match size {
            SampleSize::Tokens(_) => Self::SequenceLength,
            SampleSize::Side(_) => Self::ImageSize,
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|placeholder| placeholder.name() == name)
    }
}

/// What a trial fills into placeholders and into the program's environment.
#[derive(Clone, Copy, Debug)]
pub struct Filling<'a> {
    /// The trial.
    pub trial: &'a TrialSpec,
    /// The word of `train.precision`.
    pub precision: &'a str,
    /// The seed.
    pub seed: u64,
    /// Ranks that train together.
    pub replicas: usize,
}

impl Filling<'_> {
    /// The value of a placeholder.
    pub fn value(&self, placeholder: Placeholder) -> String {
        let point = &self.trial.point;
        let accumulation = self.trial.accumulation();
        match placeholder {
            Placeholder::BatchSize => point.batch_size.to_string(),
            Placeholder::AccumulationSteps => accumulation.to_string(),
            Placeholder::EffectiveBatchSize => {
                point.batch_size.saturating_mul(accumulation).saturating_mul(self.replicas).to_string()
            }
            Placeholder::LoaderWorkers => point.loader_workers.to_string(),
            Placeholder::PrefetchDepth => point.prefetch_depth.to_string(),
            Placeholder::DevicePrefetch => point.device_prefetch.to_string(),
            Placeholder::PinMemory => point.pin_memory.to_string(),
            Placeholder::Precision => self.precision.to_owned(),
            Placeholder::GradientCheckpointing => point.gradient_checkpointing.to_string(),
            Placeholder::Steps => self.trial.total_steps().to_string(),
            Placeholder::WarmupSteps => self.trial.warmup_steps.to_string(),
            Placeholder::Seed => self.seed.to_string(),
            Placeholder::SequenceLength | Placeholder::ImageSize => {
                let own = self.trial.sample_size.filter(|size| Placeholder::of_sample_size(*size) == placeholder);
                own.map_or(0, SampleSize::value).to_string()
            }
            Placeholder::Replicas => self.replicas.to_string(),
        }
    }
}

/// A text with placeholders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Template {
    written: String,
    pieces: Vec<Piece<Placeholder>>,
}

/// A word in braces that is no placeholder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{{{name}}}` is no placeholder, expected one of {} (hint: `{{{{{name}}}}}` stands for itself)", names())]
pub struct UnknownPlaceholder {
    /// The word.
    pub name: String,
}

fn names() -> String {
    Placeholder::ALL.map(|placeholder| format!("`{{{}}}`", placeholder.name())).join(", ")
}

impl Template {
    /// Reads a template.
    pub fn parse(text: &str) -> Result<Self, UnknownPlaceholder> {
        let pieces = parse(text, u8::is_ascii_lowercase, Placeholder::named)
            .map_err(|name| UnknownPlaceholder { name: name.to_owned() })?;
        Ok(Self { written: text.to_owned(), pieces })
    }

    /// The text with every placeholder filled in.
    pub fn fill(&self, filling: &Filling<'_>) -> String {
        // Every value is known.
        fill(&self.pieces, |placeholder| Some(filling.value(placeholder))).unwrap_or_default()
    }

    /// Whether the placeholder is in it.
    pub fn holds(&self, placeholder: Placeholder) -> bool {
        self.pieces.contains(&Piece::Value(placeholder))
    }

    /// Whether any placeholder is in it.
    pub fn holds_any(&self) -> bool {
        Placeholder::ALL.into_iter().any(|placeholder| self.holds(placeholder))
    }

    /// As it was written.
    pub fn as_written(&self) -> &str {
        &self.written
    }
}

impl TryFrom<String> for Template {
    type Error = UnknownPlaceholder;

    fn try_from(text: String) -> Result<Self, UnknownPlaceholder> {
        Self::parse(&text)
    }
}

impl From<Template> for String {
    fn from(template: Template) -> Self {
        template.written
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.written)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::trial;
    use super::*;

    fn filled(text: &str) -> String {
        Template::parse(text).unwrap().fill(&Filling { trial: &trial(8), precision: "bf16", seed: 7, replicas: 1 })
    }

    #[test]
    fn placeholders_are_filled_in_wherever_they_stand() {
        assert_eq!(filled("{batch_size}"), "8");
        assert_eq!(filled("--b={batch_size},{pin_memory}/{precision}{seed}"), "--b=8,true/bf167");
        assert_eq!(filled("--steps={steps}"), "--steps=12");
        // A measuring trial accumulates twice at most.
        assert_eq!(filled("{accumulation_steps} {effective_batch_size}"), "2 16");
    }

    #[test]
    fn ranks_are_counted_and_share_an_update() {
        let template = Template::parse("--nproc-per-node={replicas} {effective_batch_size}").unwrap();
        let filling = Filling { trial: &trial(8), precision: "f32", seed: 0, replicas: 4 };
        assert_eq!(template.fill(&filling), "--nproc-per-node=4 64");
    }

    #[test]
    fn a_length_or_a_side_is_told_where_the_trial_has_one() {
        assert_eq!(filled("--length={sequence_length} --side={image_size}"), "--length=0 --side=0");
        let template = Template::parse("{sequence_length} {image_size}").unwrap();
        for (size, told) in [(SampleSize::Tokens(96), "96 0"), (SampleSize::Side(96), "0 96")] {
            let trial = TrialSpec { sample_size: Some(size), ..trial(2) };
            assert_eq!(template.fill(&Filling { trial: &trial, precision: "f32", seed: 0, replicas: 1 }), told);
        }
    }

    #[test]
    fn braces_that_are_no_placeholder_stay() {
        for text in ["", "{}", "{\"lr\": 1, \"b\": {\"x\": [1]}}", "a { b } c", "}{", "{1}", "{Batch}", "ünïcödé {"]
        {
            assert_eq!(filled(text), text);
        }
        assert_eq!(filled("{{batch_size}} }} {{"), "{batch_size} }} {{");
    }

    #[test]
    fn a_slip_in_a_name_is_an_error_that_lists_the_names() {
        let error = Template::parse("--batch={batchsize}").unwrap_err().to_string();
        assert!(error.starts_with("`{batchsize}` is no placeholder") && error.contains("`{batch_size}`"), "{error}");
        assert!(error.contains("`{{batchsize}}` stands for itself"), "{error}");
    }

    #[test]
    fn a_template_is_kept_as_it_was_written() {
        let template = Template::parse("a{{{batch_size}").unwrap();
        assert!(template.holds(Placeholder::BatchSize) && !template.holds(Placeholder::Steps));
        let json = serde_json::to_string(&template).unwrap();
        assert_eq!(json, "\"a{{{batch_size}\"");
        assert_eq!(serde_json::from_str::<Template>(&json).unwrap(), template);
        assert!(serde_json::from_str::<Template>("\"{oops}\"").is_err());
    }

    #[test]
    fn every_placeholder_is_found_by_its_name() {
        for placeholder in Placeholder::ALL {
            assert_eq!(Placeholder::named(placeholder.name()), Some(placeholder));
            assert_eq!(serde_json::to_value(placeholder).unwrap(), placeholder.name());
        }
    }
}
