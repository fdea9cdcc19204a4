//! What recomputing activations does to memory, by forecast.

use super::{Kind, Knowledge, Probed};
use crate::memory::forecast::Method;
use crate::train::GradientCheckpointing;
use crate::trial::Point;

/// The most bytes that tensors take at one batch size, with activations kept and with those of blocks recomputed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recomputation {
    /// The batch size.
    pub batch_size: usize,
    /// Highest A with all activations kept.
    pub kept_bytes: u64,
    /// Highest A with those of blocks recomputed.
    pub recomputed_bytes: u64,
}

impl Probed {
    /// What a point's batch size takes with and without recomputation, where both are forecast exactly.
    pub fn recomputation(&self, point: &Point) -> Option<Recomputation> {
        let batch_size = point.batch_size;
        let peak = |gradient_checkpointing| {
            let own = Kind { gradient_checkpointing, ..Kind::of(point) };
            // A pair without accumulation is often spoken for by the probes with.
            let kinds = [own, Kind { accumulation: 2, ..own }];
            let exact = kinds.into_iter().find(|kind| self.method(*kind) == Some(Method::Exact))?;
            Some((exact.accumulation, self.look_up(exact, batch_size, None)?.peak_allocated_bytes))
        };
        let (accumulation, kept_bytes) = peak(GradientCheckpointing::None)?;
        let (same, recomputed_bytes) = peak(GradientCheckpointing::Blocks)?;
        (accumulation == same).then_some(Recomputation { batch_size, kept_bytes, recomputed_bytes })
    }
}
