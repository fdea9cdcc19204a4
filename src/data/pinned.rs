//! Page-locked batches: what a device can copy while the training thread does something else.
//!
//! A loader's batches lie in pageable memory. Here each is copied once more, into a page-locked buffer of a ring. The ring
//! is small, since page-locked memory is taken from everybody: a buffer for each batch that is staged on the device, one for
//! the batch that is being copied, and one for the batch to come. It is reused as soon as the device has copied a batch, and grows to the
//! largest batch there is. Where the loader has threads, the copying has one too (as PyTorch's `pin_memory` thread), so
//! that a step waits for no part of it; where the training thread loads, it also copies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use candle_core::DType;
use crossbeam_channel::{Receiver, Sender, unbounded};

use super::loader::Batches;
use super::rules::Skipped;
use super::{DataError, HostBatch, HostValues};
use crate::device::staging::{HostField, HostMemory, PageLocked, PageLocker};

/// The buffers of one batch: input and target. Empty before its first batch.
pub type Slot = Vec<Box<dyn PageLocked>>;

/// A batch on its way to a device.
#[derive(Debug)]
pub struct Fields {
    /// Input and target.
    pub fields: Vec<HostField>,
    /// Samples in the batch.
    pub samples: usize,
}

impl From<HostBatch> for Fields {
    /// The batch where it is, in pageable memory.
    fn from(batch: HostBatch) -> Self {
        let field = |values, shape| {
            let (memory, dtype) = match values {
                HostValues::U32(values) => (HostMemory::U32(values), DType::U32),
                HostValues::F32(values) => (HostMemory::F32(values), DType::F32),
            };
            HostField { memory, dtype, shape }
        };
        let fields = vec![field(batch.input, batch.input_shape), field(batch.target, batch.target_shape)];
        Self { fields, samples: batch.samples }
    }
}

/// Who copies batches into page-locked memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinnedBy {
    /// Whoever asks for them.
    Caller,
    /// A thread.
    Thread,
}

/// A ring of page-locked buffers behind a source of batches.
pub struct PinnedBatches {
    ring: Ring,
    /// Buffers in the ring, in batches.
    slots: usize,
    /// Batches that were handed over and whose buffers did not come back.
    handed_over: usize,
    skipped: Skipped,
}

enum Ring {
    Caller { filler: Filler, free: Vec<Slot> },
    Thread(Pinner),
}

impl PinnedBatches {
    /// A ring of so many buffers, one at least. Nothing is page-locked before the first batch.
    pub fn start(
        batches: Box<dyn Batches>,
        locker: Arc<dyn PageLocker>,
        slots: usize,
        by: PinnedBy,
    ) -> Result<Self, DataError> {
        let slots = slots.max(1);
        let filler = Filler { batches, locker };
        let free: Vec<Slot> = (0..slots).map(|_| Slot::new()).collect();
        let ring = match by {
            PinnedBy::Caller => Ring::Caller { filler, free },
            PinnedBy::Thread => Ring::Thread(Pinner::start(filler, free)?),
        };
        Ok(Self { ring, slots, handed_over: 0, skipped: Skipped::default() })
    }

    /// The next batch; blocks until it is ready. An error where all buffers are handed over: nobody would ever fill one.
    pub fn next_batch(&mut self) -> Result<Fields, DataError> {
        if self.is_exhausted() {
            return Err(DataError::PageLock { reason: "all buffers of the ring are in use".to_owned() });
        }
        let filled = match &mut self.ring {
            Ring::Caller { filler, free } => filler.fill(free.pop().unwrap_or_default())?,
            Ring::Thread(pinner) => pinner.filled.recv().map_err(|_| DataError::WorkerEnded)??,
        };
        self.handed_over += 1;
        self.skipped = filled.skipped;
        Ok(filled.fields)
    }

    /// Takes back the buffers of a batch that was copied.
    pub fn give_back(&mut self, slot: Slot) {
        self.handed_over = self.handed_over.saturating_sub(1);
        match &mut self.ring {
            Ring::Caller { free, .. } => free.push(slot),
            Ring::Thread(pinner) => {
                if let Some(free) = &pinner.free {
                    // A thread that is gone is found when its batch is waited for.
                    let _ = free.send(slot);
                }
            }
        }
    }

    /// Whether a buffer has to come back before there can be another batch.
    pub fn is_exhausted(&self) -> bool {
        self.handed_over >= self.slots
    }

    /// What was skipped for the batches handed over so far.
    pub fn skipped(&self) -> &Skipped {
        &self.skipped
    }
}

/// A batch in page-locked memory, and what was skipped up to it.
struct Filled {
    fields: Fields,
    skipped: Skipped,
}

/// Fills buffers.
struct Filler {
    batches: Box<dyn Batches>,
    locker: Arc<dyn PageLocker>,
}

impl Filler {
    fn fill(&mut self, slot: Slot) -> Result<Filled, DataError> {
        let batch = self.batches.next_batch()?;
        let mut buffers = slot.into_iter();
        let samples = batch.samples;
        let fields = [(batch.input, batch.input_shape), (batch.target, batch.target_shape)];
        let fields = fields.into_iter().map(|(values, shape)| self.field(buffers.next(), &values, shape));
        let fields = fields.collect::<Result<_, _>>()?;
        Ok(Filled { fields: Fields { fields, samples }, skipped: self.batches.skipped() })
    }

    fn field(
        &self,
        buffer: Option<Box<dyn PageLocked>>,
        values: &HostValues,
        shape: Vec<usize>,
    ) -> Result<HostField, DataError> {
        let words = match values {
            HostValues::U32(values) => values.len(),
            HostValues::F32(values) => values.len(),
        };
        let mut buffer = match buffer.filter(|buffer| buffer.words().len() >= words) {
            Some(buffer) => buffer,
            // The smaller one, if there was one, is gone by now.
            None => self.locker.lock(words).map_err(|reason| DataError::PageLock { reason })?,
        };
        let room = buffer.words_mut();
        let dtype = match values {
            HostValues::U32(values) => {
                room.iter_mut().zip(values).for_each(|(word, value)| *word = *value);
                DType::U32
            }
            HostValues::F32(values) => {
                room.iter_mut().zip(values).for_each(|(word, value)| *word = value.to_bits());
                DType::F32
            }
        };
        Ok(HostField { memory: HostMemory::PageLocked(buffer), dtype, shape })
    }
}

/// The thread that fills buffers.
struct Pinner {
    /// `None` once it is being dropped: the thread leaves when no buffer can come any more.
    free: Option<Sender<Slot>>,
    filled: Receiver<Result<Filled, DataError>>,
    /// Makes the loader leave in the middle of a batch.
    stop: Option<Arc<AtomicBool>>,
    thread: Option<JoinHandle<()>>,
}

impl Pinner {
    fn start(mut filler: Filler, slots: Vec<Slot>) -> Result<Self, DataError> {
        let stop = filler.batches.stop_flag();
        // What is out is bounded by the slots, so neither side ever waits to send.
        let (free, taken) = unbounded::<Slot>();
        let (made, batches) = unbounded();
        let thread = thread::Builder::new().name("pin-memory".to_owned()).spawn(move || {
            for slot in taken {
                let batch = filler.fill(slot);
                let is_last = batch.is_err();
                if made.send(batch).is_err() || is_last {
                    return;
                }
            }
        });
        let thread = thread.map_err(|error| DataError::PageLock { reason: format!("no thread for it: {error}") })?;
        for slot in slots {
            let _ = free.send(slot);
        }
        Ok(Self { free: Some(free), filled: batches, stop, thread: Some(thread) })
    }
}

impl Drop for Pinner {
    fn drop(&mut self) {
        self.free = None;
        if let Some(stop) = &self.stop {
            stop.store(true, Ordering::Relaxed);
        }
        if let Some(thread) = self.thread.take() {
            // A loader reports a panic of its data set as an error; any other has been printed.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::data::loader::{Loader, LoaderConfig};
    use crate::data::synthetic::Synthetic;
    use crate::data::{Dataset, InputSpec};

    #[derive(Debug)]
    struct Plain(Vec<u32>);

    impl PageLocked for Plain {
        fn words(&self) -> &[u32] {
            &self.0
        }
        fn words_mut(&mut self) -> &mut [u32] {
            &mut self.0
        }
    }

    /// Counts the buffers that it gave, and refuses those that are too large.
    struct Counting {
        given: AtomicUsize,
        largest: usize,
    }

    impl PageLocker for Counting {
        fn lock(&self, words: usize) -> Result<Box<dyn PageLocked>, String> {
            if words > self.largest {
                return Err(format!("no room for {words} words"));
            }
            self.given.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(Plain(vec![0; words])))
        }
    }

    fn locker(largest: usize) -> Arc<Counting> {
        Arc::new(Counting { given: AtomicUsize::new(0), largest })
    }

    fn loader(workers: usize) -> Loader {
        let input = InputSpec::Features { shape: vec![2, 3], classes: 5 };
        let dataset: Arc<dyn Dataset> = Arc::new(Synthetic::new(&input, 1).unwrap());
        Loader::start(dataset, LoaderConfig { batch_size: 3, workers, prefetch_depth: 1, seed: 0 })
    }

    fn words(field: &HostField) -> Vec<u32> {
        let HostMemory::PageLocked(buffer) = &field.memory else { panic!("{field:?}") };
        buffer.words()[..field.shape.iter().product()].to_vec()
    }

    fn slot(fields: Fields) -> Slot {
        let buffer = |field: HostField| match field.memory {
            HostMemory::PageLocked(buffer) => buffer,
            other => panic!("{other:?}"),
        };
        fields.fields.into_iter().map(buffer).collect()
    }

    const EACH: [(PinnedBy, usize); 3] = [(PinnedBy::Caller, 0), (PinnedBy::Thread, 0), (PinnedBy::Thread, 2)];

    #[test]
    fn batches_come_as_they_are_and_in_order_through_a_ring_that_is_reused() {
        for (by, workers) in EACH {
            let (locker, mut expected) = (locker(usize::MAX), loader(0));
            let ring: Arc<dyn PageLocker> = locker.clone();
            let mut pinned = PinnedBatches::start(Box::new(loader(workers)), ring, 2, by).unwrap();
            for _ in 0..20 {
                let (batch, fields) = (expected.next_batch().unwrap(), pinned.next_batch().unwrap());
                let HostValues::F32(input) = &batch.input else { panic!("{batch:?}") };
                let HostValues::U32(target) = &batch.target else { panic!("{batch:?}") };
                assert_eq!(words(&fields.fields[0]), input.iter().map(|value| value.to_bits()).collect::<Vec<_>>());
                assert_eq!(words(&fields.fields[1]), *target);
                assert_eq!((&fields.fields[0].shape, fields.samples), (&batch.input_shape, 3));
                assert_eq!([fields.fields[0].dtype, fields.fields[1].dtype], [DType::F32, DType::U32]);
                pinned.give_back(slot(fields));
            }
            assert!(locker.given.load(Ordering::Relaxed) <= 4, "{by:?}: input and target of two batches");
        }
    }

    #[test]
    fn a_ring_whose_buffers_are_all_out_says_so_and_goes_on_when_one_is_back() {
        for (by, workers) in EACH {
            let mut pinned = PinnedBatches::start(Box::new(loader(workers)), locker(usize::MAX), 2, by).unwrap();
            let first = pinned.next_batch().unwrap();
            assert!(!pinned.is_exhausted());
            let _second = pinned.next_batch().unwrap();
            assert!(pinned.is_exhausted());
            assert!(matches!(pinned.next_batch(), Err(DataError::PageLock { .. })));
            pinned.give_back(slot(first));
            assert!(pinned.next_batch().is_ok(), "{by:?}");
        }
    }

    #[test]
    fn a_host_that_locks_no_more_memory_is_an_error_with_its_reason() {
        for (by, workers) in EACH {
            let mut pinned = PinnedBatches::start(Box::new(loader(workers)), locker(17), 2, by).unwrap();
            let error = pinned.next_batch().unwrap_err().to_string();
            assert!(error.contains("no room for 18 words"), "{error}");
        }
    }

    /// Batches that grow and shrink.
    struct Varying(usize);

    impl Batches for Varying {
        fn next_batch(&mut self) -> Result<HostBatch, DataError> {
            self.0 += 1;
            let length = [4, 9, 2, 9, 1][self.0 % 5];
            let values = || HostValues::U32(vec![length as u32; length]);
            let shape = || vec![1, length];
            Ok(HostBatch {
                input: values(),
                input_shape: shape(),
                target: values(),
                target_shape: shape(),
                samples: 1,
                ballast: Vec::new(),
            })
        }
    }

    #[test]
    fn buffers_grow_to_the_largest_batch_and_stay() {
        let locker = locker(usize::MAX);
        let ring: Arc<dyn PageLocker> = locker.clone();
        let mut pinned = PinnedBatches::start(Box::new(Varying(0)), ring, 1, PinnedBy::Caller).unwrap();
        for batch in 1..30 {
            let fields = pinned.next_batch().unwrap();
            let length = [4, 9, 2, 9, 1][batch % 5];
            assert_eq!(words(&fields.fields[0]), vec![length as u32; length]);
            pinned.give_back(slot(fields));
        }
        assert_eq!(locker.given.load(Ordering::Relaxed), 2, "the first batch was of the largest");
    }

    #[test]
    fn dropping_it_ends_the_thread_in_the_middle_of_a_batch() {
        let input = InputSpec::Features { shape: vec![2, 3], classes: 5 };
        let slow = Synthetic::new(&input, 1).unwrap().with_load(std::time::Duration::from_millis(20), 0);
        let config = LoaderConfig { batch_size: 100_000, workers: 1, prefetch_depth: 1, seed: 0 };
        let loader = Loader::start(Arc::new(slow), config);
        // Half an hour of work is asked for.
        drop(PinnedBatches::start(Box::new(loader), locker(usize::MAX), 1, PinnedBy::Thread).unwrap());
    }
}
