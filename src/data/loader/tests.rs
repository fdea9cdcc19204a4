//! The loader's contract over workers × prefetch depth.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::data::{HostValues, Sample};

const DEPTHS: [usize; 3] = [0, 1, 2];
const WORKERS: [usize; 4] = [0, 1, 2, 4];

/// Sample `i` is the number `i`; some fail or panic.
#[derive(Default)]
struct Numbers {
    len: usize,
    broken: Option<usize>,
    panicking: Option<usize>,
    /// Samples made so far.
    made: AtomicUsize,
    /// Slows each sample down.
    pause: Duration,
}

impl Numbers {
    fn new(len: usize) -> Self {
        Self { len, ..Self::default() }
    }
}

impl Dataset for Numbers {
    fn len(&self) -> usize {
        self.len
    }
    fn sample(&self, index: usize) -> Result<Sample, DataError> {
        self.made.fetch_add(1, Ordering::SeqCst);
        thread::sleep(self.pause);
        if self.broken == Some(index) {
            return Err(DataError::NoSuchSample { index, samples: self.len });
        }
        assert!(self.panicking != Some(index), "sample {index} is cursed");
        Ok(Sample { input: HostValues::U32(vec![index as u32]), target: HostValues::F32(vec![index as f32]) })
    }
    fn input_shape(&self) -> Vec<usize> {
        vec![1]
    }
    fn target_shape(&self) -> Vec<usize> {
        vec![1]
    }
}

fn config(workers: usize, prefetch_depth: usize) -> LoaderConfig {
    LoaderConfig { batch_size: 4, workers, prefetch_depth, seed: 9 }
}

fn loaders(dataset: &Arc<Numbers>) -> impl Iterator<Item = (String, Loader)> {
    WORKERS.into_iter().flat_map(|workers| DEPTHS.map(|depth| (workers, depth))).map(|(workers, depth)| {
        let dataset: Arc<dyn Dataset> = Arc::<Numbers>::clone(dataset);
        (format!("{workers} workers × {depth}"), Loader::start(dataset, config(workers, depth)))
    })
}

fn numbers(batch: HostBatch) -> Vec<u32> {
    assert_eq!((batch.input_shape, batch.target_shape, batch.samples), (vec![4, 1], vec![4, 1], 4));
    match (batch.input, batch.target) {
        (HostValues::U32(input), HostValues::F32(target)) => {
            assert!(input.iter().zip(target).all(|(input, target)| *input == target as u32));
            input
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_batches_are_the_same_for_any_workers_and_depth() {
    let dataset = Arc::new(Numbers::new(23));
    let mut expected: Option<Vec<Vec<u32>>> = None;
    for (name, mut loader) in loaders(&dataset) {
        let batches: Vec<Vec<u32>> = (0..17).map(|_| numbers(loader.next_batch().unwrap())).collect();
        match &expected {
            None => expected = Some(batches),
            Some(expected) => assert_eq!(&batches, expected, "{name}"),
        }
    }
}

#[test]
fn an_epoch_holds_every_sample_once() {
    let dataset = Arc::new(Numbers::new(24));
    for (name, mut loader) in loaders(&dataset) {
        let mut orders = Vec::new();
        for epoch in 0..3 {
            let order: Vec<u32> = (0..6).flat_map(|_| numbers(loader.next_batch().unwrap())).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..24).collect::<Vec<_>>(), "{name}, epoch {epoch}");
            orders.push(order);
        }
        assert_ne!(orders[0], orders[1], "{name}: epochs are shuffled anew");
    }
}

#[test]
fn a_dataset_smaller_than_the_batch_is_repeated() {
    let dataset = Arc::new(Numbers::new(2));
    for (name, mut loader) in loaders(&dataset) {
        let mut counts = BTreeMap::new();
        for number in numbers(loader.next_batch().unwrap()) {
            *counts.entry(number).or_insert(0) += 1;
        }
        assert_eq!(counts, BTreeMap::from([(0, 2), (1, 2)]), "{name}");
    }
}

#[test]
fn dropping_the_loader_leaves_no_thread() {
    let dataset = Arc::new(Numbers::new(24));
    for (name, mut loader) in loaders(&dataset) {
        for _ in 0..3 {
            loader.next_batch().unwrap();
        }
        drop(loader);
        assert_eq!(Arc::strong_count(&dataset), 1, "{name}");
    }
}

#[test]
fn dropping_in_mid_flight_does_not_wait_for_the_batches_that_nobody_wants() {
    let pause = Duration::from_millis(1);
    let dataset = Arc::new(Numbers { pause, ..Numbers::new(1_000_000) });
    let config = LoaderConfig { batch_size: 100_000, workers: 4, prefetch_depth: 2, seed: 0 };
    let loader = Loader::start(Arc::<Numbers>::clone(&dataset), config);
    let (done, waiting) = mpsc::channel();
    thread::spawn(move || {
        drop(loader);
        done.send(()).unwrap();
    });
    // The batches would take 800 s; a minute is for a machine that has other things to do.
    waiting.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(Arc::strong_count(&dataset), 1);
}

#[test]
fn a_broken_sample_is_an_error_of_its_batch_alone() {
    let sound = Arc::new(Numbers::new(24));
    let expected: Vec<Vec<u32>> = {
        let mut loader = Loader::start(sound, config(0, 0));
        (0..12).map(|_| numbers(loader.next_batch().unwrap())).collect()
    };
    let dataset = Arc::new(Numbers { broken: Some(11), ..Numbers::new(24) });
    for (name, mut loader) in loaders(&dataset) {
        for expected in &expected {
            match loader.next_batch() {
                Ok(batch) => assert_eq!(&numbers(batch), expected, "{name}"),
                Err(DataError::NoSuchSample { index: 11, .. }) => assert!(expected.contains(&11), "{name}"),
                Err(error) => panic!("{name}: {error}"),
            }
        }
    }
}

#[test]
fn a_panic_is_reported_with_its_batch_and_its_message() {
    let dataset = Arc::new(Numbers { panicking: Some(11), ..Numbers::new(24) });
    for (name, mut loader) in loaders(&dataset) {
        let mut panics = 0;
        for _ in 0..12 {
            match loader.next_batch() {
                Ok(batch) => assert!(!numbers(batch).contains(&11), "{name}"),
                Err(DataError::WorkerPanicked(message)) => {
                    assert_eq!(message, "sample 11 is cursed", "{name}");
                    panics += 1;
                }
                Err(error) => panic!("{name}: {error}"),
            }
        }
        assert_eq!(panics, 2, "{name}: once an epoch");
        drop(loader);
        assert_eq!(Arc::strong_count(&dataset), 1, "{name}");
    }
}

#[test]
fn no_more_is_loaded_ahead_than_the_depth_allows() {
    for (workers, depth) in [(1, 0), (4, 0), (1, 1), (2, 2), (4, 1)] {
        let dataset = Arc::new(Numbers::new(1000));
        let config = config(workers, depth);
        let mut loader = Loader::start(Arc::<Numbers>::clone(&dataset), config);
        for delivered in 1..=5 {
            loader.next_batch().unwrap();
            // What was delivered and what may be ahead of it; more would never come, so this cannot fail by chance.
            let most = 4 * (delivered + config.batches_in_memory() - 1);
            assert!(dataset.made.load(Ordering::SeqCst) <= most, "{workers} × {depth}");
        }
    }
}

#[test]
fn nothing_is_loaded_before_it_is_asked_for_at_depth_zero() {
    let dataset = Arc::new(Numbers::new(24));
    let mut loader = Loader::start(Arc::<Numbers>::clone(&dataset), config(4, 0));
    for delivered in 1..=5 {
        loader.next_batch().unwrap();
        assert_eq!(dataset.made.load(Ordering::SeqCst), 4 * delivered);
    }
}

#[test]
fn the_memory_bound_counts_the_batch_in_use() {
    assert_eq!(config(0, 2).batches_in_memory(), 1);
    assert_eq!(config(4, 0).batches_in_memory(), 1);
    assert_eq!(config(4, 2).batches_in_memory(), 9);
}
