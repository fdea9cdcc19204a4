//! What the allocator hook keeps: live tensors by pointer, and the events of the current window.
//!
//! The hook runs inside `malloc`, so three rules hold here. It may be re-entered: a thread-local flag lets the hook's
//! own allocations pass unseen. It must not wait for long: the lock guards a hash table and an append. It must not
//! unwind: nothing here panics.
//!
//! Recording follows rule "v1" of `research/cpu-virtual-device.md`, which makes two-probe forecasts exact: allocations
//! count on the training thread while it records, frees count from any thread at any time during a trial, and a buffer
//! that grows inside one window has its final size from the start, as if it had been asked for at once.

use std::cell::Cell;
use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::memory::policy::FastHash;
use crate::memory::{Event, Ordinal, Stream};
use crate::trial::exit_status;

/// The most events kept for one window, 384 MiB of them. A step of a large model has about 15,000.
const MAX_WINDOW_EVENTS: usize = 16 << 20;

/// How many reasons there are to call the hook: an open trial, a running probe. Zero costs one relaxed load.
static WATCHERS: AtomicUsize = AtomicUsize::new(0);
static TRIAL: Mutex<Option<Trial>> = Mutex::new(None);

thread_local! {
    /// Set while this thread is inside the hook.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// Set on the training thread while a phase runs.
    static RECORDING: Cell<bool> = const { Cell::new(false) };
    /// Set by the hook when this thread makes an allocation that it does not record.
    static PROBED: Cell<bool> = const { Cell::new(false) };
}

/// A live tensor buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer {
    ordinal: u64,
    bytes: u64,
    /// The window it was allocated in, and the place of its event there.
    window: u64,
    event: usize,
}

/// One event as the hook keeps it; `bytes` means nothing for a free.
#[derive(Clone, Copy, Debug)]
struct Record {
    ordinal: u64,
    bytes: u64,
    is_free: bool,
}

impl From<Record> for Event {
    fn from(record: Record) -> Self {
        let ordinal = Ordinal(record.ordinal);
        if record.is_free {
            Self::Free { ordinal }
        } else {
            Self::Alloc { ordinal, bytes: record.bytes, stream: Stream(0) }
        }
    }
}

/// What one trial has recorded.
struct Trial {
    /// More live bytes than this would harm the host.
    ceiling_bytes: u64,
    live: HashMap<usize, Buffer, FastHash>,
    live_bytes: u64,
    next_ordinal: u64,
    window: u64,
    records: Vec<Record>,
    overflowed: bool,
}

/// A window's events.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// In order; runs of frees are sorted by ordinal, since hash maps of tensors drop in any order.
    pub(super) events: Vec<Event>,
    /// Whether events are missing because there were too many.
    pub(super) overflowed: bool,
}

impl Trial {
    fn new(ceiling_bytes: u64) -> Self {
        Self {
            ceiling_bytes,
            live: HashMap::default(),
            live_bytes: 0,
            next_ordinal: 0,
            window: 0,
            records: Vec::new(),
            overflowed: false,
        }
    }

    fn push(&mut self, record: Record) {
        if self.records.len() < MAX_WINDOW_EVENTS {
            self.records.push(record);
        } else {
            self.overflowed = true;
        }
    }

    fn allocate(&mut self, pointer: usize, bytes: u64) {
        let ordinal = self.next_ordinal;
        self.next_ordinal += 1;
        let buffer = Buffer { ordinal, bytes, window: self.window, event: self.records.len() };
        self.push(Record { ordinal, bytes, is_free: false });
        self.insert(pointer, buffer);
    }

    fn insert(&mut self, pointer: usize, buffer: Buffer) {
        self.live.insert(pointer, buffer);
        self.live_bytes = self.live_bytes.saturating_add(buffer.bytes);
        if self.live_bytes > self.ceiling_bytes {
            leave();
        }
    }

    fn remove(&mut self, pointer: usize) -> Option<Buffer> {
        let buffer = self.live.remove(&pointer)?;
        self.live_bytes = self.live_bytes.saturating_sub(buffer.bytes);
        Some(buffer)
    }

    /// A buffer has moved to `pointer` and has `bytes` now.
    fn resize(&mut self, pointer: usize, buffer: Buffer, bytes: u64) {
        if buffer.window == self.window
            && let Some(record) = self.records.get_mut(buffer.event)
        {
            record.bytes = bytes;
            self.insert(pointer, Buffer { bytes, ..buffer });
        } else {
            self.push(Record { ordinal: buffer.ordinal, bytes: 0, is_free: true });
            self.allocate(pointer, bytes);
        }
    }
}

/// Leaves the process at once, with a status that the driver reads as out of memory. No destructor may run: the
/// thread is in the middle of an allocation.
fn leave() -> ! {
    // SAFETY: `_exit` takes any status and touches no memory of ours.
    unsafe { nix::libc::_exit(exit_status::FAR_OVER_LIMIT) }
}

/// Whether the hook has anything to do. The only cost while nothing is recorded.
#[inline]
pub(super) fn is_watching() -> bool {
    WATCHERS.load(Ordering::Relaxed) != 0
}

/// Runs `work` on the trial, unless this thread is inside the hook already or there is no trial.
fn with_trial<T>(work: impl FnOnce(&mut Trial) -> T) -> Option<T> {
    if INSIDE.replace(true) {
        return None;
    }
    let result = lock().as_mut().map(work);
    INSIDE.set(false);
    result
}

fn lock() -> MutexGuard<'static, Option<Trial>> {
    TRIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The hook: memory of a tensor's alignment was allocated.
pub(super) fn allocated(pointer: usize, bytes: usize) {
    if RECORDING.get() {
        with_trial(|trial| trial.allocate(pointer, bytes as u64));
    } else {
        PROBED.set(true);
    }
}

/// The hook: memory of a tensor's alignment is about to be freed. Called before, since the pointer may be somebody
/// else's the moment after.
pub(super) fn freed(pointer: usize) {
    with_trial(|trial| {
        if let Some(buffer) = trial.remove(pointer) {
            trial.push(Record { ordinal: buffer.ordinal, bytes: 0, is_free: true });
        }
    });
}

/// The hook: memory is about to be reallocated. What it returns goes to [`reallocated`].
pub(super) fn reallocating(pointer: usize) -> Option<Buffer> {
    with_trial(|trial| trial.remove(pointer)).flatten()
}

/// The hook: memory was reallocated to `bytes` at `pointer`. One that was not recorded before counts from here.
pub(super) fn reallocated(pointer: usize, bytes: usize, before: Option<Buffer>) {
    match before {
        Some(buffer) => {
            with_trial(|trial| trial.resize(pointer, buffer, bytes as u64));
        }
        None => allocated(pointer, bytes),
    }
}

/// The hook: reallocating failed, the memory is where it was.
pub(super) fn not_reallocated(pointer: usize, before: Option<Buffer>) {
    if let Some(buffer) = before {
        with_trial(|trial| trial.insert(pointer, buffer));
    }
}

/// Whether an allocation of `make` passes through the hook.
pub(super) fn probe(make: impl FnOnce()) -> bool {
    let recording = RECORDING.replace(false);
    WATCHERS.fetch_add(1, Ordering::SeqCst);
    PROBED.set(false);
    make();
    WATCHERS.fetch_sub(1, Ordering::SeqCst);
    RECORDING.set(recording);
    PROBED.get()
}

/// Starts a trial with nothing live. One that is open ends. The process leaves when more than `ceiling_bytes` are live.
pub(super) fn begin_trial(ceiling_bytes: u64) {
    end_trial();
    replace_trial(Some(Trial::new(ceiling_bytes)));
    WATCHERS.fetch_add(1, Ordering::SeqCst);
}

/// Ends the trial, if there is one.
pub(super) fn end_trial() {
    RECORDING.set(false);
    if replace_trial(None).is_some() {
        WATCHERS.fetch_sub(1, Ordering::SeqCst);
    }
}

fn replace_trial(trial: Option<Trial>) -> Option<Trial> {
    let inside = INSIDE.replace(true);
    let before = mem::replace(&mut *lock(), trial);
    INSIDE.set(inside);
    before
}

/// Records this thread's allocations from here on, or no longer.
pub(super) fn set_recording(recording: bool) {
    RECORDING.set(recording);
}

/// The recorded bytes that are live.
pub(super) fn live_bytes() -> u64 {
    with_trial(|trial| trial.live_bytes).unwrap_or(0)
}

/// Takes the events since the last call and starts a new window.
pub(super) fn take_window() -> Window {
    let taken = with_trial(|trial| {
        trial.window += 1;
        (mem::take(&mut trial.records), mem::take(&mut trial.overflowed))
    });
    let (mut records, overflowed) = taken.unwrap_or_default();
    for run in records.chunk_by_mut(|left, right| left.is_free && right.is_free) {
        run.sort_unstable_by_key(|record| record.ordinal);
    }
    Window { events: records.into_iter().map(Event::from).collect(), overflowed }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial() -> Trial {
        Trial::new(u64::MAX)
    }

    #[test]
    fn a_buffer_that_grows_in_its_window_has_its_final_size_from_the_start() {
        let mut trial = trial();
        trial.allocate(0x10, 64);
        trial.allocate(0x20, 8);
        let buffer = trial.remove(0x10).unwrap();
        trial.resize(0x30, buffer, 256);
        assert_eq!(trial.records.iter().map(|record| record.bytes).collect::<Vec<_>>(), [256, 8]);
        assert_eq!((trial.live_bytes, trial.live.len()), (264, 2));
    }

    #[test]
    fn a_buffer_that_grows_later_is_freed_and_allocated() {
        let mut trial = trial();
        trial.allocate(0x10, 64);
        trial.window += 1;
        trial.records.clear();
        let buffer = trial.remove(0x10).unwrap();
        trial.resize(0x10, buffer, 128);
        let shapes: Vec<_> = trial.records.iter().map(|r| (r.is_free, r.ordinal, r.bytes)).collect();
        assert_eq!(shapes, [(true, 0, 0), (false, 1, 128)]);
        assert_eq!(trial.live_bytes, 128);
    }
}
