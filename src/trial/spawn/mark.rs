//! The mark by which a command's processes are known wherever they went: a variable of their environment.
//!
//! A process cannot leave it behind by leaving its group, its session or its parent, and what it starts inherits it.
//! `/proc/PID/environ` shows it to processes of the same user: what the program was started with, which its forks share.
//! A fork of a warm interpreter would show what the server was started with, so `warm.py` writes the fork's own mark
//! over the server's, in place; both are of one length.
//!
//! It does not reach a program that is started with an environment of somebody's choice (`env -i`), one that writes over
//! its own, and one that runs as another user.

use std::fs::File;
use std::io::Read;
use std::thread;
use std::time::Duration;

/// The variable.
pub(super) const NAME: &str = "TUNE_MARK";
/// How much of an environment is looked at. The kernel allows no more by itself than a quarter of the stack's 8 MiB.
const LOOK_BYTES: u64 = 4 << 20;

/// A process that is just being started has no environment for a moment; neither has one of the kernel's, for ever.
const TRIES: u32 = 4;
const STARTING: Duration = Duration::from_millis(1);

/// One command's mark; no other has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark(String);

impl Mark {
    pub(super) fn new() -> Self {
        Self(format!("{:032x}", rand::random::<u128>()))
    }

    pub(super) fn value(&self) -> &str {
        &self.0
    }

    /// Whether the environment of `process` has it, as far as we may see that.
    pub(super) fn is_on(&self, process: u32) -> bool {
        let wanted = format!("{NAME}={}", self.0);
        for _ in 0..TRIES {
            let Ok(file) = File::open(format!("/proc/{process}/environ")) else { return false };
            let mut environment = Vec::new();
            // What was read before an error counts.
            let _ = file.take(LOOK_BYTES).read_to_end(&mut environment);
            if !environment.is_empty() {
                return environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes());
            }
            thread::sleep(STARTING);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_mark_is_on_who_was_started_with_it_and_on_nobody_else() {
        let (mark, other) = (Mark::new(), Mark::new());
        assert_ne!(mark, other);
        assert_eq!(mark.value().len(), other.value().len());
        let mut command = Command::new("sleep");
        let mut child = command.arg("600").env(NAME, mark.value()).stdin(Stdio::null()).spawn().unwrap();
        let begun = std::time::Instant::now();
        while !mark.is_on(child.id()) && begun.elapsed() < Duration::from_secs(60) {}
        assert!(mark.is_on(child.id()) && !other.is_on(child.id()));
        assert!(!mark.is_on(std::process::id()) && !mark.is_on(u32::MAX));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!mark.is_on(child.id()));
    }
}
