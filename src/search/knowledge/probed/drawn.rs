//! The samples of a coming run by their lengths, for whoever makes other batches of them.

use std::sync::OnceLock;

use crate::data::run_shapes::RunSamples;
use crate::memory::forecast::batching::Lengths;

/// Lengths that are kept; those of a longer run are drawn again each time.
const KEPT_LENGTHS: u64 = 1 << 22;

/// The samples of one rank's run by their lengths, the first of them kept: several ways ask for the same.
pub(super) struct Drawn {
    samples: RunSamples,
    kept: OnceLock<Vec<u32>>,
    count: u64,
}

impl Drawn {
    /// Those of a run of so many steps.
    pub(super) fn of(samples: RunSamples, batch_size: usize, steps: u32) -> Self {
        let count = (batch_size as u64).saturating_mul(u64::from(steps)).min(KEPT_LENGTHS);
        Self { samples, kept: OnceLock::new(), count }
    }
}

impl Lengths for Drawn {
    fn of(&self, sample: u64) -> u64 {
        let length = |sample| self.samples.length(sample).max(1);
        let kept = self
            .kept
            .get_or_init(|| (0..self.count).map(|sample| u32::try_from(length(sample)).unwrap_or(u32::MAX)).collect());
        let kept = usize::try_from(sample).ok().and_then(|place| kept.get(place));
        kept.map_or_else(|| length(sample) as u64, |length| u64::from(*length))
    }

    fn longest(&self) -> u64 {
        self.samples.longest() as u64
    }
}
