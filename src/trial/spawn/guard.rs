//! A process in a command's group that ends the group when this process ends, whatever ends it.
//!
//! A command of the user's does not ask the kernel to be ended with its parent (`PR_SET_PDEATHSIG`), as our own worker
//! does, and what it starts would survive it anyway. So a shell sits in its group and reads a pipe whose other end only
//! this process holds. When the pipe ends, it sends SIGKILL to its own group, which needs no number: there is no race.
//!
//! It also keeps the group's number: while the guard is not reaped, running or zombie, the number of its group cannot
//! be given to another. Without a shell there is no guard, and the rest works as before.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::unistd::Pid;

/// Polite signals reach the whole group; the guard must outlast them.
const SCRIPT: &str = "trap '' HUP INT QUIT TERM USR1 USR2 ALRM TSTP; while read -r line; do :; done; kill -KILL 0";

/// The guard of a process group.
#[derive(Debug)]
pub(super) struct Guard(Child);

impl Guard {
    /// Puts a guard into `group`, whose leader must not be reaped yet.
    pub(super) fn over(group: Pid) -> Option<Self> {
        let guard = Command::new("/bin/sh")
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .env_clear()
            .current_dir("/")
            .process_group(group.as_raw())
            .spawn();
        match guard {
            Ok(guard) => Some(Self(guard)),
            Err(error) => {
                tracing::debug!("process group {group} is not guarded: {error}");
                None
            }
        }
    }

    /// Closes the pipe.
    #[cfg(test)]
    pub(super) fn let_go(&mut self) {
        self.0.stdin = None;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // It is our child and not reaped, so the number is its own.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
