//! A trial as one of several replicas: what all of them must do alike, they agree on.
//!
//! Replicas run the same trial in lockstep, since each update needs all of them. A stop, or the end of the extension of a
//! trial, reaches one of them a step earlier than another; so before every step they tell each other, and the most
//! cautious word holds for all. A rank whose trial ends early for a reason of its own (a request that does not fit, a loss
//! that is not finite) leaves the group, so that the others end at once and need not wait for it.
//!
//! Rank 0 does what is done once for all: it writes the checkpoint and the trace of a probe.

use std::sync::Arc;
use std::time::Duration;

use super::trial::{Halt, Trial, failed};
use crate::data::order::Shard;
use crate::device::collective::{self, Collective, CollectiveError, Relay, Replica};
use crate::device::{DeviceSession, StepError};
use crate::memory::LimitSpec;
use crate::trial::outcome::Outcome;
use crate::trial::protocol::FromWorker;

/// A rank waits for this share of what its driver does, so that it can tell which other one it waited for.
const SHARE_OF_PATIENCE: f64 = 0.8;

/// A worker's place among the replicas.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) group: Arc<dyn Collective>,
    build: Duration,
    step: Duration,
}

impl Place {
    /// Meets the other replicas on an open device. All of them get the least of their limits; those that share a host's
    /// memory, and were asked for no certain limit, share what one alone would take.
    pub(super) fn take(
        (replica, relay): (&Replica, &Relay),
        session: &mut dyn DeviceSession,
        limit: LimitSpec,
    ) -> Result<Self, CollectiveError> {
        let group = collective::join(replica, session.candle(), relay)?;
        let own_bytes = session.facts().limit_bytes;
        let least_bytes = !group.largest(!own_bytes)?;
        let is_shared = session.candle().is_cpu() && limit == LimitSpec::Auto;
        let sharers = if is_shared { group.world() as u64 } else { 1 };
        session.lower_limit(least_bytes / sharers.max(1));
        Ok(Self { group, build: replica.build, step: replica.step })
    }

    /// This replica's part of every batch.
    pub(super) fn shard(&self) -> Shard {
        Shard { rank: self.group.rank(), world: self.group.world() }
    }

    /// What an error means where the group may be what failed.
    pub(super) fn blame(&self, error: StepError) -> StepError {
        match (error, self.group.failure()) {
            (error @ StepError::OutOfMemory(_), _) | (error, None) => error,
            (_, Some(failure)) => failure.into(),
        }
    }
}

impl Trial<'_> {
    fn place(&self) -> Option<&Place> {
        self.supplies.place()
    }

    /// Whether this worker does what is done once for all replicas.
    pub(super) fn leads(&self) -> bool {
        self.place().is_none_or(|place| place.group.rank() == 0)
    }

    /// The largest of all replicas' words; the own one where there is no other.
    pub(super) fn agreed(&self, word: u64) -> Result<u64, Halt> {
        match self.place() {
            Some(place) => place.group.largest(word).map_err(Halt::Lost),
            None => Ok(word),
        }
    }

    /// Waits for another replica for as long as the driver waits for this one now, or a little less.
    pub(super) fn be_patient(&self) {
        let Some(place) = self.place() else { return };
        let is_more = self.spec.has_more_than_a_step_ahead(self.finished);
        let patience = if is_more { place.build.saturating_add(place.step) } else { place.step };
        place.group.set_patience(patience.mul_f64(SHARE_OF_PATIENCE));
    }

    /// Takes no more part in the group, after an end that the others do not share.
    pub(super) fn leave_group(&self) {
        if let Some(place) = self.place() {
            place.group.leave();
        }
    }

    /// Whether the next trial may use the same group.
    pub(super) fn group_is_whole(&self) -> bool {
        self.place().is_none_or(|place| place.group.failure().is_none())
    }

    /// The end of a trial whose group cannot go on. Where another rank is to blame, this one has no outcome of its own:
    /// it says whom it lost, and the driver knows better what became of that one.
    pub(super) fn lost(&mut self, error: &CollectiveError) -> Result<Outcome, Halt> {
        let Some((rank, seconds)) = error.lost_rank() else { return Err(failed(error.to_string())) };
        self.say(&FromWorker::PeerLost { trial: self.spec.id, rank, seconds })?;
        Ok(Outcome::Cancelled)
    }
}
