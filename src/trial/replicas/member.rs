//! One rank of a group, seen from the driver: a thread with an executor of its own.
//!
//! A worker is ended by the kernel with the thread that started it, so each rank has a thread for as long as it lives, and
//! that thread follows its worker as it would follow the only one. What it sees goes to whoever holds the group together.

use std::thread::{self, JoinHandle};

use crossbeam_channel::{Sender, bounded};

use super::merge::Part;
use crate::device::DeviceFacts;
use crate::device::collective::Replica;
use crate::trial::executor::{Executor, ExecutorError, Interrupt, Observation};
use crate::trial::launcher::Place;
use crate::trial::process::{Muster, ProcessConfig, ProcessExecutor};
use crate::trial::spec::TrialSpec;

/// What a member tells.
#[derive(Debug)]
pub(super) enum News {
    /// Its device is open, at this place, and it has met the others; or it cannot be opened.
    Opened(Result<(DeviceFacts, Place), ExecutorError>),
    /// Its trial goes on.
    Saw(Observation),
    /// Its trial is over.
    Ended {
        /// How.
        part: Box<Part>,
        /// Whether its worker may run another.
        is_whole: bool,
    },
    /// It had no worker to run the trial with.
    Missing(ExecutorError),
}

/// A rank's thread.
#[derive(Debug)]
pub(super) struct Member {
    /// `None` once it is to end.
    trials: Option<Sender<TrialSpec>>,
    interrupt: Interrupt,
    thread: Option<JoinHandle<()>>,
}

impl Member {
    /// Starts the thread, which opens its worker at once. `None` where the system refuses a thread.
    pub(super) fn start(
        config: ProcessConfig,
        (replica, muster): (Replica, Muster),
        news: Sender<(usize, News)>,
    ) -> Option<Self> {
        let interrupt = Interrupt::default();
        let config = ProcessConfig { interrupt: interrupt.clone(), ..config };
        let rank = replica.rank;
        let (trials, asked) = bounded::<TrialSpec>(1);
        let work = move || {
            let mut executor = ProcessExecutor::new(config).in_group(replica, muster);
            // Nobody listens once the group is being ended.
            let tell = |what| news.send((rank, what)).is_ok();
            let opened = executor.start().map(|facts| (facts, executor.place().clone()));
            let is_open = opened.is_ok();
            if !tell(News::Opened(opened)) || !is_open {
                return;
            }
            for spec in asked {
                let ended = executor.run(&spec, &mut |observation| {
                    tell(News::Saw(observation));
                });
                let what = match ended {
                    Ok(record) => News::Ended {
                        part: Box::new(Part { record, peers: executor.peers() }),
                        is_whole: executor.has_worker(),
                    },
                    Err(error) => News::Missing(error),
                };
                if !tell(what) {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name(format!("rank-{rank}")).spawn(work).ok()?;
        Some(Self { trials: Some(trials), interrupt, thread: Some(thread) })
    }

    /// Runs a trial, once the one before it has ended.
    pub(super) fn run(&self, spec: &TrialSpec) {
        if let Some(trials) = &self.trials {
            // A thread that is gone has told why.
            let _ = trials.try_send(spec.clone());
        }
    }

    /// Asks its worker to stop, once more: see [`Interrupt::request`].
    pub(super) fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// Ends the worker by the shortest way if it is in a trial, and lets it leave otherwise.
    pub(super) fn dismiss(&mut self) {
        self.trials = None;
        self.interrupt.request();
        self.interrupt.request();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.dismiss();
        if let Some(thread) = self.thread.take() {
            // The thread's own panic was printed when it happened.
            let _ = thread.join();
        }
    }
}
