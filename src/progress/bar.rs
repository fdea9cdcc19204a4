//! A progress bar for people at a terminal; everything worth keeping scrolls above it.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::{Event, Reporter, plain};

/// How often the spinner turns.
const TICK: Duration = Duration::from_millis(120);

/// A bar for the running trial.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
}

impl Default for Bar {
    fn default() -> Self {
        Self::new()
    }
}

impl Bar {
    /// A bar that shows itself with the first trial.
    pub fn new() -> Self {
        let bar = ProgressBar::new(0);
        // The template is a constant; without it indicatif's own style does.
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} [{bar:24}] {pos}/{len} {msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar }
    }
}

impl Reporter for Bar {
    fn report(&mut self, event: &Event) {
        match event {
            Event::TrialStarted { spec } => {
                self.bar.reset();
                self.bar.set_length(u64::from(spec.total_steps()));
                self.bar.set_prefix(format!("trial {} ({}), batch {}", spec.id, spec.purpose, spec.point.batch_size));
                self.bar.set_message("starting");
                self.bar.enable_steady_tick(TICK);
            }
            Event::Step { step, total, loss, times } => {
                self.bar.set_length(u64::from(*total));
                self.bar.set_position(u64::from(*step));
                let loss = loss.map_or_else(|| "loss not finite".to_owned(), |loss| format!("loss {loss:.3}"));
                self.bar.set_message(format!("{:.1} ms, {loss}", times.total_ms));
            }
            Event::RunPlaying { point, step, total } => {
                self.bar.set_length(u64::from(*total));
                self.bar.set_position(u64::from(*step));
                self.bar.set_prefix(format!("forecast of the whole run, batch {}", point.batch_size));
                self.bar.set_message("steps");
                self.bar.enable_steady_tick(TICK);
            }
            Event::Sample { .. } => {}
            Event::StudyEnded { .. } => {
                self.bar.finish_and_clear();
                self.say(event);
            }
            other => self.say(other),
        }
    }
}

impl Bar {
    fn say(&self, event: &Event) {
        if let Some(line) = plain::line(event) {
            // Printing through the bar avoids tearing it.
            self.bar.println(line);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
