//! Where the blocks lie at one moment: a map small enough for a journal and a page.
//!
//! The moment that matters is the one at which the most free bytes did not serve: the allocator came to a new
//! height by taking memory from the device although it had free blocks. [`worst_moment`] finds it by replaying a run. A
//! request that fails is worse than any of them; in a run that wastes nothing it is the last new height.
//!
//! A map is a row of [`Run`]s in the order of addresses. Neighbours of one kind are one run; where there are still too
//! many, small neighbours are joined into runs that are partly in use, so a map has a bounded size whatever the run.
//!
//! Free bytes are of two kinds. Those in segments that are in use elsewhere are *kept*: releasing the cache would not
//! give them back. The others are cache.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::event::{Event, Mark, Ordinal};
use super::inspect::kept_bytes;
use super::policy::native::Native;
use super::policy::{Address, FastHash, Policy, Settings};
use super::snapshot::{BlockState, Segment, segments_of};

/// The most runs of a map: 30 to 50 KiB of JSON.
pub const MOST_RUNS: usize = 1500;

/// Where the blocks lie.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockMap {
    /// The number of the event at this moment.
    pub event: u64,
    /// The request of that event; 0 where the moment is the end of a recording.
    pub request_bytes: u64,
    /// Whether that request failed.
    pub failed: bool,
    /// A.
    pub allocated_bytes: u64,
    /// V.
    pub reserved_bytes: u64,
    /// The largest free block.
    pub largest_free_bytes: u64,
    /// Free bytes that releasing the cache would not give back.
    pub kept_bytes: u64,
    /// Segments, each from one call to the device.
    pub segments: u64,
    /// All that is held, in the order of addresses.
    pub runs: Vec<Run>,
}

/// Neighbouring blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "RunForm", into = "RunForm")]
pub struct Run {
    /// Their bytes.
    pub bytes: u64,
    /// Those that are in use.
    pub live_bytes: u64,
    /// Those that are free and kept.
    pub kept_bytes: u64,
    /// How many blocks they are.
    pub blocks: u64,
    /// Whether a segment begins here.
    pub opens_segment: bool,
}

/// A run as a journal has it: a list is a fifth of the size.
type RunForm = (u64, u64, u64, u64, bool);

impl From<RunForm> for Run {
    fn from((bytes, live_bytes, kept_bytes, blocks, opens_segment): RunForm) -> Self {
        Self { bytes, live_bytes, kept_bytes, blocks, opens_segment }
    }
}

impl From<Run> for RunForm {
    fn from(run: Run) -> Self {
        (run.bytes, run.live_bytes, run.kept_bytes, run.blocks, run.opens_segment)
    }
}

/// What the bytes of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunKind {
    /// In use.
    Live,
    /// Free in a segment that is in use elsewhere.
    Kept,
    /// Free, and could be given back.
    Cache,
    /// Small blocks of more than one kind.
    Mixed,
}

impl Run {
    /// What its bytes are.
    pub fn kind(&self) -> RunKind {
        if self.live_bytes >= self.bytes {
            RunKind::Live
        } else if self.live_bytes > 0 {
            RunKind::Mixed
        } else if self.kept_bytes > 0 {
            RunKind::Kept
        } else {
            RunKind::Cache
        }
    }

    fn join(&mut self, next: Self) {
        self.bytes = self.bytes.saturating_add(next.bytes);
        self.live_bytes = self.live_bytes.saturating_add(next.live_bytes);
        self.kept_bytes = self.kept_bytes.saturating_add(next.kept_bytes);
        self.blocks = self.blocks.saturating_add(next.blocks);
    }
}

impl BlockMap {
    /// The map of these segments.
    pub fn of_segments(segments: &[Segment], settings: &Settings) -> Self {
        let mut map = Self { segments: segments.len() as u64, ..Self::default() };
        let mut runs: Vec<Run> = Vec::new();
        for segment in segments {
            map.reserved_bytes = map.reserved_bytes.saturating_add(segment.bytes);
            for (place, block) in segment.blocks.iter().enumerate() {
                let is_free = block.state == BlockState::Inactive;
                let kept_bytes = if is_free { kept_bytes(segment, block, settings) } else { 0 };
                let live_bytes = if is_free { 0 } else { block.bytes };
                map.allocated_bytes = map.allocated_bytes.saturating_add(live_bytes);
                map.kept_bytes = map.kept_bytes.saturating_add(kept_bytes);
                if is_free {
                    map.largest_free_bytes = map.largest_free_bytes.max(block.bytes);
                }
                let run = Run { bytes: block.bytes, live_bytes, kept_bytes, blocks: 1, opens_segment: place == 0 };
                match runs.last_mut().filter(|last| place > 0 && last.kind() == run.kind()) {
                    Some(last) => last.join(run),
                    None => runs.push(run),
                }
            }
        }
        map.runs = bounded(runs, MOST_RUNS);
        map
    }

    /// Free bytes.
    pub fn free_bytes(&self) -> u64 {
        self.reserved_bytes.saturating_sub(self.allocated_bytes)
    }
}

/// At most `most` runs: the smallest neighbours are joined first.
fn bounded(mut runs: Vec<Run>, most: usize) -> Vec<Run> {
    let mut small = 1 << 10;
    while runs.len() > most && small < u64::MAX / 2 {
        let mut joined: Vec<Run> = Vec::with_capacity(runs.len());
        for run in runs {
            match joined.last_mut().filter(|last| last.bytes.saturating_add(run.bytes) <= small) {
                Some(last) => last.join(run),
                None => joined.push(run),
            }
        }
        runs = joined;
        small *= 2;
    }
    // What no size joins, such as a stranger's blocks of 2^63 bytes.
    runs.truncate(most);
    runs
}

/// The map of a run at its worst moment under an allocator and a limit. The events are played twice. `None` for a run that
/// allocates nothing.
pub fn worst_moment(
    events: impl Iterator<Item = Event> + Clone,
    settings: Settings,
    limit_bytes: u64,
) -> Option<BlockMap> {
    let mut first = Replay::new(settings, limit_bytes);
    let (mut worst, mut most_wasted, mut highest, mut free) = (None, 0, 0, 0_u64);
    for (number, event) in events.clone().enumerate() {
        if !first.play(event) {
            worst = Some(number);
            break;
        }
        let state = first.policy.state();
        let growth = state.reserved_bytes.saturating_sub(highest);
        // What was taken anew while as much lay idle.
        let wasted = growth.min(free);
        if growth > 0 && wasted >= most_wasted {
            (worst, most_wasted) = (Some(number), wasted);
        }
        highest = highest.max(state.reserved_bytes);
        free = state.reserved_bytes.saturating_sub(state.allocated_bytes);
    }
    let worst = worst?;
    let mut second = Replay::new(settings, limit_bytes);
    let (mut failed, mut request_bytes) = (false, 0);
    for event in events.take(worst + 1) {
        if let Event::Alloc { bytes, .. } = event {
            request_bytes = bytes;
        }
        failed = !second.play(event);
    }
    let map = BlockMap::of_segments(&segments_of(&second.policy), &settings);
    Some(BlockMap { event: worst as u64, request_bytes, failed, ..map })
}

/// A run on the model of an allocator that can be asked for its blocks.
struct Replay {
    policy: Native,
    live: HashMap<Ordinal, Address, FastHash>,
}

impl Replay {
    fn new(settings: Settings, limit_bytes: u64) -> Self {
        Self { policy: Native::with_settings(settings, limit_bytes), live: HashMap::default() }
    }

    /// Plays one event; `false` where it is a request that fails.
    fn play(&mut self, event: Event) -> bool {
        match event {
            Event::Alloc { ordinal, bytes, stream } => {
                self.free(ordinal);
                match self.policy.allocate(bytes, stream) {
                    Ok(address) => self.live.insert(ordinal, address),
                    Err(_) => return false,
                };
            }
            Event::Free { ordinal } => self.free(ordinal),
            Event::FreeRequested { ordinal } => {
                if let Some(address) = self.live.get(&ordinal) {
                    self.policy.free_requested(*address);
                }
            }
            Event::Mark(Mark::Trim) => self.policy.release_cached(),
            Event::Mark(Mark::Step(_)) => self.policy.synchronised(),
            Event::Mark(Mark::Phase(_)) => {}
        }
        true
    }

    fn free(&mut self, ordinal: Ordinal) {
        if let Some(address) = self.live.remove(&ordinal) {
            self.policy.free(address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Stream;
    use crate::units::MIB;

    fn alloc(ordinal: u64, bytes: u64) -> Event {
        Event::Alloc { ordinal: Ordinal(ordinal), bytes, stream: Stream(0) }
    }

    fn free(ordinal: u64) -> Event {
        Event::Free { ordinal: Ordinal(ordinal) }
    }

    #[test]
    fn at_the_worst_moment_free_bytes_do_not_serve() {
        // 40 and 30 MiB; the hole of 40 is cut by 24, so that 32 more need a segment of their own.
        let events = [alloc(0, 40 * MIB), alloc(1, 30 * MIB), free(0), alloc(2, 24 * MIB), alloc(3, 32 * MIB), free(3)];
        let map = worst_moment(events.iter().copied(), Settings::default(), u64::MAX).unwrap();
        assert_eq!((map.event, map.request_bytes, map.failed), (4, 32 * MIB, false));
        assert_eq!((map.reserved_bytes, map.allocated_bytes), (102 * MIB, 86 * MIB));
        assert_eq!((map.free_bytes(), map.kept_bytes, map.largest_free_bytes), (16 * MIB, 16 * MIB, 16 * MIB));
        assert_eq!(map.runs.iter().map(|run| run.bytes).sum::<u64>(), map.reserved_bytes);
        let kinds: Vec<RunKind> = map.runs.iter().map(Run::kind).collect();
        assert_eq!(kinds, [RunKind::Live, RunKind::Kept, RunKind::Live, RunKind::Live]);
        let limited = worst_moment(events.iter().copied(), Settings::default(), 80 * MIB).unwrap();
        assert_eq!((limited.event, limited.failed, limited.reserved_bytes), (4, true, 70 * MIB));
        assert_eq!(worst_moment([free(7)].into_iter(), Settings::default(), u64::MAX), None);
    }

    #[test]
    fn a_map_is_bounded_and_loses_no_byte() {
        let runs: Vec<Run> = (0..100_000)
            .map(|n| Run {
                bytes: 512 + n % 5000,
                live_bytes: if n % 2 == 0 { 512 + n % 5000 } else { 0 },
                blocks: 1,
                ..Run::default()
            })
            .collect();
        let total: u64 = runs.iter().map(|run| run.bytes).sum();
        let map = bounded(runs, MOST_RUNS);
        assert!(map.len() <= MOST_RUNS && map.len() > MOST_RUNS / 4, "{}", map.len());
        assert_eq!(map.iter().map(|run| run.bytes).sum::<u64>(), total);
        assert_eq!(map.iter().map(|run| run.blocks).sum::<u64>(), 100_000);
        let absurd = vec![Run { bytes: u64::MAX, ..Run::default() }; 5000];
        assert_eq!(bounded(absurd, MOST_RUNS).len(), MOST_RUNS);
    }

    #[test]
    fn a_run_is_a_short_list_in_a_journal() {
        let run = Run { bytes: 9, live_bytes: 4, kept_bytes: 5, blocks: 2, opens_segment: true };
        let written = serde_json::to_string(&run).unwrap();
        assert_eq!(written, "[9,4,5,2,true]");
        assert_eq!(serde_json::from_str::<Run>(&written).unwrap(), run);
    }
}
