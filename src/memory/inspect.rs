//! What a PyTorch snapshot says about memory: `tune inspect`.
//!
//! Two sources are read. The segments are the allocator's state at the moment of the snapshot, and give what holds the
//! memory, how the free bytes are cut up, and which live allocations keep large free spaces from being released. The
//! trace gives the peaks, by a replay that is checked against the recording's own addresses.

use serde::Serialize;

use super::fragmentation::{Rates, external_rate, peak_rate, reserved_rate};
use super::policy::Settings;
use super::replay::{self, ReplayError};
use super::snapshot::{Action, Block, BlockState, Entry, Segment, Snapshot};
use super::trace::SegmentAction;

mod replayed;
mod sites;

pub use replayed::inspect_trace;
pub use sites::{Site, folded_stacks, sites};

/// The name of a snapshot's format in JSON.
pub const SNAPSHOT_FORMAT: &str = "pytorch_snapshot";
/// The most pinned spaces that are listed.
const MAX_PINS: usize = 10;
/// The most live allocations that are listed for each.
const MAX_PINNING_BLOCKS: usize = 5;

/// The findings. The names are those of the JSON that `tune inspect --json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// The kind of file: `pytorch_snapshot`, `batchtune_trace` or `rmm_log`.
    pub format: &'static str,
    /// Events in the trace.
    pub events: u64,
    /// Segments in the file.
    pub segments: u64,
    /// Blocks in the file.
    pub blocks: u64,
    /// Blocks in state `inactive`.
    pub free_blocks: u64,
    /// Bytes of blocks in use by the program.
    pub allocated_bytes: u64,
    /// Those and the ones that another stream still uses.
    pub active_bytes: u64,
    /// Bytes of all segments.
    pub reserved_bytes: u64,
    /// What the active blocks were asked for.
    pub requested_bytes: u64,
    /// Free bytes in native segments that are in use elsewhere, as PyTorch's statistic of that name counts them.
    pub inactive_split_bytes: u64,
    /// Bytes of inactive blocks.
    pub free_bytes: u64,
    /// The largest inactive block.
    pub largest_free_bytes: u64,
    /// Free bytes that releasing the cache could not give back.
    pub unreleasable_bytes: u64,
    /// The highest A of the trace.
    pub peak_allocated_bytes: u64,
    /// The highest V of the trace.
    pub peak_reserved_bytes: u64,
    /// The rates. `external` takes V as the limit where the settings name none.
    pub rates: Rates,
    /// How a replay compares with the recording.
    pub replay: ReplayCheck,
    /// The last request that failed.
    pub oom: Option<OutOfMemoryEvent>,
    /// Devices with segments.
    pub devices: u64,
    /// The allocator's settings, as the environment variable writes them.
    pub conf: String,
    /// The figures of each pool: one small and one large for each device and stream.
    pub pools: Vec<PoolFigures>,
    /// Free blocks by size.
    pub free_histogram: Vec<FreeClass>,
    /// The largest spaces that cannot be released, and what keeps them.
    pub pinned: Vec<Pinned>,
    /// Where the live bytes come from, the largest first; empty where the file has no stack frames.
    pub top_sites: Vec<Site>,
}

/// How a replay under the file's own settings compares with the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReplayCheck {
    /// Allocations placed at PyTorch's own address.
    pub placed_same: u64,
    /// Allocations placed elsewhere.
    pub placed_other: u64,
    /// The highest V of the replay.
    pub peak_reserved_bytes: u64,
    /// Why it cannot reproduce the file, where it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
}

/// The figures of one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PoolFigures {
    /// The device's index.
    pub device: u64,
    /// The stream's handle.
    pub stream: u64,
    /// Whether it serves small requests.
    pub small: bool,
    /// Segments.
    pub segments: u64,
    /// Bytes of its segments.
    pub reserved_bytes: u64,
    /// Bytes in use by the program.
    pub allocated_bytes: u64,
    /// Bytes of inactive blocks.
    pub free_bytes: u64,
    /// The largest inactive block.
    pub largest_free_bytes: u64,
    /// Free bytes that cannot be released.
    pub unreleasable_bytes: u64,
}

/// A request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OutOfMemoryEvent {
    /// The request, rounded as PyTorch writes it.
    pub requested_bytes: u64,
    /// Its number in the trace.
    pub event: u64,
    /// What the device had free.
    pub device_free_bytes: u64,
}

/// Free blocks of one power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FreeClass {
    /// From this size on.
    pub from_bytes: u64,
    /// How many.
    pub blocks: u64,
    /// Their sum.
    pub bytes: u64,
}

/// A segment whose free space cannot be released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pinned {
    /// Its first address.
    pub address: u64,
    /// Its size.
    pub segment_bytes: u64,
    /// The space.
    pub unreleasable_bytes: u64,
    /// The bytes that keep it.
    pub live_bytes: u64,
    /// How many allocations those are.
    pub live_blocks: u64,
    /// The smallest of them, which would cost least to move.
    pub smallest: Vec<PinningBlock>,
}

/// An allocation that keeps a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PinningBlock {
    /// Its address.
    pub address: u64,
    /// What was asked for.
    pub requested_bytes: u64,
    /// Who asked for it, where the file says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
}

/// Inspects a snapshot.
pub fn inspect(snapshot: &Snapshot) -> Result<Inspection, ReplayError> {
    let mut found = state(snapshot);
    let (check, allocated, reserved) = peaks(snapshot, found.allocated_bytes, found.reserved_bytes)?;
    found.set_peaks(check, allocated, reserved);
    Ok(Inspection {
        events: snapshot.traces.iter().map(|trace| trace.len() as u64).sum(),
        oom: last_failure(snapshot),
        ..found
    })
}

impl Inspection {
    fn set_peaks(&mut self, check: ReplayCheck, peak_allocated_bytes: u64, peak_reserved_bytes: u64) {
        self.replay = check;
        self.peak_allocated_bytes = peak_allocated_bytes;
        self.peak_reserved_bytes = peak_reserved_bytes;
        self.rates.peak = peak_rate(peak_allocated_bytes, peak_reserved_bytes);
    }
}

/// What the segments say; what only the events tell is left out.
fn state(snapshot: &Snapshot) -> Inspection {
    let blocks = || snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    let of_state = |wanted: &'static [BlockState]| blocks().filter(|block| wanted.contains(&block.state));
    let active = || of_state(&[BlockState::Active, BlockState::PendingFree]);
    let free = || of_state(&[BlockState::Inactive]);
    let allocated_bytes = sum(of_state(&[BlockState::Active]).map(|block| block.bytes));
    let reserved_bytes = sum(snapshot.segments.iter().map(|segment| segment.bytes));
    let free_bytes = sum(free().map(|block| block.bytes));
    let unreleasable_bytes =
        sum(snapshot.segments.iter().map(|segment| unreleasable(segment, &snapshot.conf.settings)));
    let largest_free_bytes = free().map(|block| block.bytes).max().unwrap_or(0);
    let growth = snapshot.conf.settings.largest_in_new_segment(free_bytes.saturating_sub(unreleasable_bytes));
    let mut devices: Vec<u64> = snapshot.segments.iter().map(|segment| segment.device).collect();
    devices.sort_unstable();
    devices.dedup();
    Inspection {
        format: SNAPSHOT_FORMAT,
        events: 0,
        segments: snapshot.segments.len() as u64,
        blocks: blocks().count() as u64,
        free_blocks: free().count() as u64,
        allocated_bytes,
        active_bytes: sum(active().map(|block| block.bytes)),
        reserved_bytes,
        requested_bytes: sum(active().map(|block| block.requested_bytes)),
        inactive_split_bytes: sum(snapshot.segments.iter().map(inactive_split)),
        free_bytes,
        largest_free_bytes,
        unreleasable_bytes,
        peak_allocated_bytes: 0,
        peak_reserved_bytes: 0,
        rates: Rates {
            peak: None,
            external: external_rate(largest_free_bytes.max(growth), allocated_bytes, reserved_bytes),
            reserved: reserved_rate(allocated_bytes, reserved_bytes),
        },
        replay: ReplayCheck::default(),
        oom: None,
        devices: devices.len() as u64,
        conf: snapshot.conf.to_string(),
        pools: pools(snapshot),
        free_histogram: histogram(free()),
        pinned: pinned(snapshot),
        top_sites: sites(snapshot),
    }
}

/// A sum that a stranger's file cannot make overflow.
fn sum(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(0, u64::saturating_add)
}

/// The replay of the busiest device, and the peaks: the replay's, where the trace is whole, else what the events
/// before the file's end state say.
fn peaks(snapshot: &Snapshot, allocated: u64, reserved: u64) -> Result<(ReplayCheck, u64, u64), ReplayError> {
    let device = snapshot.busiest_device();
    let trace = snapshot.trace(device);
    let reproduced = replay::reproduce(&trace)?;
    let state = reproduced.replayed.state;
    let check = ReplayCheck {
        placed_same: reproduced.placed_same,
        placed_other: reproduced.placed_other,
        peak_reserved_bytes: state.peak_reserved_bytes,
        obstacle: trace.obstacle.map(|obstacle| obstacle.to_string()),
    };
    if trace.obstacle.is_none() || snapshot.segments.is_empty() {
        return Ok((check, state.peak_allocated_bytes, state.peak_reserved_bytes));
    }
    let (allocated, reserved) = peaks_backwards(snapshot, device, allocated, reserved);
    Ok((check, allocated, reserved))
}

/// Peaks of a trace whose beginning is missing: from the end state back. Sizes of allocations are the requested ones
/// there, so the peak of A is a little low.
fn peaks_backwards(snapshot: &Snapshot, device: usize, allocated: u64, reserved: u64) -> (u64, u64) {
    let (mut now, mut peak) = ((allocated, reserved), (allocated, reserved));
    for entry in snapshot.traces.get(device).into_iter().flatten().rev() {
        match entry.action {
            Action::Alloc => now.0 = now.0.saturating_sub(entry.bytes),
            Action::FreeRequested => now.0 = now.0.saturating_add(entry.bytes),
            Action::Segment(SegmentAction::Allocate | SegmentAction::Map) => now.1 = now.1.saturating_sub(entry.bytes),
            Action::Segment(SegmentAction::Free | SegmentAction::Unmap) => now.1 = now.1.saturating_add(entry.bytes),
            _ => {}
        }
        peak = (peak.0.max(now.0), peak.1.max(now.1));
    }
    peak
}

fn last_failure(snapshot: &Snapshot) -> Option<OutOfMemoryEvent> {
    let entries = snapshot.traces.get(snapshot.busiest_device())?;
    let event = entries.iter().rposition(|entry| entry.action == Action::OutOfMemory)?;
    Some(OutOfMemoryEvent::at(event as u64, &entries[event]))
}

impl OutOfMemoryEvent {
    fn at(event: u64, entry: &Entry) -> Self {
        Self { requested_bytes: entry.bytes, event, device_free_bytes: entry.address }
    }
}

/// PyTorch's statistic leaves expandable segments out.
fn inactive_split(segment: &Segment) -> u64 {
    if segment.is_expandable || segment.blocks.len() < 2 { 0 } else { sum(free_of(segment).map(|block| block.bytes)) }
}

fn free_of(segment: &Segment) -> impl Iterator<Item = &Block> {
    segment.blocks.iter().filter(|block| block.state == BlockState::Inactive)
}

/// Free bytes that cannot be handed back.
fn unreleasable(segment: &Segment, settings: &Settings) -> u64 {
    sum(free_of(segment).map(|block| kept_bytes(segment, block, settings)))
}

/// Bytes of a free block that cannot be handed back: all of them in a native segment that is in use elsewhere, those
/// outside whole pages of an expandable one. A mapped range begins at a page.
pub(super) fn kept_bytes(segment: &Segment, block: &Block, settings: &Settings) -> u64 {
    if !segment.is_expandable {
        return if segment.blocks.len() < 2 { 0 } else { block.bytes };
    }
    let page = if segment.is_small { settings.small_segment_bytes } else { settings.large_segment_bytes }.max(1);
    let start = block.address.0.saturating_sub(segment.address.0);
    let pages = (start.saturating_add(block.bytes) / page).saturating_sub(start.div_ceil(page));
    block.bytes.saturating_sub(pages.saturating_mul(page))
}

fn pools(snapshot: &Snapshot) -> Vec<PoolFigures> {
    let mut pools = std::collections::BTreeMap::new();
    for segment in &snapshot.segments {
        let (device, stream, small) = (segment.device, segment.stream.0, segment.is_small);
        let pool = pools.entry((device, stream, !small)).or_insert(PoolFigures {
            device,
            stream,
            small,
            ..PoolFigures::default()
        });
        let live = segment.blocks.iter().filter(|block| block.state == BlockState::Active);
        pool.segments += 1;
        pool.reserved_bytes = pool.reserved_bytes.saturating_add(segment.bytes);
        pool.allocated_bytes = pool.allocated_bytes.saturating_add(sum(live.map(|block| block.bytes)));
        pool.free_bytes = pool.free_bytes.saturating_add(sum(free_of(segment).map(|block| block.bytes)));
        let largest = free_of(segment).map(|block| block.bytes).max().unwrap_or(0);
        pool.largest_free_bytes = pool.largest_free_bytes.max(largest);
        let unreleasable = unreleasable(segment, &snapshot.conf.settings);
        pool.unreleasable_bytes = pool.unreleasable_bytes.saturating_add(unreleasable);
    }
    pools.into_values().collect()
}

fn histogram<'a>(free: impl Iterator<Item = &'a Block>) -> Vec<FreeClass> {
    let mut classes = std::collections::BTreeMap::new();
    for block in free {
        let from_bytes = block.bytes.checked_ilog2().map_or(0, |log| 1_u64 << log);
        let class = classes.entry(from_bytes).or_insert(FreeClass { from_bytes, blocks: 0, bytes: 0 });
        class.blocks += 1;
        class.bytes = class.bytes.saturating_add(block.bytes);
    }
    classes.into_values().collect()
}

fn pinned(snapshot: &Snapshot) -> Vec<Pinned> {
    let spaces = snapshot.segments.iter().map(|segment| (unreleasable(segment, &snapshot.conf.settings), segment));
    let mut spaces: Vec<_> = spaces.filter(|(bytes, _)| *bytes > 0).collect();
    spaces.sort_by_key(|(bytes, segment)| (std::cmp::Reverse(*bytes), segment.address));
    spaces.truncate(MAX_PINS);
    spaces.into_iter().map(|(bytes, segment)| pinned_space(snapshot, segment, bytes)).collect()
}

fn pinned_space(snapshot: &Snapshot, segment: &Segment, unreleasable_bytes: u64) -> Pinned {
    let mut live: Vec<&Block> = segment.blocks.iter().filter(|block| block.state != BlockState::Inactive).collect();
    live.sort_by_key(|block| (block.bytes, block.address));
    Pinned {
        address: segment.address.0,
        segment_bytes: segment.bytes,
        unreleasable_bytes,
        live_bytes: sum(live.iter().map(|block| block.bytes)),
        live_blocks: live.len() as u64,
        smallest: live
            .iter()
            .take(MAX_PINNING_BLOCKS)
            .map(|block| PinningBlock {
                address: block.address.0,
                requested_bytes: block.requested_bytes,
                site: sites::site_of(snapshot, block.stack),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests;
