//! How samples become batches, and what another way to batch them would do.
//!
//! Where lengths vary, the shapes of a run are a choice. Padding rows to a multiple makes fewer distinct shapes, so that the
//! cache finds its blocks again, for a few tokens of padding more. Sorting samples by length makes batches alike within, for
//! less padding, and alike from one to the next. A budget of tokens makes short batches larger and long ones smaller, so
//! that the longest batch no longer decides what memory is needed. None of them is free, so each is forecast like the run
//! itself: [`remedies`] plays them all and says what each does to memory, to padding and to the steps of an epoch.
//!
//! A batch is padded to its longest sample; the padded places count in time and memory, not in what is learned.
//!
//! A sample may have several axes, such as the sides of an image ([`Extents`]). Then a batch is padded to the largest of its
//! samples on each of them, multiples count for every axis, and what counts as tokens is their product: windows are sorted
//! by it and a budget bounds it. Some axes are chosen for a whole batch, as training at several scales does; on these its
//! samples do not differ, so there is nothing to group where no others are. What samples are of, and in which order they
//! come, [`Samples`] says, and [`Lengths`] where they have a length alone.

mod batches;
mod compared;
mod outline;
mod remedy;
mod samples;

#[cfg(test)]
mod tests;

pub use compared::{BatchedRun, advised};
pub use outline::Outline;
pub use remedy::{PlayBatches, Remedies, Remedy, RemedyFigures, RemedyTask, remedies, standard};
pub use samples::{Extents, Layout, Lengths, MAX_EXTENTS, Samples, Unit};

use serde::Serialize;

use super::MIN_BATCH_SIZE;

/// Batches in a window that is sorted by length, as in the sampler of Hugging Face's `group_by_length`.
pub const WINDOW_BATCHES: u64 = 50;

/// The most samples of a batch.
pub const MAX_SAMPLES: u64 = 1 << 16;

/// A way to make batches of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Batching {
    /// Samples of a batch; with a budget, the most of them.
    pub samples: u64,
    /// Rows are filled up to a multiple on each axis, no further than the largest sample can be; 1 is none.
    pub pad_to: u64,
    /// In which order samples come into batches.
    pub order: Order,
    /// A batch holds as many samples as fit into so many tokens, padding included: of several axes their product.
    pub token_budget: Option<u64>,
}

/// In which order samples come into batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// That of the run.
    #[default]
    AsTheyCome,
    /// Windows of [`WINDOW_BATCHES`] batches, the sample of each with the most tokens first.
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
        "a budget of `{budget}` {unit} does not hold two samples of `{longest}` (hint: `{}` or more; a batch of one cannot \
         be forecast)",
        longest.saturating_mul(2)
    )]
    Budget {
        /// What was asked for.
        budget: u64,
        /// The longest row.
        longest: u64,
        /// What they are counted in.
        unit: Unit,
    },
}

impl Batching {
    /// Batches of so many samples as they come.
    pub fn of(samples: u64) -> Self {
        Self { samples, pad_to: 1, order: Order::AsTheyCome, token_budget: None }
    }

    /// How far the rows of a batch go on an axis, whose samples go to `extent` at most.
    fn row(&self, extent: u64, largest: u64) -> u64 {
        extent.checked_next_multiple_of(self.pad_to.max(1)).unwrap_or(extent).min(largest).max(extent)
    }

    /// Refuses what cannot be forecast.
    pub fn check(&self, samples: &dyn Samples) -> Result<(), BatchingError> {
        if !(MIN_BATCH_SIZE as u64..=MAX_SAMPLES).contains(&self.samples) {
            return Err(BatchingError::Samples { samples: self.samples });
        }
        let layout = samples.layout();
        let longest = layout.positions(samples.largest().values());
        match self.token_budget {
            Some(budget) if budget / 2 < longest => Err(BatchingError::Budget { budget, longest, unit: layout.unit() }),
            _ => Ok(()),
        }
    }

    /// For people.
    pub fn name(&self, unit: Unit) -> String {
        let mut parts = Vec::new();
        match self.token_budget {
            Some(budget) => parts.push(format!("{budget} {unit} a batch, {} samples at most", self.samples)),
            None => parts.push(format!("{} samples a batch", self.samples)),
        }
        if self.pad_to > 1 {
            parts.push(format!("padded to {}", self.pad_to));
        }
        if self.order == Order::ByLength {
            parts.push(if unit == Unit::Tokens { "grouped by length" } else { "grouped by size" }.to_owned());
        }
        parts.join(", ")
    }
}
