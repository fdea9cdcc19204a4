//! What a recording held over its events, thinned to a drawing's size.
//!
//! A snapshot is read from its end back: its segments are the whole state at that moment, while the beginning of its
//! trace may be missing. What the program asked for is counted before the allocator's rounding, as the trace has it.

use super::snapshot::{Action, BlockState, Snapshot};
use super::trace::SegmentAction;

/// The most points of a timeline.
const MOST_POINTS: usize = 600;

/// One moment, or the highest of some neighbouring ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimelinePoint {
    /// The number of the event.
    pub event: u64,
    /// What the program's live blocks were asked for.
    pub requested_bytes: u64,
    /// V.
    pub reserved_bytes: u64,
}

/// The timeline of a snapshot's busiest device.
pub fn timeline(snapshot: &Snapshot) -> Vec<TimelinePoint> {
    let device = snapshot.busiest_device();
    let entries = snapshot.traces.get(device).map_or(&[][..], Vec::as_slice);
    let segments = || snapshot.segments.iter().filter(|segment| segment.device == device as u64);
    let active = segments().flat_map(|segment| &segment.blocks).filter(|block| block.state == BlockState::Active);
    let mut now = TimelinePoint {
        event: entries.len() as u64,
        requested_bytes: active.fold(0, |sum: u64, block| sum.saturating_add(block.requested_bytes)),
        reserved_bytes: segments().fold(0, |sum: u64, segment| sum.saturating_add(segment.bytes)),
    };
    let stretch = entries.len().div_ceil(MOST_POINTS).max(1) as u64;
    let mut points = vec![now];
    for (number, entry) in entries.iter().enumerate().rev() {
        match entry.action {
            Action::Alloc => now.requested_bytes = now.requested_bytes.saturating_sub(entry.bytes),
            Action::FreeRequested => now.requested_bytes = now.requested_bytes.saturating_add(entry.bytes),
            Action::Segment(SegmentAction::Allocate | SegmentAction::Map) => {
                now.reserved_bytes = now.reserved_bytes.saturating_sub(entry.bytes);
            }
            Action::Segment(SegmentAction::Free | SegmentAction::Unmap) => {
                now.reserved_bytes = now.reserved_bytes.saturating_add(entry.bytes);
            }
            Action::FreeCompleted | Action::OutOfMemory | Action::Other => {}
        }
        now.event = number as u64;
        match points.last_mut().filter(|last| last.event / stretch == now.event / stretch) {
            Some(last) => {
                last.requested_bytes = last.requested_bytes.max(now.requested_bytes);
                last.reserved_bytes = last.reserved_bytes.max(now.reserved_bytes);
            }
            None => points.push(now),
        }
    }
    points.reverse();
    points
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_timeline_of_a_whole_trace_has_its_peak() {
        for name in ["varlen.pickle", "gpt_expandable.pickle", "gpt_fixed.pickle"] {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pytorch").join(name);
            let snapshot = Snapshot::read(&std::fs::read(file).unwrap()).unwrap();
            let points = timeline(&snapshot);
            let found = super::super::inspect::inspect(&snapshot).unwrap();
            assert!(points.len() <= MOST_POINTS + 1, "{name}: {}", points.len());
            assert!(points.is_sorted_by(|left, right| left.event < right.event), "{name}");
            let peak = points.iter().map(|point| point.reserved_bytes).max().unwrap();
            assert_eq!(peak, found.peak_reserved_bytes, "{name}");
            assert!(points.iter().all(|point| point.requested_bytes <= point.reserved_bytes), "{name}");
        }
        assert_eq!(timeline(&Snapshot::default()), [TimelinePoint::default()]);
    }
}
