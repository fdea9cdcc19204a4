//! Knowing most of a run without playing it.
//!
//! Where shapes come again after so many steps, and evaluation passes and checkpoints with them, the run does the same
//! again and again. If then, at the end of such a stretch, the allocator and all that is live are as they were at the end of
//! an earlier one, what lies between repeats itself as long as the shapes do, to the byte: its steps, its device calls, its
//! retries. Whole repetitions are skipped, and the rest of the run is played.
//!
//! Two moments are alike if their fingerprints are: the policy's own ([`Policy::fingerprint`](crate::memory::Policy::fingerprint)),
//! which live allocation is at which of its blocks, and where the run is in its templates. The ages that a garbage collection
//! goes by are a part of it, but only where a collection was made in between ([`Fingerprint::repeats`]). The state of a run
//! may take several stretches to come again, so the moment that is compared with moves on in powers of two (Brent 1980), and
//! the steps since are kept, [`MAX_STEPS`] at most.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use super::player::RunPlayer;
use crate::memory::forecast::run::{Cadence, RunEvents};
use crate::memory::policy::{Address, Fingerprint, PoolState};

/// The longest stretch that is recognised: 8 MiB of figures.
const MAX_STEPS: usize = 1 << 16;
/// Fingerprints are taken once in so many events for each live allocation, so that they cost a fraction of the play.
const EVENTS_A_LIVE: u64 = 4;

/// What is kept of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    /// At its end.
    pub(super) state: PoolState,
    /// Until then.
    pub(super) calls: Calls,
}

/// What was asked of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Calls {
    pub(super) device_calls: u64,
    pub(super) retries: u64,
}

impl Calls {
    pub(super) fn of(player: &RunPlayer) -> Self {
        let counts = player.policy().counts();
        Self { device_calls: counts.segments_allocated.saturating_add(counts.segments_freed), retries: counts.retries }
    }

    fn since(self, before: Self) -> Self {
        Self { device_calls: self.device_calls - before.device_calls, retries: self.retries - before.retries }
    }
}

/// A moment that others are compared with.
#[derive(Clone, Copy, Debug)]
struct Moment {
    step: u32,
    policy: Fingerprint,
    /// What is live where, and where the run is.
    run: u64,
    calls: Calls,
}

/// A stretch of a run that repeats itself.
#[derive(Clone, Debug)]
pub(super) struct Repetition {
    /// Where it first began.
    pub(super) from_step: u32,
    /// Its steps.
    steps: Vec<Kept>,
    before: Calls,
}

impl Repetition {
    /// The state at the end of a step after `from_step`.
    pub(super) fn state(&self, step: u32) -> Option<&PoolState> {
        let place = step.checked_sub(self.from_step)? as usize % self.steps.len().max(1);
        self.steps.get(place).map(|kept| &kept.state)
    }

    /// How many steps it takes.
    pub(super) fn steps(&self) -> u32 {
        u32::try_from(self.steps.len()).unwrap_or(u32::MAX)
    }

    /// What is asked of the device in whole repetitions of so many steps together.
    pub(super) fn calls(&self, steps: u32) -> Calls {
        let times = u64::from(steps / self.steps().max(1));
        let once = self.steps.last().map_or(Calls::default(), |last| last.calls.since(self.before));
        Calls { device_calls: once.device_calls.saturating_mul(times), retries: once.retries.saturating_mul(times) }
    }
}

/// Looks for a state that comes again.
#[derive(Debug)]
pub(super) struct Watch {
    cadence: Option<Cadence>,
    moment: Option<Moment>,
    /// The steps since.
    kept: Vec<Kept>,
    /// Comparisons since, and how many there may be.
    compared: u32,
    patience: u32,
    /// The event from which on the next fingerprint may be taken.
    next_event: u64,
}

impl Watch {
    pub(super) fn new(run: &RunEvents<'_>) -> Self {
        let cadence = run.cadence().filter(|cadence| cadence.steps as usize <= MAX_STEPS);
        Self { cadence, moment: None, kept: Vec::new(), compared: 0, patience: 1, next_event: 0 }
    }

    /// Takes a step that has ended.
    pub(super) fn keep(&mut self, kept: Kept) {
        if self.moment.is_some() {
            if self.kept.len() == MAX_STEPS {
                self.moment = None;
                self.kept.clear();
            } else {
                self.kept.push(kept);
            }
        }
    }

    /// Looks whether what is now, before a step, has been before.
    pub(super) fn look(&mut self, run: &RunEvents<'_>, player: &RunPlayer, step: u32) -> Option<Repetition> {
        self.cadence.filter(|cadence| cadence.is_boundary(step))?;
        if player.events() < self.next_event {
            return None;
        }
        let Some(policy) = player.policy().fingerprint() else {
            // It cannot tell, and will not learn it.
            self.cadence = None;
            return None;
        };
        let fingerprint = fingerprint(run, player);
        let live = player.policy().state().allocated_blocks;
        self.next_event = player.events().saturating_add(EVENTS_A_LIVE.saturating_mul(live));
        if let Some(moment) = self.moment.filter(|moment| moment.run == fingerprint && policy.repeats(moment.policy)) {
            let steps = std::mem::take(&mut self.kept);
            // Once is enough.
            self.cadence = None;
            self.moment = None;
            return Some(Repetition { from_step: moment.step, steps, before: moment.calls });
        }
        self.compared += 1;
        if self.moment.is_none() || self.compared >= self.patience {
            self.moment = Some(Moment { step, policy, run: fingerprint, calls: Calls::of(player) });
            self.kept.clear();
            self.compared = 0;
            self.patience = self.patience.saturating_mul(2);
        }
        None
    }
}

fn fingerprint(run: &RunEvents<'_>, player: &RunPlayer) -> u64 {
    let mut hasher = DefaultHasher::new();
    run.hash_place(&mut hasher);
    let live = player.live();
    let mut addresses: Vec<Address> = live.iter().map(|(_, address)| *address).collect();
    addresses.sort_unstable();
    for (ordinal, address) in live {
        // Which of the live blocks, not where: new segments never lie where old ones did.
        (run.origin(ordinal), addresses.binary_search(&address).ok()).hash(&mut hasher);
    }
    hasher.finish()
}
