//! Between the driver and the launcher: a session of its own.
//!
//! `tune launch` is not for people. The driver starts it in the launcher's place; it leaves the driver's session and
//! becomes the launcher. What that gives:
//!
//! - No terminal. A Ctrl-C reaches the driver alone, which passes it on in its own way (`srun` needs two within a second
//!   and then kills its job in the middle of a step), and an `ssh` that wants a password fails at once instead of
//!   waiting for somebody to see it.
//! - A process group that the driver can signal as one.
//! - SIGTERM when the driver dies, on which `srun` ends its step and takes a pending job back. A worker would see the end
//!   of its input, unless it hangs.
//!
//! A session is left by a system call between fork and exec, for which std has no safe hook; so a process does it that
//! has nothing else to do.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{getppid, setsid};

/// The exit status of a launcher that cannot be started, as a shell has it.
pub const NOT_FOUND: u8 = 127;

/// Becomes the launcher. Returns only if that fails, with the reason.
pub fn become_launcher(command: &[OsString]) -> io::Error {
    let parent = getppid();
    // Fails for the leader of a group, which then has a group of its own already.
    let _ = setsid();
    // Kept over the exec; not by programs with more rights than their caller, which then see the end of their input.
    let _ = set_pdeathsig(Signal::SIGTERM);
    if getppid() != parent {
        return io::Error::other("the tuner that started it is gone");
    }
    match command.split_first() {
        Some((program, arguments)) => Command::new(program).args(arguments).exec(),
        None => io::Error::other("no launcher is named"),
    }
}
