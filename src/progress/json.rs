//! One JSON object a line on standard output: the events as they are.

use std::io::Write;

use super::{Event, Reporter};

/// JSON lines.
#[derive(Debug)]
pub struct Json;

impl Reporter for Json {
    fn report(&mut self, event: &Event) {
        let Ok(line) = serde_json::to_string(event) else { return };
        // A reader that went away (`| head`) must not end the study.
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }
}
