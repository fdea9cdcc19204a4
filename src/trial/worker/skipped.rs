//! The warning of samples that could not be read, where `data.on_bad_sample: skip` lets a trial go on without them.

use super::trial::{Halt, Trial};
use crate::data::rules::Skipped;
use crate::units::plural;

impl Trial<'_> {
    /// Says how many samples the trial was spared, and what was wrong with the first.
    pub(super) fn warn_of_skipped(&mut self, skipped: &Skipped) -> Result<(), Halt> {
        let Some(first) = &skipped.first else { return Ok(()) };
        let count = plural(usize::try_from(skipped.samples).unwrap_or(usize::MAX), "bad sample");
        self.warn(format!("{count} skipped, the first of them: {first}"))
    }
}
