//! How long a trial may go on: its steps as asked, and more while their times cannot be believed yet.
//!
//! The steps that a plan asks for are the fewest. A trial on a busy machine, or one whose loader runs dry only after the
//! batches that were ready at its start, ends with a median that says little, and a search that compares such medians
//! picks by chance. A measuring trial therefore runs on in small pieces until
//! [`Series::trust`](super::measure::Series::trust) holds, and for at most [`LONGEST_FACTOR`] times the steps asked for:
//! what has not settled by then is a property of the workload, and the interval says so. Stopping when the figures look
//! settled makes the interval a little too narrow, which the factor bounds too (at most ten looks).
//!
//! Probes and soaks have the length they need for what they show, and are never extended. Nor is a trial that would
//! have too few updates for any trust even at its longest.
//!
//! The worker decides, since it has the times; the driver knows the bound and holds the worker to it.

use super::spec::TrialSpec;
use super::statistics::FEWEST_SAMPLES;

/// A trial measures at most so many times the steps it was asked for.
pub const LONGEST_FACTOR: u32 = 3;
/// A piece is this share of the steps asked for, in whole updates.
const PIECE_SHARE: u32 = 5;

impl TrialSpec {
    /// The most steps that the trial may run, warm-up included: where it is extended, the last of them ends an update.
    pub fn longest_steps(&self) -> u32 {
        let asked = self.total_steps();
        if !self.is_measuring() {
            return asked;
        }
        let update = self.update_steps();
        let longest = self.steps.saturating_mul(LONGEST_FACTOR).saturating_add(self.warmup_steps) / update * update;
        let updates = (longest / update).saturating_sub(self.warmup_steps.div_ceil(update));
        if updates as usize >= FEWEST_SAMPLES { longest.max(asked) } else { asked }
    }

    /// The steps of a trial that ran `total` and goes on for another piece, up to the end of an update.
    pub fn extended_steps(&self, total: u32) -> u32 {
        let update = self.update_steps();
        let piece = (self.steps / PIECE_SHARE).max(1);
        let longer = total.saturating_add(piece).checked_next_multiple_of(update).unwrap_or(u32::MAX);
        longer.min(self.longest_steps()).max(total)
    }

    fn update_steps(&self) -> u32 {
        u32::try_from(self.accumulation()).unwrap_or(u32::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::spec::{Point, Purpose, TrialId};
    use proptest::prelude::*;

    fn spec(purpose: Purpose, accumulation_steps: usize, (warmup_steps, steps): (u32, u32)) -> TrialSpec {
        let point = Point { accumulation_steps, ..Point::plain(8) };
        TrialSpec { id: TrialId(1), purpose, point, warmup_steps, steps, sample_every: 2, sample_size: None }
    }

    /// Every length of a trial that never settles.
    fn lengths(spec: &TrialSpec) -> Vec<u32> {
        let mut lengths = vec![spec.total_steps()];
        while let Some(&last) = lengths.last()
            && spec.extended_steps(last) > last
        {
            lengths.push(spec.extended_steps(last));
        }
        lengths
    }

    #[test]
    fn the_default_trial_goes_on_by_two_steps_up_to_three_times_its_steps() {
        assert_eq!(lengths(&spec(Purpose::Ladder, 1, (2, 10))), [12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32]);
        assert_eq!(lengths(&spec(Purpose::Ladder, 8, (2, 10))), [12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32]);
    }

    #[test]
    fn an_extension_ends_with_an_update() {
        assert_eq!(lengths(&spec(Purpose::Accumulation, 4, (1, 10))), [11, 14, 16, 18, 20, 22, 24, 26, 28, 30]);
    }

    #[test]
    fn a_trial_that_no_extension_could_make_believed_is_not_extended() {
        // Three times one step, and five whole updates after the one that the warm-up began.
        assert_eq!(lengths(&spec(Purpose::Ladder, 1, (2, 1))), [3]);
        assert_eq!(lengths(&spec(Purpose::Ladder, 2, (1, 4))), [5]);
        assert_eq!(lengths(&spec(Purpose::Ladder, 1, (2, 2))), [4, 5, 6, 7, 8]);
    }

    #[test]
    fn probes_and_soaks_are_as_long_as_they_are_asked_to_be() {
        for purpose in [Purpose::Probe, Purpose::Soak] {
            assert_eq!(lengths(&spec(purpose, 2, (2, 10))), [12], "{purpose}");
        }
    }

    proptest! {
        #[test]
        fn no_length_is_beyond_the_bound_or_below_what_was_asked(
            accumulation: usize, warmup: u32, steps: u32, total: u32,
        ) {
            let spec = spec(Purpose::Grid, accumulation, (warmup, steps));
            prop_assert!(spec.longest_steps() >= spec.total_steps());
            prop_assert!(spec.longest_steps() <= spec.total_steps().max(steps.saturating_mul(LONGEST_FACTOR).saturating_add(warmup)));
            prop_assert!(spec.extended_steps(total) >= total);
            prop_assert!(spec.extended_steps(total) <= total.max(spec.longest_steps()));
        }
    }
}
