//! Replay: what a recording would have needed under another allocator, other settings, or another limit.
//!
//! Two kinds. [`reproduce`] runs a recording under its recorder's own settings, at the recorder's own addresses, and
//! follows the segments that it gave back: a check of the model against the real allocator. [`replay`] runs it as if
//! nothing of that were known, under any settings and limit, and stops where a request fails. [`minimum_limit`] finds
//! the smallest limit on which the recording survives.

use std::collections::HashSet;

use serde::Serialize;

use super::event::{Event, Mark, Stream};
use super::policy::native::{Native, PlacedSegment};
use super::policy::{Counts, FastHash, OutOfMemory, Policy, PoolState, Settings};
use super::trace::{SegmentAction, SegmentEvent, Trace};
use crate::units::MIB;

/// The most streams that a recording may use.
const MAX_STREAMS: usize = 4096;
/// Minimum limits are multiples of this, the granularity of segments.
const LIMIT_STEP_BYTES: u64 = 2 * MIB;

/// What a replay came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replayed {
    /// The figures at the end; the peaks are the whole recording's.
    pub state: PoolState,
    /// What the policy did.
    pub counts: Counts,
    /// The largest single request.
    pub largest_request_bytes: u64,
    /// The first request that failed, by its number in the file; the replay ends there.
    pub out_of_memory: Option<(u64, OutOfMemory)>,
    /// The figures of each step, where the recording marks steps.
    pub steps: Vec<StepFigures>,
}

/// The figures of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StepFigures {
    /// The step's number.
    pub step: u32,
    /// The highest A within it.
    pub peak_allocated_bytes: u64,
    /// The highest V within it.
    pub peak_reserved_bytes: u64,
    /// A at its end.
    pub allocated_bytes: u64,
    /// V at its end.
    pub reserved_bytes: u64,
}

/// How a reproduction compares with the recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reproduced {
    /// What the replay came to.
    pub replayed: Replayed,
    /// Allocations placed at the recorder's own address.
    pub placed_same: u64,
    /// Allocations placed elsewhere.
    pub placed_other: u64,
}

/// Why a recording cannot be replayed at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// Ordinals with gaps.
    #[error("the recording numbers its allocations with gaps")]
    Ordinals,
    /// More streams than a process can have; each costs a pool of its own.
    #[error("the recording uses more than {MAX_STREAMS} streams")]
    Streams,
}

/// Replays a recording from an empty cache.
pub fn replay(trace: &Trace, settings: Settings, limit_bytes: u64) -> Result<Replayed, ReplayError> {
    let mut run = Run::new(trace, Native::with_settings(settings, limit_bytes))?;
    let mut failures = trace.failures.iter().peekable();
    for (place, event) in trace.events.iter().enumerate() {
        while let Some(failure) = failures.next_if(|failure| failure.before <= place) {
            if !run.attempt(failure.bytes, failure.stream, u64::from(failure.source)) {
                return Ok(run.finish());
            }
        }
        if !run.play(event, trace.source_of(place)) {
            return Ok(run.finish());
        }
    }
    for failure in failures {
        if !run.attempt(failure.bytes, failure.stream, u64::from(failure.source)) {
            break;
        }
    }
    Ok(run.finish())
}

/// Replays a recording under its recorder's settings, following the recorder's releases.
pub fn reproduce(trace: &Trace) -> Result<Reproduced, ReplayError> {
    let mut policy = Native::with_settings(trace.conf.settings, u64::MAX);
    for segment in &trace.segments {
        if matches!(segment.action, SegmentAction::Allocate | SegmentAction::Map) {
            policy.expect_segment(placed(segment));
        }
    }
    let mut run = Run::new(trace, policy)?;
    let (mut same, mut other) = (0, 0);
    let mut segments = trace.segments.iter().peekable();
    for (place, event) in trace.events.iter().enumerate() {
        let mut unmapped = false;
        while let Some(segment) = segments.next_if(|segment| segment.before <= place) {
            match segment.action {
                SegmentAction::Free => {
                    run.policy.release_segment(placed(segment));
                }
                // PyTorch unmaps all that it can, so the first of a run does it all.
                SegmentAction::Unmap if !unmapped => {
                    run.policy.release_cached();
                    unmapped = true;
                }
                _ => {}
            }
        }
        if !run.play(event, trace.source_of(place)) {
            break;
        }
        if let Event::Alloc { ordinal, .. } = event
            && let Some(recorded) = trace.addresses.get(ordinal.0 as usize)
        {
            let handle = run.handles.get(ordinal.0 as usize).copied();
            if handle.is_some_and(|handle| run.policy.address_of(handle) == *recorded) { same += 1 } else { other += 1 }
        }
    }
    Ok(Reproduced { replayed: run.finish(), placed_same: same, placed_other: other })
}

/// The smallest limit, in steps of 2 MiB, on which the recording survives under these settings. Survival is not
/// monotone in the limit everywhere, so this is the end of a bisection: it survives, and the step below does not.
/// `None` where it never survives.
pub fn minimum_limit(trace: &Trace, settings: Settings) -> Result<Option<u64>, ReplayError> {
    let unlimited = replay(trace, settings, u64::MAX)?;
    if unlimited.out_of_memory.is_some() {
        return Ok(None);
    }
    let mut fails = unlimited.state.peak_allocated_bytes.saturating_sub(1) / LIMIT_STEP_BYTES;
    let mut survives = unlimited.state.peak_reserved_bytes.div_ceil(LIMIT_STEP_BYTES);
    // A can be below the peak under a tighter limit, where blocks split otherwise; the requests cannot.
    fails = fails.min(survives.saturating_sub(1)) / 2;
    while survives > fails + 1 {
        let middle = fails + (survives - fails) / 2;
        if replay(trace, settings, middle * LIMIT_STEP_BYTES)?.out_of_memory.is_none() {
            survives = middle;
        } else {
            fails = middle;
        }
    }
    Ok(Some(survives * LIMIT_STEP_BYTES))
}

/// Refuses recordings of absurdly many streams.
pub(super) fn check_streams(trace: &Trace) -> Result<(), ReplayError> {
    let mut streams: HashSet<u64, FastHash> = HashSet::default();
    let events = trace.events.iter().filter_map(|event| match event {
        Event::Alloc { stream, .. } => Some(*stream),
        _ => None,
    });
    let others = trace.segments.iter().map(|segment| segment.stream);
    for stream in events.chain(others).chain(trace.failures.iter().map(|failure| failure.stream)) {
        streams.insert(stream.0);
        if streams.len() > MAX_STREAMS {
            return Err(ReplayError::Streams);
        }
    }
    Ok(())
}

fn placed(segment: &SegmentEvent) -> PlacedSegment {
    let &SegmentEvent { address, bytes, stream, .. } = segment;
    PlacedSegment { address, bytes, stream }
}

/// The handle of what is not live.
const NOT_LIVE: u32 = u32::MAX;

/// A replay in progress.
struct Run {
    policy: Native,
    /// The policy's handle of each live allocation, by ordinal.
    handles: Vec<u32>,
    largest_request_bytes: u64,
    out_of_memory: Option<(u64, OutOfMemory)>,
    steps: Vec<StepFigures>,
    step: Option<u32>,
    peak_allocated_bytes: u64,
    peak_reserved_bytes: u64,
}

impl Run {
    fn new(trace: &Trace, policy: Native) -> Result<Self, ReplayError> {
        let ordinals = trace.ordinals().ok_or(ReplayError::Ordinals)?;
        check_streams(trace)?;
        Ok(Self {
            policy,
            handles: vec![NOT_LIVE; ordinals],
            largest_request_bytes: 0,
            out_of_memory: None,
            steps: Vec::new(),
            step: None,
            peak_allocated_bytes: 0,
            peak_reserved_bytes: 0,
        })
    }

    /// Plays one event; `false` where it is a request that fails.
    fn play(&mut self, event: &Event, source: u64) -> bool {
        match *event {
            Event::Alloc { ordinal, bytes, stream } => {
                self.largest_request_bytes = self.largest_request_bytes.max(bytes);
                self.free(ordinal.0);
                match self.policy.take(bytes, stream) {
                    Ok(taken) => {
                        if let Some(handle) = self.handles.get_mut(ordinal.0 as usize) {
                            *handle = taken;
                        }
                    }
                    Err(error) => {
                        self.out_of_memory = Some((source, error));
                        return false;
                    }
                }
            }
            Event::Free { ordinal } => self.free(ordinal.0),
            Event::FreeRequested { ordinal } => {
                if let Some(handle) = self.handles.get(ordinal.0 as usize).filter(|handle| **handle != NOT_LIVE) {
                    self.policy.give_later(*handle);
                }
            }
            Event::Mark(Mark::Step(step)) => {
                self.policy.synchronised();
                self.begin_step(Some(step));
            }
            Event::Mark(Mark::Trim) => self.policy.release_cached(),
            Event::Mark(Mark::Phase(_)) => {}
        }
        true
    }

    fn free(&mut self, ordinal: u64) {
        if let Some(handle) = self.handles.get_mut(ordinal as usize) {
            let taken = std::mem::replace(handle, NOT_LIVE);
            if taken != NOT_LIVE {
                self.policy.give(taken);
            }
        }
    }

    /// Tries a request that the recorder could not meet, and frees it again.
    fn attempt(&mut self, bytes: u64, stream: Stream, source: u64) -> bool {
        self.largest_request_bytes = self.largest_request_bytes.max(bytes);
        match self.policy.take(bytes, stream) {
            Ok(handle) => {
                self.policy.give(handle);
                true
            }
            Err(error) => {
                self.out_of_memory = Some((source, error));
                false
            }
        }
    }

    /// Closes the step that is running and opens another.
    fn begin_step(&mut self, next: Option<u32>) {
        let state = self.policy.state();
        self.peak_allocated_bytes = self.peak_allocated_bytes.max(state.peak_allocated_bytes);
        self.peak_reserved_bytes = self.peak_reserved_bytes.max(state.peak_reserved_bytes);
        if let Some(step) = std::mem::replace(&mut self.step, next) {
            self.steps.push(StepFigures {
                step,
                peak_allocated_bytes: state.peak_allocated_bytes,
                peak_reserved_bytes: state.peak_reserved_bytes,
                allocated_bytes: state.allocated_bytes,
                reserved_bytes: state.reserved_bytes,
            });
        }
        self.policy.reset_peaks();
    }

    fn finish(mut self) -> Replayed {
        self.begin_step(None);
        let state = PoolState {
            peak_allocated_bytes: self.peak_allocated_bytes,
            peak_reserved_bytes: self.peak_reserved_bytes,
            ..self.policy.state()
        };
        Replayed {
            state,
            counts: self.policy.counts(),
            largest_request_bytes: self.largest_request_bytes,
            out_of_memory: self.out_of_memory,
            steps: self.steps,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Ordinal;

    fn alloc(ordinal: u64, bytes: u64) -> Event {
        Event::Alloc { ordinal: Ordinal(ordinal), bytes, stream: Stream(0) }
    }

    fn free(ordinal: u64) -> Event {
        Event::Free { ordinal: Ordinal(ordinal) }
    }

    /// Two steps of a 16 MiB tensor that alternates with a 32 MiB one.
    fn steps() -> Trace {
        let mark = |step| Event::Mark(Mark::Step(step));
        Trace::of_events(vec![
            alloc(0, 40 * MIB),
            mark(0),
            alloc(1, 16 * MIB),
            free(1),
            mark(1),
            alloc(2, 32 * MIB),
            free(2),
        ])
    }

    #[test]
    fn each_step_has_its_own_peaks_and_the_whole_has_the_highest() {
        let done = replay(&steps(), Settings::default(), u64::MAX).unwrap();
        let peaks: Vec<_> =
            done.steps.iter().map(|s| (s.step, s.peak_allocated_bytes / MIB, s.peak_reserved_bytes / MIB)).collect();
        assert_eq!(peaks, [(0, 56, 56), (1, 72, 88)]);
        assert_eq!(done.state.peak_reserved_bytes, 88 * MIB);
        assert_eq!(done.largest_request_bytes, 40 * MIB);
    }

    #[test]
    fn the_minimum_limit_survives_and_the_step_below_does_not() {
        let trace = steps();
        let minimum = minimum_limit(&trace, Settings::default()).unwrap().unwrap();
        assert_eq!(minimum, 72 * MIB, "the 16 MiB segment is released first");
        let below = replay(&trace, Settings::default(), minimum - LIMIT_STEP_BYTES).unwrap();
        assert_eq!(below.out_of_memory.unwrap().0, 5);
        let at = replay(&trace, Settings::default(), minimum).unwrap();
        assert_eq!((at.out_of_memory, at.counts.retries), (None, 1));
    }

    #[test]
    fn ordinals_with_gaps_are_refused_and_not_reserved_for() {
        let trace = Trace::of_events(vec![alloc(u64::MAX, 1)]);
        assert_eq!(replay(&trace, Settings::default(), u64::MAX), Err(ReplayError::Ordinals));
    }

    #[test]
    fn a_trim_of_the_program_is_replayed_too() {
        let mut trace =
            Trace::of_events(vec![alloc(0, 30 * MIB), free(0), Event::Mark(Mark::Trim), alloc(1, 40 * MIB)]);
        let trimmed = replay(&trace, Settings::default(), u64::MAX).unwrap();
        assert_eq!((trimmed.state.peak_reserved_bytes, trimmed.counts.segments_freed), (40 * MIB, 1));
        trace.events.remove(2);
        assert_eq!(replay(&trace, Settings::default(), u64::MAX).unwrap().state.peak_reserved_bytes, 70 * MIB);
    }

    #[test]
    fn a_recording_of_absurdly_many_streams_is_refused() {
        let alloc = |n| Event::Alloc { ordinal: Ordinal(n), bytes: 1, stream: Stream(n) };
        let trace = Trace::of_events((0..5000).map(alloc).collect());
        assert_eq!(replay(&trace, Settings::default(), u64::MAX), Err(ReplayError::Streams));
    }

    #[test]
    fn a_request_that_no_limit_meets_has_no_minimum_limit() {
        let trace = Trace::of_events(vec![alloc(0, u64::MAX)]);
        assert_eq!(minimum_limit(&trace, Settings::default()), Ok(None));
        assert_eq!(minimum_limit(&Trace::default(), Settings::default()), Ok(Some(0)));
    }
}
