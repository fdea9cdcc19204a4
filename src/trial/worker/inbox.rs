//! The worker's input, read on a thread of its own.

use std::io::{BufRead, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::lease::Lease;
use crate::device::collective::{Relay, Replica};
use crate::trial::exit_status::{DONE, ORPHANED};
use crate::trial::protocol::{MAX_LINE_BYTES, ToWorker};
use crate::trial::spec::{TrialSpec, WorkloadSpec};

/// What the driver wants done, one after the other.
#[derive(Debug)]
pub(super) enum Request {
    /// Open the device and get the workload ready.
    Open {
        /// The workload.
        workload: Box<WorkloadSpec>,
        /// Where a soak may write its checkpoint.
        scratch: PathBuf,
        /// The worker's place among replicas.
        replica: Option<Replica>,
    },
    /// Run a trial.
    Run(TrialSpec),
    /// It said something that is no message; nothing is read after it.
    Invalid(String),
}

/// Requests in order, and the stop that overtakes them.
#[derive(Debug)]
pub struct Inbox {
    requests: Receiver<Request>,
    stop: Arc<AtomicBool>,
    lease: Arc<Lease>,
    relay: Arc<Relay>,
}

impl Inbox {
    /// Reads `input` on a new thread. `leave` is called there, with an exit status, when the driver says exit or the
    /// input ends, whatever the worker is doing then.
    pub fn listen(input: impl BufRead + Send + 'static, leave: impl FnOnce(i32) + Send + 'static) -> Self {
        let (sender, requests) = unbounded();
        let stop = Arc::new(AtomicBool::new(false));
        let held = Arc::new(Lease::default());
        let relay = Arc::new(Relay::default());
        let ears = (Arc::clone(&stop), Arc::clone(&held), Arc::clone(&relay));
        thread::spawn(move || leave(read(input, &sender, (&ears.0, &ears.1, &ears.2))));
        Self { requests, stop, lease: held, relay }
    }

    /// What is known of the driver's signs of life.
    pub(super) fn lease(&self) -> Arc<Lease> {
        Arc::clone(&self.lease)
    }

    /// The wires to other replicas that go through the driver.
    pub(super) fn relay(&self) -> &Relay {
        &self.relay
    }

    /// The next request; `None` once the driver wants no more.
    pub(super) fn next(&self) -> Option<Request> {
        self.requests.recv().ok()
    }

    /// Whether the running trial is to end after its step.
    pub(super) fn stop_requested(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

/// Reads until the driver wants no more; gives the exit status that this means.
fn read(
    mut input: impl BufRead,
    requests: &Sender<Request>,
    (stop, lease, relay): (&AtomicBool, &Lease, &Relay),
) -> i32 {
    let mut line = Vec::new();
    loop {
        line.clear();
        match input.by_ref().take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return ORPHANED,
            // Half a line is the last word of a driver that died.
            Ok(_) if line.last() != Some(&b'\n') && line.len() <= MAX_LINE_BYTES => return ORPHANED,
            Ok(_) => {}
        }
        lease.renew();
        let request = match serde_json::from_slice(&line) {
            Ok(ToWorker::Open { workload, scratch, replica, lease: granted }) => {
                lease.set(granted);
                Request::Open { workload, scratch, replica }
            }
            Ok(ToWorker::Ping) => continue,
            Ok(ToWorker::Relay { rank, bytes }) => {
                relay.deliver(rank, &bytes);
                continue;
            }
            Ok(ToWorker::Run { trial }) => {
                // A stop that came too late for the trial before is not meant for this one.
                stop.store(false, Ordering::SeqCst);
                Request::Run(trial)
            }
            Ok(ToWorker::Stop) => {
                stop.store(true, Ordering::SeqCst);
                continue;
            }
            Ok(ToWorker::Exit) => return DONE,
            Err(error) => Request::Invalid(error.to_string()),
        };
        let invalid = matches!(request, Request::Invalid(_));
        if requests.send(request).is_err() || invalid {
            // The main thread leaves, with a status of its own.
            loop {
                thread::park();
            }
        }
    }
}
