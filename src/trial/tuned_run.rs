//! Settings of PyTorch's allocator as a search over the coming run found them: what the journal keeps of it.
//!
//! The search plays the run under one setting after another ([`tuning`](crate::memory::forecast::tuning)), which may take
//! a minute, so a study that is resumed reads what came of it and does not repeat it.

use serde::{Deserialize, Serialize};

use crate::memory::forecast::Method;
use crate::memory::forecast::tuning::{Ending, Tried, Tuning};
use crate::units::Bytes;

/// What a search for settings over a coming run came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunedRun {
    /// How sure the run is forecast; `none` where it could not be played.
    #[serde(default = "exact")]
    pub method: Method,
    /// Steps of the run that were played under each setting.
    pub steps: u32,
    /// Steps that the run is forecast for. Where they are more, the settings were compared over its beginning.
    pub horizon_steps: u32,
    /// In the form of `PYTORCH_CUDA_ALLOC_CONF`; `None` where the program's own are the best, or nothing could be found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conf: Option<String>,
    /// Further settings under which the run lasts, the best first: where a trial refutes what is forecast of one, or of the
    /// program's own, the next is tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<String>,
    /// Why, in a sentence.
    pub reason: String,
}

/// What was searched before journals said how was forecast exactly.
fn exact() -> Method {
    Method::Exact
}

impl TunedRun {
    /// That nothing was searched for, and why.
    pub fn unknown(reason: String) -> Self {
        Self { method: Method::None, steps: 0, horizon_steps: 0, conf: None, next: Vec::new(), reason }
    }

    /// Settings other than the program's own under which the run lasts, the best first.
    pub fn lasting(&self) -> impl Iterator<Item = &String> {
        self.conf.iter().chain(&self.next)
    }
}

/// A setting that was tried: for the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriedSetting {
    /// The setting, for people.
    pub name: String,
    /// When it was tried, for people.
    pub stage: String,
    /// The highest V.
    pub peak_reserved_bytes: u64,
    /// Whether its play was cut short, since it could not win any more: then V came to that much at least.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut_short: bool,
    /// Requests to the device for memory, and returns of it.
    pub device_calls: u64,
    /// How its play ended, for people.
    pub result: String,
    /// Whether it is the best.
    pub is_best: bool,
}

impl TriedSetting {
    /// All of a search, in its order.
    pub fn all(tuning: &Tuning) -> Vec<Self> {
        let row = |(place, one): (usize, &Tried)| Self {
            name: one.candidate.to_string(),
            stage: one.stage.name().to_owned(),
            peak_reserved_bytes: one.figures.peak_reserved_bytes,
            is_cut_short: one.ending == Ending::Outdone,
            device_calls: one.figures.device_calls,
            result: one.trouble().unwrap_or_else(|| "comes to its end".to_owned()),
            is_best: tuning.chosen == Some(place),
        };
        tuning.tried.iter().enumerate().map(row).collect()
    }

    /// The highest V, for people.
    pub fn peak_reserved(&self) -> String {
        let peak = Bytes(self.peak_reserved_bytes);
        if self.is_cut_short { format!("≥ {peak}") } else { peak.to_string() }
    }
}
