//! The watch room: what a card's memory looks like from outside, and what may be concluded from that, for programs that
//! nobody may change.
//!
//! A [`Collector`] turns looks at a card into one [`Sample`] an interval. [`Observations`] take samples and conclude: a
//! pure fold that knows neither NVML nor a clock, so that a recorded file is judged as the live card is. A [`Recorder`]
//! keeps what was seen, [`Watched`] is the process whose end is waited for.
//!
//! # What can be seen from outside, and what cannot
//! The driver sees segments that an allocator took, not the tensors in them. So fragmentation is never measured here: it is
//! inferred from its trace. An allocator that finds no piece large enough gives its cache back and takes new segments, so
//! the card's memory jumps, and the end comes while much of the card is free. That is said as "fragmentation-like", beside
//! what else it may be. Where the recording of an allocator can be had, `tune inspect` and `tune replay` measure it.
//!
//! The exit code of another program's process is its parent's to know. It is told where the kernel showed it before the
//! parent took it; otherwise what is concluded says "if".

mod card;
mod climb;
mod collector;
mod findings;
mod holders;
mod observations;
mod process;
mod recording;
mod series;
mod summary;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::device::nvml::NvmlUnavailable;
use crate::exit_code;

pub use card::Card;
pub use collector::Collector;
pub use findings::{Certainty, Finding, Kind};
pub use observations::Observations;
pub use process::{Exit, State, Watched};
pub use recording::{Kept, Line, Recorded, Recorder, RecordingProblem, SCHEMA};
pub use series::Point;
pub use summary::{Ending, Summary};

/// What is watched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// The card's name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// All its memory.
    pub total_bytes: u64,
    /// The process that is watched, where one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Between two samples.
    pub interval_seconds: f64,
}

/// A card over one interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When the interval ended, in seconds since the watch began, by a clock that nobody sets.
    pub at_seconds: f64,
    /// What of the card was in use then.
    pub used_bytes: u64,
    /// The least that was in use within the interval.
    pub low_bytes: u64,
    /// The most.
    pub high_bytes: u64,
    /// How busy the card was, where it tells.
    #[serde(default)]
    pub utilisation_percent: Option<u32>,
    /// Who held memory when the interval ended.
    #[serde(default)]
    pub processes: Vec<Holder>,
}

impl Sample {
    /// What the watched process and its children held, where the driver tells.
    pub fn watched_bytes(&self) -> Option<u64> {
        let watched = self.processes.iter().filter(|holder| holder.whose == Whose::Watched);
        watched.filter_map(|holder| holder.bytes).reduce(u64::saturating_add)
    }
}

/// A process that holds memory of the card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its number, as the driver counts processes.
    pub pid: u32,
    /// Its name, where this process may see it.
    #[serde(default)]
    pub name: Option<String>,
    /// What it holds, where the driver tells.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// Whose it is.
    #[serde(default)]
    pub whose: Whose,
}

impl fmt::Display for Holder {
    /// `python (process 4242) 12.0 GiB`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{} (process {})", crate::text::harmless(name), self.pid)?,
            None => write!(f, "process {}", self.pid)?,
        }
        match self.bytes {
            Some(bytes) => write!(f, " {}", crate::units::Bytes(bytes)),
            None => Ok(()),
        }
    }
}

/// How a process is related to the one that is watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whose {
    /// It is the one, or a descendant.
    Watched,
    /// It is another.
    Other,
    /// Nobody knows: a container's processes have other numbers for the driver.
    #[default]
    Unknown,
}

/// Why there is nothing to watch.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// No driver.
    #[error(
        "no NVIDIA driver answers here, so there is no card to watch (hint: `tune watch --replay FILE` judges what was recorded elsewhere)"
    )]
    NoDriver(#[from] NvmlUnavailable),
    /// The device has no card.
    #[error("device `cpu` has nothing to watch: `tune watch` looks at a card's memory (hint: `--device cuda:0`)")]
    Cpu,
    /// There is no such card.
    #[error("device `{device}`: {} visible (hint: devices count from 0, within `CUDA_VISIBLE_DEVICES`)", cards(*count))]
    NoSuchCard {
        /// The device asked for.
        device: crate::device::DeviceChoice,
        /// How many there are.
        count: usize,
    },
    /// There is no such process.
    #[error("no process {pid} runs (hint: in a container, use the number that `ps` shows there)")]
    NoProcess {
        /// The number asked for.
        pid: u32,
    },
    /// Two looks cannot be so close together, or so far apart.
    #[error("an interval of {found} is not between 100ms and 1h")]
    Interval {
        /// What was asked for.
        found: String,
    },
    /// The file is no recording of a watch.
    #[error("`{}` is no recording of `tune watch --record`: {problem}", path.display())]
    Recording {
        /// Which.
        path: std::path::PathBuf,
        /// What is wrong with it.
        problem: RecordingProblem,
    },
}

impl WatchError {
    /// The exit code that it gives the process.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::NoDriver(_) | Self::Cpu | Self::NoSuchCard { .. } => exit_code::DEVICE_UNAVAILABLE,
            Self::NoProcess { .. } | Self::Interval { .. } | Self::Recording { .. } => exit_code::USAGE,
        }
    }
}

/// `1 card is`, `2 cards are`
fn cards(count: usize) -> String {
    format!("{} {}", crate::units::plural(count, "card"), if count == 1 { "is" } else { "are" })
}
