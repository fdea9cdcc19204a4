//! What a recording without segments says about memory: its replay is looked at in their place.

use super::{Inspection, OutOfMemoryEvent, ReplayCheck, state};
use crate::memory::policy::Policy;
use crate::memory::replay::ReplayError;
use crate::memory::snapshot::{Action, Snapshot, play};
use crate::memory::trace::{Obstacle, Trace};

/// Inspects a recording by its replay under its own settings. Its entries are counted and not kept: they take several times
/// what the recording does.
pub fn inspect_trace(trace: &Trace) -> Result<Inspection, ReplayError> {
    let settings = trace.conf.settings;
    let (mut entries, mut allocations, mut has_segments, mut oom) = (0, 0, false, None);
    let policy = play(trace, settings, &mut |entry| {
        match entry.action {
            Action::Alloc => allocations += 1,
            Action::Segment(_) => has_segments = true,
            Action::OutOfMemory => oom = Some(OutOfMemoryEvent::at(entries, &entry)),
            _ => {}
        }
        entries += 1;
    })?;
    let obstacle = match (entries, has_segments) {
        (0, _) => Some(Obstacle::NoEvents),
        (_, false) => Some(Obstacle::NoSegments),
        (_, true) => None,
    };
    let peaks = policy.state();
    let check = ReplayCheck {
        placed_same: allocations,
        placed_other: 0,
        peak_reserved_bytes: peaks.peak_reserved_bytes,
        obstacle: obstacle.map(|obstacle| obstacle.to_string()),
    };
    let mut found = state(&Snapshot::at_the_end_of(&policy, settings));
    found.set_peaks(check, peaks.peak_allocated_bytes, peaks.peak_reserved_bytes);
    Ok(Inspection { events: trace.events.len() as u64, oom, ..found })
}
