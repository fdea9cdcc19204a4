//! How large samples are where that varies: the axis of a run's shapes beside the batch.
//!
//! Rows of text have lengths in tokens and images have sides in pixels. Memory is a polynomial of either, so what records,
//! fits and plays shapes takes both alike; what makes batches and what speaks to people tells them apart.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::plural;

/// How large all samples of a batch are.
///
/// As a part of a trial it is the key `length` or the key `image_size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SampleSize {
    /// Rows of so many tokens.
    #[serde(rename = "length")]
    Tokens(usize),
    /// Images of so many pixels a side.
    #[serde(rename = "image_size")]
    Side(usize),
}

impl SampleSize {
    /// The tokens or pixels.
    pub fn value(self) -> usize {
        match self {
            Self::Tokens(value) | Self::Side(value) => value,
        }
    }
}

impl fmt::Display for SampleSize {
    /// `64 tokens`, `96 pixels a side`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens(count) => f.pad(&plural(*count, "token")),
            Self::Side(count) => f.pad(&format!("{} a side", plural(*count, "pixel"))),
        }
    }
}
