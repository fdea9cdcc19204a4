//! A bar over all plays, and the way out of them.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::memory::forecast::tuning::Observer;
use crate::trial::Interrupt;

/// How often the bar is drawn.
const TICK: Duration = Duration::from_millis(100);

/// Shows how far the plays are, on a terminal's standard error only.
pub(super) struct Watched {
    bar: ProgressBar,
    interrupt: Interrupt,
}

impl Watched {
    pub(super) fn new(interrupt: Interrupt) -> Self {
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {human_pos} of {human_len} steps, {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TICK);
        Self { bar, interrupt }
    }
}

impl Observer for Watched {
    fn begin(&self, what: &'static str, steps: u64) {
        self.bar.inc_length(steps);
        self.bar.set_message(what);
    }

    fn steps(&self, count: u32) {
        self.bar.inc(u64::from(count));
    }

    fn wants_to_leave(&self) -> bool {
        self.interrupt.requested()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
