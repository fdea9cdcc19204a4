//! Endless batches, loaded by worker threads ahead of the training thread.
//!
//! Batch `n` is made by worker `n mod workers`, and each worker answers in the order it was asked. So the batches and
//! their order depend on the seed alone, whatever the number of workers, and no batch waits in a buffer for an earlier
//! one. As in PyTorch's `DataLoader`, `prefetch_depth` counts batches per worker: as many requests as
//! `workers × prefetch_depth` are out, and a new one is sent when a batch is handed over. That bounds the memory to
//! [`LoaderConfig::batches_in_memory`]. With a depth of 0 a request is sent when the batch is asked for.
//!
//! What a batch may be like beside its size is said by [`BatchRules`]: its last one, bad samples, lengths, sides. All of
//! it depends on the number of the batch, so it is the same for any workers, too.
//!
//! A sample that fails, or a dataset that panics, is an error of the batch it belongs to, and of no other: asking on
//! gives the batches after it. Dropping the loader stops its threads between two samples and waits for them.

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::collate::{self, Made, Request};
use super::order::Order;
use super::rules::{BatchRules, Skipped};
use super::{DataError, Dataset, HostBatch};

/// How to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoaderConfig {
    /// Samples per batch.
    pub batch_size: usize,
    /// Threads; 0 loads in the thread that calls [`Loader::next_batch`].
    pub workers: usize,
    /// Batches that each thread keeps ready, as PyTorch counts them; 0 loads on demand.
    pub prefetch_depth: usize,
    /// Seeds the order of each epoch.
    pub seed: u64,
}

impl LoaderConfig {
    /// The most batches in host memory at a time, the one in use included.
    pub fn batches_in_memory(&self) -> usize {
        self.workers.saturating_mul(self.prefetch_depth).saturating_add(1)
    }
}

/// Where batches come from: a loader, or what stands in its place.
pub trait Batches: Send {
    /// The next batch; blocks until it is ready.
    fn next_batch(&mut self) -> Result<HostBatch, DataError>;

    /// What was skipped for the batches so far.
    fn skipped(&self) -> Skipped {
        Skipped::default()
    }

    /// What makes whoever loads leave in the middle of a batch, for one that is waiting for it on another thread.
    fn stop_flag(&self) -> Option<Arc<AtomicBool>> {
        None
    }
}

/// Endless batches in an order that depends on the seed alone, not on the number of workers.
pub struct Loader {
    order: Order,
    rules: BatchRules,
    config: LoaderConfig,
    source: Source,
    /// Batches requested so far.
    requested: u64,
    /// Batches handed over so far, those that failed included.
    delivered: u64,
    /// Requests that are sent ahead.
    ahead: u64,
    skipped: Skipped,
    waited: Duration,
}

/// Who makes the batches.
enum Source {
    /// The caller of `next_batch`.
    Caller(Arc<dyn Dataset>),
    /// Threads.
    Pool(Pool),
    /// Nobody: a thread could not be started.
    Failed { worker: usize, workers: usize, kind: io::ErrorKind },
}

impl Loader {
    /// Starts the threads. If the system refuses one, the first batch is the error that says so.
    pub fn start(dataset: Arc<dyn Dataset>, config: LoaderConfig) -> Self {
        Self::with_rules(dataset, config, BatchRules::default())
    }

    /// The same with rules for the batches.
    pub fn with_rules(dataset: Arc<dyn Dataset>, config: LoaderConfig, rules: BatchRules) -> Self {
        let order = Order::new(dataset.len(), config.batch_size, config.seed);
        let order = order.with_last_batch(rules.last_batch).with_shard(rules.shard);
        let source = match config.workers {
            0 => Source::Caller(dataset),
            workers => match Pool::start(&dataset, rules, workers) {
                Ok(pool) => Source::Pool(pool),
                Err((worker, error)) => Source::Failed { worker, workers, kind: error.kind() },
            },
        };
        let ahead = config.workers.saturating_mul(config.prefetch_depth) as u64;
        let (skipped, waited) = (Skipped::default(), Duration::ZERO);
        let mut loader = Self { order, rules, config, source, requested: 0, delivered: 0, ahead, skipped, waited };
        loader.request();
        loader
    }

    /// The next batch; blocks until it is ready.
    pub fn next_batch(&mut self) -> Result<HostBatch, DataError> {
        let asked = Instant::now();
        let number = self.delivered;
        self.delivered += 1;
        let made = match &self.source {
            Source::Caller(dataset) => make(dataset.as_ref(), &self.rules, &self.batch(number), &|| false),
            Source::Pool(pool) => {
                if self.requested <= number {
                    pool.request(number, self.batch(number));
                    self.requested = number + 1;
                }
                pool.receive(number)
            }
            Source::Failed { worker, workers, kind } => {
                let source = io::Error::from(*kind);
                Answer::failed(DataError::WorkerNotStarted { worker: *worker, workers: *workers, source })
            }
        };
        self.request();
        self.skipped.add(made.skipped);
        self.waited += asked.elapsed();
        made.batch
    }

    /// How it loads.
    pub fn config(&self) -> LoaderConfig {
        self.config
    }

    /// What was skipped for the batches handed over so far. As it goes by batches, it does not depend on the workers
    /// either.
    pub fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    /// How long the caller was blocked in [`next_batch`](Self::next_batch) so far: waiting for threads, or, without
    /// any, loading.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    fn batch(&self, number: u64) -> Request {
        let is_longest = self.rules.longest.includes(number);
        let side = self.rules.sides.map(|sides| if is_longest { sides.largest() } else { sides.of_batch(number) });
        Request { places: self.order.batch(number), is_longest, side }
    }

    /// Sends requests up to the depth.
    fn request(&mut self) {
        let Source::Pool(pool) = &self.source else { return };
        while self.requested < self.delivered.saturating_add(self.ahead) {
            pool.request(self.requested, self.batch(self.requested));
            self.requested += 1;
        }
    }
}

impl Batches for Loader {
    fn next_batch(&mut self) -> Result<HostBatch, DataError> {
        Self::next_batch(self)
    }

    fn skipped(&self) -> Skipped {
        Self::skipped(self).clone()
    }

    fn stop_flag(&self) -> Option<Arc<AtomicBool>> {
        match &self.source {
            Source::Pool(pool) => Some(Arc::clone(&pool.stop)),
            Source::Caller(_) | Source::Failed { .. } => None,
        }
    }
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader").field("order", &self.order).field("delivered", &self.delivered).finish_non_exhaustive()
    }
}

/// What a worker says to a request.
struct Answer {
    batch: Result<HostBatch, DataError>,
    skipped: Skipped,
}

impl Answer {
    fn failed(error: DataError) -> Self {
        Self { batch: Err(error), skipped: Skipped::default() }
    }
}

/// The worker threads.
struct Pool {
    workers: Vec<Worker>,
    stop: Arc<AtomicBool>,
}

/// One worker thread, seen from outside.
struct Worker {
    /// `None` once the pool is being dropped: a thread leaves when nobody can ask it any more.
    requests: Option<Sender<Request>>,
    batches: Receiver<Answer>,
    thread: Option<JoinHandle<()>>,
}

impl Pool {
    /// Starts all threads, or none and says which failed.
    fn start(dataset: &Arc<dyn Dataset>, rules: BatchRules, workers: usize) -> Result<Self, (usize, io::Error)> {
        let mut pool = Self { workers: Vec::new(), stop: Arc::new(AtomicBool::new(false)) };
        for number in 1..=workers {
            let thread = format!("loader-{number}");
            let worker = Worker::start(dataset, rules, &pool.stop, thread).map_err(|error| (number, error))?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    fn worker(&self, number: u64) -> Option<&Worker> {
        let index = number.checked_rem(self.workers.len() as u64)?;
        self.workers.get(index as usize)
    }

    /// Asks for a batch. Never blocks: at most `prefetch_depth` requests are out for each worker.
    fn request(&self, number: u64, batch: Request) {
        if let Some(requests) = self.worker(number).and_then(|worker| worker.requests.as_ref()) {
            // A worker that is gone is found when its batch is waited for.
            let _ = requests.send(batch);
        }
    }

    fn receive(&self, number: u64) -> Answer {
        let answer = self.worker(number).and_then(|worker| worker.batches.recv().ok());
        answer.unwrap_or_else(|| Answer::failed(DataError::WorkerEnded))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for worker in &mut self.workers {
            worker.requests = None;
        }
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take() {
                // A panic was already caught and reported with its batch.
                let _ = thread.join();
            }
        }
    }
}

impl Worker {
    fn start(dataset: &Arc<dyn Dataset>, rules: BatchRules, stop: &Arc<AtomicBool>, name: String) -> io::Result<Self> {
        // What is out is bounded by the requests, so neither side ever waits to send.
        let (requests, asked) = unbounded::<Request>();
        let (made, batches) = unbounded();
        let (dataset, stop) = (Arc::clone(dataset), Arc::clone(stop));
        let thread = thread::Builder::new().name(name).spawn(move || {
            let stopped = || stop.load(Ordering::Relaxed);
            for request in asked {
                if stopped() || made.send(make(dataset.as_ref(), &rules, &request, &stopped)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { requests: Some(requests), batches, thread: Some(thread) })
    }
}

/// Makes a batch; a panic of the dataset becomes its error.
fn make(dataset: &dyn Dataset, rules: &BatchRules, request: &Request, stop: &dyn Fn() -> bool) -> Answer {
    // Whatever state a dataset of somebody's own leaves behind, it is asked for single samples and for nothing else.
    match catch_unwind(AssertUnwindSafe(|| collate::load(dataset, rules, request, stop))) {
        // Only the drop of the pool stops a load, and then nobody receives this.
        Ok(Made { batch, skipped }) => {
            Answer { batch: batch.and_then(|batch| batch.ok_or(DataError::WorkerEnded)), skipped }
        }
        Err(panic) => Answer::failed(DataError::WorkerPanicked(panic_message(panic.as_ref()))),
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it gave no reason").to_owned()
}

#[cfg(test)]
mod tests;
