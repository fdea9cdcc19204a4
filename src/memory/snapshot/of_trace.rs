//! A snapshot of a recording, as PyTorch's allocator would have had it: so that the Memory Viz page can show a run of
//! candle.

use std::collections::HashMap;

use super::{Action, Block, Entry, Segment, Snapshot};
use crate::memory::event::{Event, Mark, Ordinal, Stream};
use crate::memory::policy::native::Native;
use crate::memory::policy::{Address, AllocConf, FastHash, Policy, Settings};
use crate::memory::replay::{ReplayError, check_streams};
use crate::memory::trace::{SegmentEvent, Trace};

impl Snapshot {
    /// Replays a recording without a limit and keeps every event with its address, and the state at the end. The page
    /// needs a time for each event: it is the event's number, in microseconds.
    pub fn of_trace(trace: &Trace, settings: Settings) -> Result<Self, ReplayError> {
        let mut entries = Vec::new();
        let policy = play(trace, settings, &mut |entry| entries.push(entry))?;
        Ok(Self { traces: vec![entries], ..Self::at_the_end_of(&policy, settings) })
    }

    /// The state that a policy is in, without the events that led to it.
    pub(in crate::memory) fn at_the_end_of(policy: &Native, settings: Settings) -> Self {
        let conf = AllocConf { settings, ..AllocConf::default() };
        Self { segments: segments_of(policy), conf, ..Self::default() }
    }
}

/// Plays a recording to PyTorch's allocator without a limit, and tells of each entry that a snapshot would have.
pub(in crate::memory) fn play(
    trace: &Trace,
    settings: Settings,
    tell: &mut dyn FnMut(Entry),
) -> Result<Native, ReplayError> {
    trace.ordinals().ok_or(ReplayError::Ordinals)?;
    check_streams(trace)?;
    let mut policy = Native::with_settings(settings, u64::MAX);
    policy.record_segments();
    // Address, bytes asked for and stream by ordinal.
    let mut live: HashMap<Ordinal, (Address, u64, Stream), FastHash> = HashMap::default();
    let mut time_us = 0;
    let mut push = |action, address: Address, bytes, stream| {
        tell(Entry { action, address: address.0, bytes, stream, time_us, stack: None });
        time_us += 1;
    };
    for event in &trace.events {
        match *event {
            Event::Alloc { ordinal, bytes, stream } => {
                let placed = policy.allocate(bytes, stream);
                for SegmentEvent { action, address, bytes, stream, .. } in policy.take_segments() {
                    push(Action::Segment(action), address, bytes, stream);
                }
                match placed {
                    Ok(address) => {
                        push(Action::Alloc, address, bytes, stream);
                        live.insert(ordinal, (address, bytes, stream));
                    }
                    Err(_) => push(Action::OutOfMemory, Address(0), bytes, stream),
                }
            }
            Event::FreeRequested { ordinal } => {
                if let Some((address, bytes, stream)) = live.get(&ordinal).copied() {
                    policy.free_requested(address);
                    push(Action::FreeRequested, address, bytes, stream);
                }
            }
            Event::Free { ordinal } => {
                if let Some((address, bytes, stream)) = live.remove(&ordinal) {
                    if policy.is_live(address) {
                        push(Action::FreeRequested, address, bytes, stream);
                    }
                    policy.free(address);
                    push(Action::FreeCompleted, address, bytes, stream);
                }
            }
            Event::Mark(Mark::Trim) => {
                policy.release_cached();
                for SegmentEvent { action, address, bytes, stream, .. } in policy.take_segments() {
                    push(Action::Segment(action), address, bytes, stream);
                }
            }
            Event::Mark(Mark::Step(_) | Mark::Phase(_)) => {}
        }
    }
    Ok(policy)
}

/// The policy's blocks, gathered into contiguous mapped ranges.
pub(crate) fn segments_of(policy: &Native) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for found in policy.blocks() {
        let block = Block {
            address: found.address,
            bytes: found.bytes,
            requested_bytes: found.requested_bytes,
            state: found.state,
            stack: None,
        };
        let continues = found.continues && !segments.is_empty();
        match segments.last_mut().filter(|_| continues) {
            Some(segment) => {
                segment.bytes += block.bytes;
                segment.blocks.push(block);
            }
            None => segments.push(Segment {
                device: 0,
                address: block.address,
                bytes: block.bytes,
                stream: found.stream,
                is_small: found.is_small,
                is_expandable: found.is_expandable,
                is_private: false,
                blocks: vec![block],
            }),
        }
    }
    segments.sort_by_key(|segment| segment.address);
    segments
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::BlockState;
    use super::*;
    use crate::memory::replay;

    fn trace(name: &str) -> Trace {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pytorch").join(name);
        Snapshot::read(&std::fs::read(file).unwrap()).unwrap().trace(0)
    }

    #[test]
    fn a_recording_becomes_a_snapshot_that_reproduces_itself() {
        for (name, settings) in [
            ("varlen.pickle", Settings::default()),
            ("streams.pickle", Settings::default()),
            ("gpt_expandable.pickle", Settings::expandable()),
            ("accum.pickle", Settings::expandable()),
        ] {
            let recorded = trace(name);
            let made = Snapshot::of_trace(&recorded, settings).unwrap();
            let mut file = Vec::new();
            made.write(&mut file).unwrap();
            let read = Snapshot::read(&file).unwrap();
            let again = read.trace(0);
            assert_eq!(again.obstacle, None, "{name}");
            assert_eq!(again.events.len(), recorded.events.len(), "{name}");
            let reproduced = replay::reproduce(&again).unwrap();
            assert_eq!(reproduced.placed_other, 0, "{name}");
            let reserved: u64 = read.segments.iter().map(|segment| segment.bytes).sum();
            assert_eq!(reproduced.replayed.state.reserved_bytes, reserved, "{name}");
            let live = read.segments.iter().flat_map(|s| &s.blocks).filter(|b| b.state == BlockState::Active);
            assert_eq!(reproduced.replayed.state.allocated_bytes, live.map(|block| block.bytes).sum::<u64>(), "{name}");
        }
    }

    #[test]
    fn segments_and_blocks_tile_without_gaps() {
        let made = Snapshot::of_trace(&trace("gpt_fixed.pickle"), Settings::default()).unwrap();
        assert_eq!(made.segments.len(), 38);
        for segment in &made.segments {
            let mut at = segment.address.0;
            for block in &segment.blocks {
                assert_eq!(block.address.0, at);
                at += block.bytes;
            }
            assert_eq!(at, segment.address.0 + segment.bytes);
        }
    }
}
