//! What a configuration means: every default resolved, every unit typed.
//!
//! Only a [`Plan`] leaves this room. It prints as YAML (`tune check`), and its canonical JSON without budget, output
//! and progress keys gives `config_sha256`.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::data::DataSpec;
use crate::device::DeviceChoice;
use crate::memory::{AllocatorKind, FragmentationMetric, FragmentationSource, LimitSpec, Trim};
use crate::model::ModelSpec;
use crate::search::StrategyKind;
use crate::train::TrainSpec;
use crate::trial::WorkloadSpec;
use crate::trial::command::CommandSpec;
use crate::trial::launcher::LauncherSpec;
use crate::units::Fraction;

/// A resolved configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Version of the configuration format.
    pub version: u32,
    /// The study's name.
    pub name: String,
    /// Where to train; the first device where trials run on several.
    pub device: DeviceChoice,
    /// Where trials run side by side.
    #[serde(skip_serializing_if = "DevicesPlan::is_one")]
    pub devices: DevicesPlan,
    /// What to train: the key `model` or `command`.
    #[serde(flatten)]
    pub subject: Subject,
    /// How.
    pub train: TrainSpec,
    /// On which data.
    pub data: DataSpec,
    /// Whether host batches are page-locked.
    pub pin_memory: PinMemory,
    /// What the user wants.
    pub target: TargetPlan,
    /// The space and the strategy.
    pub search: SearchPlan,
    /// The memory limit and the planned allocator.
    pub memory: MemoryPlan,
    /// What counts as safe.
    pub safety: SafetyPlan,
    /// How long a trial runs.
    pub trial: TrialPlan,
    /// How long the search may take.
    pub budget: BudgetPlan,
    /// Seeds everything that is random.
    pub seed: u64,
    /// What starts workers somewhere else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launcher: Option<LauncherSpec>,
}

/// The devices that trials run on side by side. They find the same answer on one as on several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DevicesPlan {
    /// The plan's device alone.
    #[default]
    One,
    /// All cards that the machine has and this process may see.
    All,
    /// These, at least two.
    Listed(Vec<DeviceChoice>),
}

impl DevicesPlan {
    fn is_one(&self) -> bool {
        *self == Self::One
    }
}

/// What is trained.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A model of a family that this binary knows.
    Model(ModelSpec),
    /// A program of the user's own.
    Command(CommandSpec),
}

impl Plan {
    /// What a worker needs to know of the plan to train `model`.
    pub fn workload(&self, model: &ModelSpec) -> WorkloadSpec {
        WorkloadSpec {
            model: model.clone(),
            train: self.train,
            data: self.data.clone(),
            device: self.device,
            limit: self.memory.limit,
            allocator: self.memory.allocator,
            seed: self.seed,
        }
    }

    /// The user's own program, where that is what is tuned.
    pub fn command(&self) -> Option<&CommandSpec> {
        match &self.subject {
            Subject::Model(_) => None,
            Subject::Command(command) => Some(command),
        }
    }

    /// The SHA-256, in hexadecimal, of the plan's canonical JSON without its budget: two runs with the same one search
    /// the same space, so the later may resume the earlier. Output and progress are no part of a plan. Of a launcher only
    /// its command counts, which says what kind of machine trials run on; for how long it is waited for does not. Nor does
    /// on how many devices trials run side by side.
    pub fn sha256(&self) -> String {
        // Every field of a plan has a JSON form (paths are UTF-8 by resolution); a null would still hash.
        let mut plan = serde_json::to_value(self).unwrap_or_default();
        if let Some(fields) = plan.as_object_mut() {
            fields.remove("budget");
            fields.remove("devices");
            if let Some(launcher) = fields.get_mut("launcher").and_then(Value::as_object_mut) {
                launcher.retain(|key, _| key == "command");
            }
        }
        format!("{:x}", Sha256::digest(canonical_json(&plan)))
    }
}

/// JSON without white space and with sorted keys, whatever order the map type keeps.
fn canonical_json(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            let fields: Vec<String> = fields
                .into_iter()
                .map(|(name, value)| format!("{}:{}", Value::from(name.as_str()), canonical_json(value)))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(elements) => {
            let elements: Vec<String> = elements.iter().map(canonical_json).collect();
            format!("[{}]", elements.join(","))
        }
        scalar => scalar.to_string(),
    }
}

/// Whether host batches are page-locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PinMemory {
    /// Always.
    Always,
    /// Never.
    Never,
    /// The search decides.
    Auto,
}

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TargetPlan {
    /// Samples per optimizer step over all replicas.
    pub batch_size: usize,
    /// Devices that train together.
    pub replicas: usize,
    /// How far micro × accumulation × replicas may miss the target.
    pub tolerance: Fraction,
}

/// The space and the strategy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SearchPlan {
    /// Which strategy searches.
    pub strategy: StrategyKind,
    /// The micro-batch sizes of the ladder, in samples per device.
    pub batch_size: BatchSizePlan,
    /// Accumulation steps allowed; `None` leaves them to the target.
    pub accumulation_steps: Option<Vec<usize>>,
    /// Loader threads to try, ascending.
    pub loader_workers: Vec<usize>,
    /// Batches a worker keeps ready, to try.
    pub prefetch_depth: Vec<usize>,
    /// Batches staged on the device, in the order in which they are preferred.
    pub device_prefetch: Vec<usize>,
    /// Settings of PyTorch's allocator to try beside the program's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alloc_conf: Vec<String>,
}

/// The micro-batch sizes of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BatchSizePlan {
    /// The lowest rung.
    pub start: usize,
    /// The highest size.
    pub max: usize,
    /// From rung to rung.
    pub step: usize,
}

/// The memory limit and the planned allocator.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MemoryPlan {
    /// What tensors may use.
    pub limit: LimitSpec,
    /// The allocator of the planned run.
    pub allocator: AllocatorKind,
    /// When cached memory is handed back.
    pub trim: Trim,
}

/// What counts as safe.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SafetyPlan {
    /// The highest fragmentation rate.
    pub fragmentation_threshold: Fraction,
    /// Which rate.
    pub fragmentation_metric: FragmentationMetric,
    /// Of which allocator.
    pub fragmentation_source: FragmentationSource,
    /// A memory sample is taken every so many steps.
    pub sample_every: u32,
    /// L must be at least this times the step's largest request.
    pub largest_block_factor: f64,
    /// Share of the limit that must stay free at the peak, at least the step's largest request.
    pub headroom: Fraction,
    /// Steps of the coming run that are forecast before a point is safe; 0 forecasts none. Left out where it is the
    /// default, so that the hash of an older plan stays what it was.
    #[serde(skip_serializing_if = "is_default_horizon")]
    pub horizon_steps: u32,
}

/// The steps of a run that are forecast where the configuration says nothing.
pub const DEFAULT_HORIZON_STEPS: u32 = 10_000;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_default_horizon(steps: &u32) -> bool {
    *steps == DEFAULT_HORIZON_STEPS
}

/// How long a trial runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TrialPlan {
    /// Steps whose time is dropped.
    pub warmup_steps: u32,
    /// Measured steps.
    pub steps: u32,
    /// Steps of the soak (at least two updates are run).
    pub soak_steps: u32,
    /// The longest time without a finished step.
    pub timeout: Duration,
}

/// How long the search may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BudgetPlan {
    /// Wall time.
    pub time: Duration,
    /// Trials.
    pub trials: u32,
}

/// Where results go: not part of what is tuned, so not of the hash either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputPlan {
    /// The recommendation file.
    pub recommendation: PathBuf,
    /// The study directory.
    pub study: PathBuf,
}
