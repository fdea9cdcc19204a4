//! Reductions that go on while their rank computes: on a thread of their own, in the order in which they were begun.
//!
//! The thread is started by the first of them, so a group that begins none has none. It makes no tensor and drops none: it
//! lets go of its hold on a tensor before it says that it is done, so whoever began the reduction is the one who frees it,
//! at a place of its own choosing. A recording of memory thus does not depend on which of the two is faster.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use candle_core::Tensor;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::unix::Place;
use super::{CollectiveError, Reduction, Work};

/// What a reduction came to.
type Outcome = Result<(), CollectiveError>;

/// The reductions that were begun and are not done.
#[derive(Debug)]
pub(super) struct Queue {
    place: Arc<Place>,
    under_way: Arc<UnderWay>,
    worker: Mutex<Worker>,
}

/// The thread, where there is one.
#[derive(Debug)]
enum Worker {
    /// Nothing was begun so far.
    Unneeded,
    /// It takes jobs.
    Running { jobs: Sender<Job>, thread: JoinHandle<()> },
    /// The system refuses it: everything is done at once by whoever begins it.
    Refused,
}

#[derive(Debug)]
struct Job {
    tensor: Tensor,
    reduction: Reduction,
    done: Sender<Outcome>,
    counted: Counted,
}

impl Job {
    fn run(self, place: &Place) {
        let Self { tensor, reduction, done, counted } = self;
        let outcome = place.all_reduce(&[&tensor], reduction);
        drop(tensor);
        // Whoever began it may not wait for it any more.
        let _ = done.send(outcome);
        drop(counted);
    }
}

impl Queue {
    pub(super) fn of(place: &Arc<Place>) -> Self {
        Self { place: Arc::clone(place), under_way: Arc::default(), worker: Mutex::new(Worker::Unneeded) }
    }

    /// Begins a reduction.
    pub(super) fn begin(&self, tensor: &Tensor, reduction: Reduction) -> Box<dyn Work> {
        let (done, outcome) = bounded(1);
        let job = Job { tensor: tensor.clone(), reduction, done, counted: UnderWay::count(&self.under_way) };
        let mut worker = self.worker();
        if matches!(*worker, Worker::Unneeded) {
            *worker = Worker::start(&self.place);
        }
        let left = match &*worker {
            Worker::Running { jobs, .. } => jobs.send(job).err().map(|refused| refused.0),
            Worker::Unneeded | Worker::Refused => Some(job),
        };
        if let Some(job) = left {
            job.run(&self.place);
        }
        Box::new(Begun { outcome })
    }

    /// Returns once nothing is under way. Each reduction ends within the group's patience, and all do where it has failed.
    pub(super) fn settle(&self) {
        self.under_way.wait_for_none();
    }

    /// Whether something is under way.
    pub(super) fn is_busy(&self) -> bool {
        *self.under_way.count_now() > 0
    }

    fn worker(&self) -> MutexGuard<'_, Worker> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let worker = std::mem::replace(&mut *self.worker(), Worker::Unneeded);
        if let Worker::Running { jobs, thread } = worker {
            drop(jobs);
            // Its own panic was printed when it happened.
            let _ = thread.join();
        }
    }
}

impl Worker {
    fn start(place: &Arc<Place>) -> Self {
        let (jobs, begun) = unbounded::<Job>();
        let place = Arc::clone(place);
        let work = move || begun.into_iter().for_each(|job| job.run(&place));
        match thread::Builder::new().name("exchange".to_owned()).spawn(work) {
            Ok(thread) => Self::Running { jobs, thread },
            Err(error) => {
                tracing::warn!(%error, "no thread for exchanges: nothing is computed beside them");
                Self::Refused
            }
        }
    }
}

/// A reduction that was begun.
#[derive(Debug)]
struct Begun {
    outcome: Receiver<Outcome>,
}

impl Work for Begun {
    fn wait(self: Box<Self>) -> Outcome {
        let ended = |_| Err(CollectiveError::Tensors("the thread that exchanges tensors has ended".to_owned()));
        self.outcome.recv().unwrap_or_else(ended)
    }
}

/// How many reductions are under way.
#[derive(Debug, Default)]
struct UnderWay {
    count: Mutex<usize>,
    none: Condvar,
}

impl UnderWay {
    fn count(under_way: &Arc<Self>) -> Counted {
        *under_way.count_now() += 1;
        Counted(Arc::clone(under_way))
    }

    fn count_now(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_none(&self) {
        let is_some = |count: &mut usize| *count > 0;
        drop(self.none.wait_while(self.count_now(), is_some).unwrap_or_else(PoisonError::into_inner));
    }
}

/// One of them, until it is dropped, however that comes about.
#[derive(Debug)]
struct Counted(Arc<UnderWay>);

impl Drop for Counted {
    fn drop(&mut self) {
        let mut count = self.0.count_now();
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}
