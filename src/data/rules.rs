//! What a batch may be like, and what was skipped for it.

use super::lengths::{Lengths, Longest};
use super::order::Shard;
use super::sides::Sides;
use super::{DataError, DataSpec, LastBatch, OnBadSample};

/// What a batch may be like. The default is what the data section says when it says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchRules {
    /// Whether an epoch ends with a smaller batch.
    pub last_batch: LastBatch,
    /// What becomes of a sample that cannot be read.
    pub on_bad_sample: OnBadSample,
    /// How long samples are; `None` leaves them as the dataset gives them.
    pub lengths: Option<Lengths>,
    /// Of which side the images of a batch are; `None` leaves them as the dataset gives them.
    pub sides: Option<Sides>,
    /// Which batches are as long as any can be, or have images as large as any can be.
    pub longest: Longest,
    /// Which part of the batches of all replicas these are.
    pub shard: Shard,
}

impl BatchRules {
    /// The rules of a specification, with lengths and sides as they come out by chance.
    pub fn of(spec: &DataSpec, seed: u64) -> Self {
        Self {
            last_batch: spec.last_batch,
            on_bad_sample: spec.on_bad_sample,
            lengths: Lengths::of(spec, seed),
            sides: Sides::of(spec, seed),
            longest: Longest::ByChance,
            shard: Shard::default(),
        }
    }
}

/// Samples that could not be read, and whose places others took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// How many.
    pub samples: u64,
    /// What was wrong with the first, its file named.
    pub first: Option<String>,
}

impl Skipped {
    /// Counts one more.
    pub(super) fn count(&mut self, error: &DataError) {
        self.samples += 1;
        self.first.get_or_insert_with(|| crate::text::with_causes(error));
    }

    /// Counts those of a later batch.
    pub(super) fn add(&mut self, later: Self) {
        self.samples += later.samples;
        self.first = self.first.take().or(later.first);
    }
}
