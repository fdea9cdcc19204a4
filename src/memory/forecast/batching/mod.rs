//! How samples become batches, and what another way to batch them would do.
//!
//! Where lengths vary, the shapes of a run are a choice. Padding rows to a multiple makes fewer distinct shapes, so that the
//! cache finds its blocks again, for a few tokens of padding more. Sorting samples by length makes batches alike within, for
//! less padding, and alike from one to the next. A budget of tokens makes short batches larger and long ones smaller, so
//! that the longest batch no longer decides what memory is needed. None of them is free, so each is forecast like the run
//! itself: [`remedies`] plays them all and says what each does to memory, to padding and to the steps of an epoch.
//!
//! A batch is padded to its longest sample; the padded places count in time and memory, not in what is learned.
//! This room knows lengths alone. What they are of, and in which order they come, [`Lengths`] says.

mod batches;
mod compared;
mod outline;
mod remedy;

#[cfg(test)]
mod tests;

pub use batches::Batches;
pub use compared::{BatchedRun, advised};
pub use outline::Outline;
pub use remedy::{PlayBatches, Remedies, Remedy, RemedyFigures, RemedyTask, remedies, standard};

use std::fmt;

use serde::Serialize;

use super::MIN_BATCH_SIZE;

/// Batches in a window that is sorted by length, as in the sampler of Hugging Face's `group_by_length`.
pub const WINDOW_BATCHES: u64 = 50;

/// The most samples of a batch.
pub const MAX_SAMPLES: u64 = 1 << 16;

/// Under a budget a batch may have so many times the samples of one without.
const MOST_TIMES_SAMPLES: u64 = 4;

/// The samples of a run, in the order in which it takes them.
pub trait Lengths: Sync {
    /// The tokens of a sample, at least 1; samples are counted from 0 and never end.
    fn of(&self, sample: u64) -> u64;

    /// The longest that a sample can be.
    fn longest(&self) -> u64;
}

/// Lengths one after another, again and again.
impl Lengths for Vec<u64> {
    fn of(&self, sample: u64) -> u64 {
        let place = sample.checked_rem(self.len() as u64).unwrap_or(0);
        self.get(place as usize).copied().unwrap_or(1).max(1)
    }

    fn longest(&self) -> u64 {
        self.iter().copied().max().unwrap_or(1).max(1)
    }
}

/// A way to make batches of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Batching {
    /// Samples of a batch; with a budget, the most of them.
    pub samples: u64,
    /// Rows are filled up to a multiple of so many tokens, no further than the longest sample can be; 1 is none.
    pub pad_to: u64,
    /// In which order samples come into batches.
    pub order: Order,
    /// A batch holds as many samples as fit into so many tokens, padding included.
    pub token_budget: Option<u64>,
}

/// In which order samples come into batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// That of the run.
    #[default]
    AsTheyCome,
    /// Windows of [`WINDOW_BATCHES`] batches, the longest sample of each first.
    ByLength,
}

/// Why samples cannot be batched so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchingError {
    /// Batches of 1 cannot be forecast.
    #[error("batches of `{samples}` cannot be forecast (hint: from {MIN_BATCH_SIZE} to {MAX_SAMPLES})")]
    Samples {
        /// What was asked for.
        samples: u64,
    },
    /// A budget under which a long sample would be alone.
    #[error(
        "a budget of `{budget}` tokens does not hold two samples of `{longest}` (hint: `{}` or more; a batch of one cannot \
         be forecast)",
        longest.saturating_mul(2)
    )]
    Budget {
        /// What was asked for.
        budget: u64,
        /// The longest row.
        longest: u64,
    },
}

impl Batching {
    /// Batches of so many samples as they come.
    pub fn of(samples: u64) -> Self {
        Self { samples, pad_to: 1, order: Order::AsTheyCome, token_budget: None }
    }

    /// The same with as many samples a batch as fit into so many tokens, grouped by length: two of the longest at least.
    #[must_use]
    pub fn under_budget(self, tokens: u64, longest: u64) -> Self {
        Self {
            samples: self.samples.saturating_mul(MOST_TIMES_SAMPLES).min(MAX_SAMPLES),
            order: Order::ByLength,
            token_budget: Some(tokens.max(longest.saturating_mul(2))),
            ..self
        }
    }

    /// The length of a row whose batch has `longest` tokens at most.
    fn row(&self, longest: u64, longest_of_all: u64) -> u64 {
        longest.checked_next_multiple_of(self.pad_to.max(1)).unwrap_or(longest).min(longest_of_all).max(longest)
    }

    /// Refuses what cannot be forecast.
    pub fn check(&self, lengths: &dyn Lengths) -> Result<(), BatchingError> {
        if !(MIN_BATCH_SIZE as u64..=MAX_SAMPLES).contains(&self.samples) {
            return Err(BatchingError::Samples { samples: self.samples });
        }
        let longest = lengths.longest();
        match self.token_budget {
            Some(budget) if budget / 2 < longest => Err(BatchingError::Budget { budget, longest }),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Batching {
    /// For people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        match self.token_budget {
            Some(budget) => parts.push(format!("{budget} tokens a batch, {} samples at most", self.samples)),
            None => parts.push(format!("{} samples a batch", self.samples)),
        }
        if self.pad_to > 1 {
            parts.push(format!("padded to {}", self.pad_to));
        }
        if self.order == Order::ByLength {
            parts.push("grouped by length".to_owned());
        }
        f.pad(&parts.join(", "))
    }
}
