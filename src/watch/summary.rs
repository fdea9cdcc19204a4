//! How a watch ended, and the figures of the whole.

use serde::{Deserialize, Serialize};

use super::{Certainty, Exit, Finding, Holder};

/// How a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "how")]
pub enum Ending {
    /// The watched process did.
    ProcessEnded {
        /// How, where the kernel showed it.
        exit: Option<Exit>,
    },
    /// Somebody stopped the watch.
    Interrupted,
    /// Nobody reads what is printed any more.
    Unread,
    /// The card no longer answers.
    CardLost,
    /// A recording has no end: whoever made it was killed.
    CutOff,
}

/// A signal that a person or a scheduler sends; whoever ends by it did not run out of device memory.
const SENT: [i32; 4] = [1, 2, 9, 15];

impl Ending {
    /// Whether the process may have run out of memory, and how sure it is then; `None` where it did not.
    pub(super) fn failure(self) -> Option<Certainty> {
        match self {
            Self::ProcessEnded { exit: None } => Some(Certainty::IfOutOfMemory),
            Self::ProcessEnded { exit: Some(Exit::Code(code)) } => (code != 0).then_some(Certainty::Likely),
            Self::ProcessEnded { exit: Some(Exit::Signal(signal)) } => {
                (!SENT.contains(&signal)).then_some(Certainty::Likely)
            }
            Self::Interrupted | Self::Unread | Self::CardLost | Self::CutOff => None,
        }
    }
}

/// The figures of a watch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// How it ended.
    pub ending: Ending,
    /// From its begin to its last sample.
    pub seconds: f64,
    /// Samples that were taken.
    pub samples: u64,
    /// Samples that the card did not answer.
    pub missed_samples: u64,
    /// Samples whose time was not after that of the one before: they are left out.
    pub disordered_samples: u64,
    /// All memory of the card.
    pub total_bytes: u64,
    /// The highest of it in use.
    pub peak_bytes: u64,
    /// The highest in use in the last seconds.
    pub end_bytes: u64,
    /// Falls of more than a fiftieth of the card.
    pub falls: usize,
    /// Who held memory, each with the most that it held.
    pub processes: Vec<Holder>,
    /// What is concluded.
    pub findings: Vec<Finding>,
}
