//! What was written: `model.yaml` as serde sees it, key by key.
//!
//! Nothing here is resolved: a share of the target is still a share, and a path is still relative. What it all means
//! is [`crate::config::resolve`]'s business. The JSON Schema (`tune schema`) is derived from these types.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::leaf::list::Devices;
use super::leaf::number::{Version, Whole};
use super::leaf::text::{DeviceName, Text};
use super::sections::budget::BudgetFile;
use super::sections::command::CommandFile;
use super::sections::data::DataFile;
use super::sections::launcher::Launcher;
use super::sections::memory::MemoryFile;
use super::sections::model::ModelFile;
use super::sections::safety::SafetyFile;
use super::sections::search::SearchFile;
use super::sections::target::TargetFile;
use super::sections::train::TrainFile;
use super::sections::trial::TrialFile;

/// A batchtune configuration, version 1. Everything but `model` (or `command`) and `target.batch_size` has a default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// The version of this format.
    pub version: Version,
    /// The study's name; the preset or the family by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Text>,
    /// Where to train: auto, cpu, cuda or cuda:1.
    pub device: DeviceName,
    /// What to train. Exactly one of model and command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelFile>,
    /// A program of your own to tune in place of a model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandFile>,
    /// How to train.
    pub train: TrainFile,
    /// What to train on.
    pub data: DataFile,
    /// What you want.
    pub target: TargetFile,
    /// What is tried, and how.
    pub search: SearchFile,
    /// The memory limit, and the allocator of the planned run.
    pub memory: MemoryFile,
    /// What counts as safe.
    pub safety: SafetyFile,
    /// How long a trial runs.
    pub trial: TrialFile,
    /// How long the search may take.
    pub budget: BudgetFile,
    /// The devices that trials run on side by side, in place of device: auto (the one), all or a list.
    pub devices: Devices,
    /// A program that starts workers somewhere else: slurm, or the keys of another; null starts them here.
    pub launcher: Option<Launcher>,
    /// Seeds everything that is random.
    pub seed: Whole<0, { u64::MAX }>,
}

impl Default for File {
    /// A file without a single key: what `model` and `target.batch_size` are missing from.
    fn default() -> Self {
        Self {
            version: Version::CURRENT,
            name: None,
            device: DeviceName::default(),
            model: None,
            command: None,
            train: TrainFile::default(),
            data: DataFile::default(),
            target: TargetFile::default(),
            search: SearchFile::default(),
            memory: MemoryFile::default(),
            safety: SafetyFile::default(),
            trial: TrialFile::default(),
            budget: BudgetFile::default(),
            devices: Devices::default(),
            launcher: None,
            seed: Whole::clamped(0),
        }
    }
}

/// The JSON Schema of `model.yaml`, for editors and for `tune schema`.
pub fn json_schema() -> serde_json::Value {
    let mut schema = schemars::schema_for!(File);
    schema.insert("title".to_owned(), "batchtune configuration".into());
    let mut schema = schema.to_value();
    // What must be there is known to the checks, not to serde, for which every key may be absent.
    schema["required"] = json!(["target"]);
    schema["oneOf"] = json!([{ "required": ["model"] }, { "required": ["command"] }]);
    schema["$defs"]["TargetFile"]["required"] = json!(["batch_size"]);
    schema["$defs"]["ModelFile"]["required"] = json!(["family"]);
    schema
}
