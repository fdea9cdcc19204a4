//! How errors and the program's own log look on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::Colours;
use crate::error::Error;
use crate::progress::say;
use crate::text::{harmless, with_causes};

/// Columns that an error is wrapped to.
const WIDTH: usize = 100;

/// Whose log it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A command that a person started.
    Command,
    /// A worker, whose lines the driver passes on.
    Worker,
}

/// Sets up the log (`TUNE_LOG=debug`).
pub(super) fn install(role: Role) {
    let default = match role {
        Role::Command => "warn",
        // What takes long before the first trial is for people to know.
        Role::Worker => "warn,batchtune::device::cuda::kernels=info",
    };
    let filter = EnvFilter::try_from_env("TUNE_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time();
    // A second subscriber (a user's own binary may have set one) is not ours to replace.
    let _ = match role {
        Role::Command => log.with_ansi(colour()).try_init(),
        Role::Worker => log.with_ansi(false).with_level(false).with_target(false).try_init(),
    };
}

/// Colour is for terminals that know it, and for nobody who sets `NO_COLOR`.
fn colour() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    std::io::stderr().is_terminal() && !is_dumb && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Prints an error with its causes, once. Configuration errors point into the file.
pub(super) fn print(error: &Error) {
    if let Error::Config(error) = error {
        let colours = if colour() { Colours::On } else { Colours::Off };
        say(error.render(colours, WIDTH).trim_end_matches('\n'));
        return;
    }
    // File names and what stands in a file come from strangers, and must not drive the terminal.
    say(&format!("error: {}", harmless(&with_causes(error))));
}
