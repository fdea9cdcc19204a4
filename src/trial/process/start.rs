//! How a worker's process is started, here or by a launcher, and how it is spoken to.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::WorkerCommand;
use crate::trial::launcher::Launch;
use crate::trial::protocol::ToWorker;

/// Between two pings, at least.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// Writes lines as they come, and pings while there are none. Not before the first: while a launcher waits for its job
/// nobody reads, and a worker has its lease from the start.
pub(super) fn speak(mut stdin: ChildStdin, lines: &Receiver<Vec<u8>>, every: Duration) {
    let every = every.max(SHORTEST_PAUSE);
    let mut ping = serde_json::to_vec(&ToWorker::Ping).unwrap_or_default();
    ping.push(b'\n');
    let mut line = lines.recv().ok();
    while let Some(bytes) = &line {
        if stdin.write_all(bytes).and_then(|()| stdin.flush()).is_err() {
            return;
        }
        line = match lines.recv_timeout(every) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => Some(ping.clone()),
            Err(RecvTimeoutError::Disconnected) => None,
        };
    }
}

/// The launcher's command. The number of processors is the other machine's to count, and the session is made by what
/// becomes the launcher.
pub(super) fn command_of_launch(launch: &Launch, worker: &WorkerCommand) -> Command {
    let mut command = Command::new(&launch.program);
    command.args(&launch.arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in launch.removed {
        command.env_remove(name);
    }
    command.envs(launch.added.iter().map(|(name, value)| (*name, value)));
    command.envs(worker.environment.iter().map(|(name, value)| (name, value)));
    command
}

/// The command of a worker on this machine, in a process group of its own.
pub(super) fn command_of(worker: &WorkerCommand) -> Command {
    let mut command = Command::new(&worker.program);
    command
        .args(&worker.arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    if std::env::var_os("RAYON_NUM_THREADS").is_none() {
        // Without it every matrix product of candle's reads /proc/cpuinfo again. The count honours both the affinity
        // mask and the cgroup's quota.
        let cpus = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        command.env("RAYON_NUM_THREADS", cpus.to_string());
    }
    command.envs(worker.environment.iter().map(|(name, value)| (name, value)));
    command
}
