//! How errors and the program's own log look on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::Colours;
use crate::error::Error;
use crate::progress::{harmless, say};

/// Columns that an error is wrapped to.
const WIDTH: usize = 100;

/// Sets up the log (`TUNE_LOG=debug`).
pub(super) fn install() {
    let filter = EnvFilter::try_from_env("TUNE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    // A second subscriber (a user's own binary may have set one) is not ours to replace.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour())
        .without_time()
        .try_init();
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
    say(&with_causes(error));
}

/// An error and its causes in one line. File names and what stands in a file come from strangers, and must not drive
/// the terminal.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = format!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    harmless(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_does_not_drive_the_terminal() {
        let error = std::io::Error::other("cannot read `a\u{1b}[2Jb`");
        assert_eq!(with_causes(&error), "error: cannot read `a\u{fffd}[2Jb`");
    }
}
