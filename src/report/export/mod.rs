//! Exporters: a safe recommendation in the form that a launch needs. One file a format.
//!
//! What a format has a place for is written there under that format's own names and rules. What it has no place for is
//! one of two things. If the launch would train something else or need more memory without it, exporting is an error
//! that names the field. If not, or if it belongs beside the file (an environment variable, a layer that the script must
//! convert), it is a [note](Exporter::notes), which `tune export` prints to standard error.
//!
//! Texts in a recommendation are strangers' words. Each format quotes them by its own rules ([`quote`]), and
//! `tests/export.rs` has the shell, Python and YAML parsers read them back.

use std::fmt::Write;

use crate::report::Recommendation;
use crate::report::recommendation::Recommended;
use crate::search::recommend::Status;

pub mod accelerate;
pub mod args;
pub mod base;
pub mod deepspeed;
pub mod env;
mod error;
pub mod hf;
pub mod json;
pub mod k8s;
pub mod lightning;
mod pytorch;
mod quote;
pub mod slurm;
pub mod torch;

pub use error::ExportError;

/// What is exported.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// The whole file, for where it comes from.
    pub recommendation: &'a Recommendation,
    /// The configuration to launch.
    pub recommended: &'a Recommended,
    /// A file of the format to merge it into.
    pub base: Option<&'a serde_json::Value>,
    /// What is free of the launch's shared memory, where it is known.
    pub shared_memory_bytes: Option<u64>,
}

impl Answer<'_> {
    /// Whether it was measured on a card.
    fn is_cuda(&self) -> bool {
        self.recommendation.environment.device.starts_with("cuda")
    }

    /// Where the settings come from, in one line without anything that ends it.
    fn origin(&self) -> String {
        let Recommendation { environment, provenance, .. } = self.recommendation;
        quote::one_line(&format!(
            "batchtune {}: safe on {} ({}), configuration {}",
            provenance.version,
            environment.name,
            environment.device,
            short(&provenance.config_sha256)
        ))
    }
}

/// Writes a recommendation in one format.
pub trait Exporter {
    /// The text. A value that the format cannot hold is an error.
    fn export(&self, answer: &Answer<'_>) -> Result<String, ExportError>;

    /// What the user must see to beside the text, a sentence each.
    fn notes(&self, _answer: &Answer<'_>) -> Vec<String> {
        Vec::new()
    }
}

/// The formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Shell assignments, quoted, for `eval` in a job script.
    Env,
    /// Command-line arguments in one line, for a script with argparse.
    Args,
    /// The whole recommendation as JSON.
    Json,
    /// A Python module: DataLoader arguments, memory fraction, allocator settings.
    Torch,
    /// Hugging Face TrainingArguments as JSON.
    Hf,
    /// A configuration file of Hugging Face accelerate.
    Accelerate,
    /// A configuration file of LightningCLI.
    Lightning,
    /// A DeepSpeed configuration; `--into` merges it into yours.
    Deepspeed,
    /// A batch script for Slurm's sbatch.
    Slurm,
    /// The `env` list of a Kubernetes container.
    K8s,
}

impl Format {
    /// The registry: the exporter of a format.
    pub fn exporter(self) -> &'static dyn Exporter {
        match self {
            Self::Env => &env::Env,
            Self::Args => &args::Args,
            Self::Json => &json::Json,
            Self::Torch => &torch::Torch,
            Self::Hf => &hf::Hf,
            Self::Accelerate => &accelerate::Accelerate,
            Self::Lightning => &lightning::Lightning,
            Self::Deepspeed => &deepspeed::Deepspeed,
            Self::Slurm => &slurm::Slurm,
            Self::K8s => &k8s::K8s,
        }
    }

    /// The name on the command line.
    pub fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// A text, and what it could not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The text.
    pub text: String,
    /// What the user must see to beside it.
    pub notes: Vec<String>,
}

/// What to export.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The recommendation.
    pub recommendation: &'a Recommendation,
    /// The format.
    pub format: Format,
    /// The hash that the recommendation must have been made for.
    pub expected_sha256: Option<&'a str>,
    /// A file of the format to merge it into.
    pub base: Option<&'a serde_json::Value>,
    /// What is free of `/dev/shm` on the host that the recommendation was made on; `None` where this is another.
    pub shared_memory_bytes: Option<u64>,
}

/// Exports a recommendation if it is safe to launch, and still the one for `expected_sha256` where that is given.
pub fn export(request: &Request<'_>) -> Result<Exported, ExportError> {
    let Request { recommendation, format, expected_sha256, base, shared_memory_bytes } = *request;
    if base.is_some() && format != Format::Deepspeed {
        return Err(ExportError::NothingToMerge { format: format.name() });
    }
    let found = &recommendation.provenance.config_sha256;
    if let Some(expected) = expected_sha256.filter(|expected| expected != found) {
        return Err(ExportError::Stale { expected: short(expected), found: short(found) });
    }
    match (&recommendation.status, &recommendation.recommended) {
        (Status::Safe, Some(recommended)) => {
            let answer = Answer { recommendation, recommended, base, shared_memory_bytes };
            let exporter = format.exporter();
            Ok(Exported { text: exporter.export(&answer)?, notes: exporter.notes(&answer) })
        }
        (status, _) => Err(ExportError::NotSafe(status.name())),
    }
}

/// Enough of a hash for people to compare.
fn short(sha256: &str) -> String {
    sha256.chars().take(12).collect()
}

/// The serialised name of a unit variant, so that files and exports cannot differ.
fn name_of(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

/// JSON for a file: indented, and with a line end.
fn pretty_json(value: &impl serde::Serialize) -> Result<String, ExportError> {
    let text = serde_json::to_string_pretty(value).map_err(|_| ExportError::NoJson)?;
    // JSON's own rules leave some control characters as they are, and a terminal would obey them. They are in strings.
    let mut escaped = String::with_capacity(text.len() + 1);
    for character in text.chars() {
        if character.is_control() && character != '\n' {
            // Writing to a String cannot fail.
            let _ = write!(escaped, "\\u{:04x}", u32::from(character));
        } else {
            escaped.push(character);
        }
    }
    escaped.push('\n');
    Ok(escaped)
}
