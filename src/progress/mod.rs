//! The progress room: events in; bars, plain lines or JSON lines out.
//!
//! The driver emits [`Event`]s and knows nothing of terminals. A [`Reporter`] shows them. Events go to standard
//! error, except JSON lines, which are a result and go to standard output.
//!
//! # To add a reporter
//! Create `progress/<form>.rs` with a type that implements [`Reporter`] and one arm in [`choose`].

use std::io::{IsTerminal, Write};

use crate::text::harmless;

pub mod bar;
pub mod event;
pub mod json;
pub mod plain;

pub use event::Event;

/// Shows the events of a study, in order. What is played on several threads reports from any of them, one at a time.
pub trait Reporter: Send {
    /// Takes one event.
    fn report(&mut self, event: &Event);
}

/// How the user wants to follow a study.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgressMode {
    /// Bars on a terminal, plain lines elsewhere.
    #[default]
    Auto,
    /// One JSON object a line on standard output.
    Json,
    /// Warnings only.
    Quiet,
}

/// The reporter for a mode and for where standard error goes.
pub fn choose(mode: ProgressMode) -> Box<dyn Reporter> {
    match mode {
        ProgressMode::Json => Box::new(json::Json),
        ProgressMode::Quiet => Box::new(Quiet),
        ProgressMode::Auto if std::io::stderr().is_terminal() => Box::new(bar::Bar::new()),
        ProgressMode::Auto => Box::new(plain::Plain::default()),
    }
}

/// Shows warnings and nothing else.
#[derive(Debug, Default)]
pub struct Quiet;

impl Reporter for Quiet {
    fn report(&mut self, event: &Event) {
        if let Event::Warning { text } = event {
            say(&format!("warning: {}", harmless(text)));
        }
    }
}

/// Puts a line on standard error. Where that cannot be written, such as a log on a full disk, the line is lost and the
/// study goes on: `eprintln!` would panic.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
