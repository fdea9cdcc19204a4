//! The book of device memory: which blocks live, how much that is, and what happened.
//!
//! Pure accounting, called by the hook with a short lock held, some 28,000 times in a step of GPT-2 medium. An entry
//! costs a look-up in one table with a multiplicative hash and a few additions, so that the lock is held for tens of
//! nanoseconds; splitting the table would cost the exactness of the peak and gain nothing for a single training
//! thread.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::memory::{Event, Mark, Ordinal, Stream};

/// A request that the driver refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The bytes asked for.
    pub bytes: u64,
    /// The driver's code.
    pub code: u32,
    /// Live bytes at that moment.
    pub live_bytes: u64,
}

/// The figures of the book. The last two count since the last [`Ledger::start_window`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that the driver met, since the process started.
    pub allocations: u64,
    /// Blocks given back, since the process started.
    pub frees: u64,
    /// Requests that the driver refused, since the process started.
    pub failures: u64,
    /// Bytes of live blocks, as asked for.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// The highest `live_bytes` of the window.
    pub peak_bytes: u64,
    /// The largest request of the window, met or not.
    pub largest_request_bytes: u64,
}

/// Events since recording began, up to a bound.
#[derive(Debug, Default)]
pub struct Recording {
    /// The events in order.
    pub events: Vec<Event>,
    /// Events that came after the bound was reached. The recording is a true prefix of what happened if this is 0.
    pub dropped: u64,
}

impl Recording {
    /// Puts every run of frees into the order of their ordinals: hash maps of tensors drop in any order, and two
    /// recordings of the same step are to be the same.
    pub(super) fn sort_runs_of_frees(&mut self) {
        let ordinal = |event: &Event| match event {
            Event::Free { ordinal } => Some(*ordinal),
            Event::Alloc { .. } | Event::FreeRequested { .. } | Event::Mark(_) => None,
        };
        for run in self.events.chunk_by_mut(|left, right| ordinal(left).is_some() && ordinal(right).is_some()) {
            run.sort_unstable_by_key(ordinal);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Block {
    bytes: u64,
    serial: u64,
}

#[derive(Debug)]
struct Recorder {
    first_serial: u64,
    capacity: usize,
    recording: Recording,
}

impl Recorder {
    fn push(&mut self, event: Event) {
        if self.recording.events.len() < self.capacity {
            self.recording.events.push(event);
        } else {
            self.recording.dropped += 1;
        }
    }
}

/// Spreads device pointers, which are multiples of 512, over a hash table (Fibonacci hashing; Knuth, TAOCP 3, 6.4).
#[derive(Clone, Copy, Debug, Default)]
struct PointerHasher(u64);

impl Hasher for PointerHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, pointer: u64) {
        // The product's high bits are the well mixed ones, and the table reads the low and the highest seven.
        self.0 = pointer.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The book itself.
#[derive(Debug)]
pub(super) struct Ledger {
    blocks: HashMap<u64, Block, BuildHasherDefault<PointerHasher>>,
    counts: Counts,
    failure: Option<Failure>,
    recorder: Option<Recorder>,
}

impl Ledger {
    /// An empty book.
    pub(super) const fn new() -> Self {
        Self {
            blocks: HashMap::with_hasher(BuildHasherDefault::new()),
            counts: Counts {
                allocations: 0,
                frees: 0,
                failures: 0,
                live_bytes: 0,
                live_blocks: 0,
                peak_bytes: 0,
                largest_request_bytes: 0,
            },
            failure: None,
            recorder: None,
        }
    }

    /// Enters a block that the driver handed out.
    pub(super) fn allocated(&mut self, pointer: u64, bytes: u64, stream: impl FnOnce() -> Stream) {
        let serial = self.counts.allocations;
        let counts = &mut self.counts;
        counts.allocations += 1;
        counts.live_blocks += 1;
        counts.live_bytes = counts.live_bytes.saturating_add(bytes);
        counts.peak_bytes = counts.peak_bytes.max(counts.live_bytes);
        counts.largest_request_bytes = counts.largest_request_bytes.max(bytes);
        if let Some(lost) = self.blocks.insert(pointer, Block { bytes, serial }) {
            // The driver gave out an address that was never seen to come back: somebody freed it past the hook.
            self.forget(lost);
        }
        if let Some(recorder) = &mut self.recorder {
            let ordinal = Ordinal(serial - recorder.first_serial);
            recorder.push(Event::Alloc { ordinal, bytes, stream: stream() });
        }
    }

    /// Strikes a block out. Returns what is needed to enter it again should the driver refuse to free it; `None` for
    /// a pointer that the book does not know.
    pub(super) fn freed(&mut self, pointer: u64) -> Option<u64> {
        let block = self.blocks.remove(&pointer)?;
        self.counts.frees += 1;
        self.forget(block);
        Some(block.bytes)
    }

    /// Enters a refused request.
    pub(super) fn refused(&mut self, bytes: u64, code: u32) {
        self.counts.failures += 1;
        self.counts.largest_request_bytes = self.counts.largest_request_bytes.max(bytes);
        self.failure = Some(Failure { bytes, code, live_bytes: self.counts.live_bytes });
    }

    fn forget(&mut self, block: Block) {
        self.counts.live_blocks = self.counts.live_blocks.saturating_sub(1);
        self.counts.live_bytes = self.counts.live_bytes.saturating_sub(block.bytes);
        if let Some(recorder) = &mut self.recorder
            && let Some(ordinal) = block.serial.checked_sub(recorder.first_serial)
        {
            recorder.push(Event::Free { ordinal: Ordinal(ordinal) });
        }
    }

    /// The figures now.
    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Starts a new window for the peak and the largest request.
    pub(super) fn start_window(&mut self) {
        self.counts.peak_bytes = self.counts.live_bytes;
        self.counts.largest_request_bytes = 0;
    }

    /// The last refused request since this was last asked.
    pub(super) fn take_failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }

    /// The last refused request, left where it is.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Starts a recording of at most `capacity` events. Blocks that live already are not part of it.
    pub(super) fn record(&mut self, capacity: usize) {
        let first_serial = self.counts.allocations;
        self.recorder = Some(Recorder { first_serial, capacity, recording: Recording::default() });
    }

    /// The events since the last call; recording goes on.
    pub(super) fn drain(&mut self) -> Recording {
        self.recorder.as_mut().map(|recorder| std::mem::take(&mut recorder.recording)).unwrap_or_default()
    }

    /// The events since the last [`drain`](Self::drain); recording ends.
    pub(super) fn stop(&mut self) -> Recording {
        self.recorder.take().map(|recorder| recorder.recording).unwrap_or_default()
    }

    /// Enters a mark into a running recording.
    pub(super) fn mark(&mut self, mark: Mark) {
        if let Some(recorder) = &mut self.recorder {
            recorder.push(Event::Mark(mark));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Stream {
        Stream(2)
    }

    #[test]
    fn live_bytes_and_peak_follow_blocks_that_come_and_go() {
        let mut ledger = Ledger::new();
        ledger.allocated(512, 100, stream);
        ledger.allocated(1024, 50, stream);
        assert_eq!(ledger.freed(512), Some(100));
        let counts = ledger.counts();
        assert_eq!((counts.live_bytes, counts.live_blocks, counts.peak_bytes), (50, 1, 150));
        assert_eq!(counts.largest_request_bytes, 100);
        ledger.start_window();
        let counts = ledger.counts();
        assert_eq!((counts.peak_bytes, counts.largest_request_bytes), (50, 0));
    }

    #[test]
    fn an_unknown_pointer_changes_nothing() {
        let mut ledger = Ledger::new();
        ledger.allocated(512, 100, stream);
        assert_eq!(ledger.freed(4096), None);
        assert_eq!(ledger.counts().live_bytes, 100);
        assert_eq!(ledger.counts().frees, 0);
    }

    #[test]
    fn an_address_freed_past_the_hook_is_not_counted_twice() {
        let mut ledger = Ledger::new();
        ledger.allocated(512, 100, stream);
        ledger.allocated(512, 30, stream);
        assert_eq!((ledger.counts().live_bytes, ledger.counts().live_blocks), (30, 1));
    }

    #[test]
    fn a_recording_counts_from_zero_and_knows_no_earlier_blocks() {
        let mut ledger = Ledger::new();
        ledger.allocated(512, 1, stream);
        ledger.record(16);
        ledger.mark(Mark::Step(0));
        ledger.allocated(1024, 7, stream);
        ledger.freed(512);
        ledger.freed(1024);
        let recording = ledger.stop();
        assert_eq!(recording.dropped, 0);
        assert_eq!(
            recording.events,
            [
                Event::Mark(Mark::Step(0)),
                Event::Alloc { ordinal: Ordinal(0), bytes: 7, stream: Stream(2) },
                Event::Free { ordinal: Ordinal(0) },
            ]
        );
        ledger.allocated(2048, 7, stream);
        assert!(ledger.drain().events.is_empty(), "recording has ended");
    }

    #[test]
    fn runs_of_frees_are_sorted_and_nothing_else_moves() {
        let (free, alloc) = (
            |ordinal| Event::Free { ordinal: Ordinal(ordinal) },
            |ordinal| Event::Alloc { ordinal: Ordinal(ordinal), bytes: 1, stream: Stream(2) },
        );
        let events = vec![alloc(9), free(5), free(3), free(4), alloc(1), free(2), free(0)];
        let mut recording = Recording { events, dropped: 0 };
        recording.sort_runs_of_frees();
        assert_eq!(recording.events, [alloc(9), free(3), free(4), free(5), alloc(1), free(0), free(2)]);
    }

    #[test]
    fn a_recording_is_bounded_and_says_what_it_dropped() {
        let mut ledger = Ledger::new();
        ledger.record(2);
        for pointer in 1..=5 {
            ledger.allocated(pointer * 512, 1, stream);
        }
        let recording = ledger.drain();
        assert_eq!((recording.events.len(), recording.dropped), (2, 3));
        ledger.freed(512);
        assert_eq!(ledger.drain().events, [Event::Free { ordinal: Ordinal(0) }], "a drained recording has room again");
    }

    #[test]
    fn a_refused_request_is_told_once_with_its_size() {
        let mut ledger = Ledger::new();
        ledger.allocated(512, 100, stream);
        ledger.refused(1 << 40, 2);
        let failure = Failure { bytes: 1 << 40, code: 2, live_bytes: 100 };
        assert_eq!(ledger.failure(), Some(failure));
        assert_eq!(ledger.take_failure(), Some(failure));
        assert_eq!(ledger.take_failure(), None);
        assert_eq!(ledger.counts().failures, 1);
    }
}
