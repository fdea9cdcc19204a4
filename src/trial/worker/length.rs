//! How long a trial goes on: to the steps that it was asked for, and beyond them while their times cannot be believed
//! (see [`extension`](crate::trial::extension)).

use super::trial::{Halt, Trial};
use crate::trial::protocol::FromWorker;
use crate::trial::statistics::Trust;

impl Trial<'_> {
    /// Whether somebody wants the trial to end before it has what it was asked for. Asked before every step, which
    /// replicas begin together.
    pub(super) fn is_cut_short(&self) -> Result<bool, Halt> {
        let is_stopped = self.agreed(u64::from(self.inbox.stop_requested()))? > 0;
        Ok(is_stopped && self.finished < self.spec.total_steps())
    }

    /// The steps of the trial in all, after a step: more than before where it goes on. A stop ends what is more than it
    /// was asked for, and not as cancelled: the figures are there. Replicas go on for as long as any of them wants to.
    pub(super) fn steps_in_all(&mut self, total: u32) -> Result<u32, Halt> {
        if self.finished < self.spec.total_steps() {
            return Ok(total);
        }
        let agreed = u32::try_from(self.agreed(u64::from(self.wished_steps(total)))?).unwrap_or(total);
        if agreed > total {
            self.say(&FromWorker::Extended { trial: self.spec.id, total: agreed })?;
        }
        Ok(agreed)
    }

    fn wished_steps(&self, total: u32) -> u32 {
        if self.inbox.stop_requested() {
            return self.finished;
        }
        let longer = self.spec.extended_steps(total);
        let is_settled = || self.series.trust(self.spec) == Trust::Reliable;
        if self.finished < total || longer == total || is_settled() { total } else { longer }
    }
}
