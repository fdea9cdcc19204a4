//! How errors and the program's own log look on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::Colours;
use crate::error::Error;
use crate::text::with_causes;

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

/// Colour is for terminals, and for nobody who sets `NO_COLOR`.
fn colour() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Prints an error with its causes, once. Configuration errors point into the file.
pub(super) fn print(error: &Error) {
    if let Error::Config(error) = error {
        let colours = if colour() { Colours::On } else { Colours::Off };
        eprint!("{}", error.render(colours, WIDTH));
        return;
    }
    eprintln!("error: {}", with_causes(error));
}
