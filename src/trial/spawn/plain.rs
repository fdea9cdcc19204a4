//! Starting a command as a new process.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::unistd::Pid;

use super::mark::{self, Mark};
use super::output::Output;
use super::running::{Body, Running};
use super::strays::Family;
use super::{Launch, SpawnError, Start};

/// Starts it in a process group of its own. `why` it is not a warm start is only passed on.
pub(super) fn start(launch: &Launch, why: Option<String>) -> Result<Running, SpawnError> {
    let program = launch.program()?;
    let failed = |source| SpawnError::Start {
        program: program.display().to_string(),
        directory: launch.directory.display().to_string(),
        source,
    };
    let (writer, output) = Output::open().map_err(failed)?;
    let mark = Mark::new();
    let child = Command::new(program)
        .args(launch.arguments.iter().skip(1))
        .envs(launch.environment.iter().map(|(name, value)| (name, value)))
        .env(mark::NAME, mark.value())
        .current_dir(&launch.directory)
        .stdin(Stdio::null())
        .stdout(writer.try_clone().map_err(failed)?)
        .stderr(writer)
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let id = i32::try_from(child.id()).map(Pid::from_raw).map_err(|error| failed(io::Error::other(error)))?;
    first_to_go(id);
    Ok(Running::new(Family::of(id, mark), Body::plain(child, id), output, Start::Plain { why }))
}

/// When the host runs out of memory the trial is the first to go, not the tuner and not a stranger. It is not reaped
/// yet, so the number is its own.
fn first_to_go(process: Pid) {
    let _ = fs::write(format!("/proc/{process}/oom_score_adj"), "1000");
}
