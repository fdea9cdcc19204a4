//! The worker's side of a trial: a process that opens the device and trains.
//!
//! `tune worker` is not for people: a driver starts it and speaks the [`protocol`](super::protocol) with it. What it
//! does for the driver's safety and its own:
//!
//! - It keeps its standard output for the protocol: a copy of the descriptor becomes private, and descriptor 1 points to
//!   the log, so that a workload's `println!` (or a C library's `printf`) lands there.
//! - It reads its input on a thread of its own, so that a stop is seen during a trial, and so that it leaves at once,
//!   in the middle of a step, when its input ends: then the driver is gone.
//! - Where even that thread cannot run, the kernel ends it with the driver (`PR_SET_PDEATHSIG`). Behind a
//!   [launcher](super::launcher) it does not ask for that: its parent there is some helper, or a thread of one, that may
//!   end as soon as it has started it.
//! - It leaves when it hears nothing of the driver for as long as its lease: behind a launcher its input may stay open
//!   when the driver, or all that is in between, is gone.
//! - When the host runs out of memory it is the first to go (`oom_score_adj`), not the driver and not a stranger. Where it
//!   is refused memory (`ulimit -v`) and would abort, it leaves with a status that says so.
//!
//! [`serve`] is the conversation without the process around it. Only a worker opens a device.

use std::fs::{self, File};
use std::io::{self, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Scope};
use std::time::Duration;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, raise};
use nix::unistd::{dup2_stdout, getppid};

use super::exit_status::{DONE, ORPHANED};
use super::launcher::Place;
use super::protocol::{FromWorker, PROTOCOL, Refusal};
use crate::device::collective::{Meeting, Relay};
use crate::device::cpu::leave_where_memory_is_refused;
use crate::model::Registry;

mod feed;
mod group;
mod inbox;
mod lease;
mod length;
mod open;
mod part;
mod phases;
mod probe;
mod pulse;
mod skipped;
mod soak;
#[cfg(test)]
mod tests;
mod throughput;
mod trial;
mod unreached;
mod weighed;

pub use inbox::Inbox;
use inbox::Request;
use open::{Opened, Supplies};
pub(crate) use trial::TRIM_EVERY_STEPS;
use weighed::Weighed;

/// The worker could not even begin.
const BROKEN: u8 = 1;

/// After which a worker that leaves is ended: the exit handlers of a driver that hangs may hang too.
const LEAVING: Duration = Duration::from_secs(5);

/// Names the variable without which every matrix product of candle's reads `/proc/cpuinfo` again.
const THREADS: &str = "RAYON_NUM_THREADS";

/// Runs the worker process to its end. The program prints nothing before and nothing after.
pub fn main(registry: &Registry) -> ExitCode {
    let parent = getppid();
    // A failure here leaves the other ways: end of input, the lease, and the driver's own signals.
    let _ = set_pdeathsig(Signal::SIGKILL);
    if getppid() != parent {
        return ExitCode::from(status(ORPHANED));
    }
    run(registry)
}

/// Runs the worker process behind a launcher to its end.
pub fn launched(registry: &Registry) -> ExitCode {
    count_processors_here();
    run(registry)
}

/// Starts this program over with the number of this machine's processors in its environment, where nothing is there: the
/// driver knows those of its own machine only. Returns if that cannot be done, which costs speed alone.
fn count_processors_here() {
    if std::env::var_os(THREADS).is_some() {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let cpus = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let error = Command::new(program).args(std::env::args_os().skip(1)).env(THREADS, cpus.to_string()).exec();
    tracing::warn!("cannot set {THREADS}: {error}");
}

fn run(registry: &Registry) -> ExitCode {
    // Not allowed in some containers, and then the kernel's own choice stands.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    if let Err(error) = leave_where_memory_is_refused() {
        tracing::debug!("want of host memory will be told as SIGABRT: {error}");
    }
    let output = match claim_stdout() {
        Ok(output) => output,
        Err(error) => {
            tracing::error!("cannot keep standard output for the protocol: {error}");
            return ExitCode::from(BROKEN);
        }
    };
    let inbox = Inbox::listen(BufReader::new(io::stdin()), leave);
    lease::watch(inbox.lease(), leave);
    match serve(registry, &inbox, output) {
        Ok(()) => ExitCode::from(status(DONE)),
        Err(ServeError::Output(error)) => {
            tracing::error!("the driver is gone: {error}");
            ExitCode::from(status(ORPHANED))
        }
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::from(BROKEN)
        }
    }
}

/// Takes standard output away from everybody else: the returned file is the real one, and whoever prints from now on,
/// in this process or one it starts, prints into the log.
pub fn claim_stdout() -> io::Result<File> {
    // The copy is close-on-exec, so that a process started by the workload cannot hold the driver's pipe open.
    let real = io::stdout().as_fd().try_clone_to_owned()?;
    dup2_stdout(io::stderr().as_fd())?;
    Ok(File::from(real))
}

#[expect(clippy::exit, reason = "called on a thread of its own, while a step may be running on the main thread")]
fn leave(status: i32) {
    thread::spawn(|| {
        thread::sleep(LEAVING);
        let _ = raise(Signal::SIGKILL);
    });
    std::process::exit(status);
}

fn status(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(BROKEN)
}

/// Answers a driver until it wants no more.
pub fn serve(registry: &Registry, inbox: &Inbox, output: impl Write + Send) -> Result<(), ServeError> {
    let speaker = Mutex::new(Speaker { output });
    thread::scope(|scope| {
        // Whoever tells the driver what the group says is done with it.
        let _wires = Wires(inbox.relay());
        converse(registry, inbox, &speaker, scope)
    })
}

/// Wires through the driver, which end with the conversation.
struct Wires<'a>(&'a Relay);

impl Drop for Wires<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn converse<'scope, W: Write + Send>(
    registry: &Registry,
    inbox: &'scope Inbox,
    speaker: &'scope Mutex<Speaker<W>>,
    scope: &'scope Scope<'scope, '_>,
) -> Result<(), ServeError> {
    let say = move |message: &FromWorker| speaker.lock().unwrap_or_else(PoisonError::into_inner).say(message);
    say(&FromWorker::Hello {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        place: Place::here(),
    })?;
    let (workload, scratch, replica) = match inbox.next() {
        Some(Request::Open { workload, scratch, replica }) => (workload, scratch, replica),
        Some(Request::Invalid(reason)) => return Err(ServeError::Input(reason)),
        Some(Request::Run(_)) => return Err(ServeError::Input("a trial before the workload".to_owned())),
        None => return Ok(()),
    };
    if !scratch.is_dir() {
        let reason = format!(
            "the study directory `{}` is not on {} (hint: behind a launcher it must be on a file system that both machines \
             see, `--study DIR`)",
            scratch.display(),
            Place::here().node.unwrap_or_default()
        );
        return Ok(say(&FromWorker::Refused { cause: Refusal::Workload, reason })?);
    }
    if let Some(replica) = replica.as_ref().filter(|replica| matches!(replica.meeting, Meeting::Driver(_))) {
        for peer in replica.peers() {
            scope.spawn(move || {
                // A driver that does not listen is found out by whoever has an answer for it.
                inbox.relay().pump(peer, |bytes| drop(say(&FromWorker::Relay { rank: peer, bytes })));
            });
        }
    }
    let replica = replica.map(|replica| (replica, inbox.relay()));
    let mut opened = match Opened::open(registry, *workload, replica) {
        Ok(opened) => opened,
        Err(refused) => {
            let (cause, reason) = refused;
            return Ok(say(&FromWorker::Refused { cause, reason })?);
        }
    };
    say(&FromWorker::Ready { facts: opened.session.facts().clone() })?;
    loop {
        match inbox.next() {
            Some(Request::Run(spec)) => {
                let (session, supplies) = opened.parts(&spec);
                let supplies = Weighed::new(&supplies);
                let ended = if spec.is_throughput() {
                    throughput::run(&spec, &supplies, inbox)?
                } else {
                    let group = Supplies::place(&supplies).map(|place| Arc::clone(&place.group));
                    let stage = trial::Stage { session, supplies: &supplies, inbox, scratch: &scratch };
                    let (trial, mut say) = (spec.id, say);
                    let tell = move |exchanges| say(&FromWorker::Entered { trial, exchanges }).is_ok();
                    pulse::beside(group.as_deref(), tell, || trial::run(&spec, stage, &mut say))?
                };
                say(&supplies.enter_into(ended))?;
            }
            Some(Request::Open { .. }) => return Err(ServeError::Input("a second workload".to_owned())),
            Some(Request::Invalid(reason)) => return Err(ServeError::Input(reason)),
            None => return Ok(()),
        }
    }
}

/// Why a worker cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The driver does not listen.
    #[error("cannot write to the driver")]
    Output(#[from] io::Error),
    /// The driver does not speak the protocol.
    #[error("the driver broke the protocol: {0}")]
    Input(String),
}

/// Says messages, each in one write, so that a killed worker tears at most the last one.
struct Speaker<W> {
    output: W,
}

impl<W: Write> Speaker<W> {
    fn say(&mut self, message: &FromWorker) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.output.write_all(&line)?;
        self.output.flush()
    }
}

/// What a refusal says.
type Refused = (Refusal, String);
