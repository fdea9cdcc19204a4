//! How long a trial goes on: to the steps that it was asked for, and beyond them while their times cannot be believed
//! (see [`extension`](crate::trial::extension)).

use super::trial::{Halt, Trial};
use crate::trial::protocol::FromWorker;
use crate::trial::statistics::Trust;

impl Trial<'_> {
    /// Whether somebody wants the trial to end before it has what it was asked for.
    pub(super) fn is_cut_short(&self) -> bool {
        self.inbox.stop_requested() && self.finished < self.spec.total_steps()
    }

    /// The steps of the trial in all, after a step: more than before where it goes on. A stop ends what is more than it
    /// was asked for, and not as cancelled: the figures are there.
    pub(super) fn steps_in_all(&mut self, total: u32) -> Result<u32, Halt> {
        if self.inbox.stop_requested() && !self.is_cut_short() {
            return Ok(self.finished);
        }
        let longer = self.spec.extended_steps(total);
        if self.finished < total || longer == total || self.series.trust(self.spec) == Trust::Reliable {
            return Ok(total);
        }
        self.say(&FromWorker::Extended { trial: self.spec.id, total: longer })?;
        Ok(longer)
    }
}
