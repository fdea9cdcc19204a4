//! Progress bars for people at a terminal, one a device; everything worth keeping scrolls above them.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::{Event, Reporter, plain};
use crate::text::harmless;

/// How often the spinner turns.
const TICK: Duration = Duration::from_millis(120);

/// A bar for the running trial of each device.
#[derive(Debug, Default)]
pub struct Bar {
    all: MultiProgress,
    /// By device; by nothing where there is one.
    bars: BTreeMap<Option<String>, ProgressBar>,
}

impl Bar {
    /// Bars that show themselves with the first trial.
    pub fn new() -> Self {
        Self::default()
    }

    /// The bar of a device.
    fn of(&mut self, device: Option<&str>) -> &ProgressBar {
        let all = &self.all;
        self.bars.entry(device.map(str::to_owned)).or_insert_with(|| {
            let bar = ProgressBar::new(0);
            // The template is a constant; without it indicatif's own style does.
            if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} [{bar:24}] {pos}/{len} {msg}") {
                bar.set_style(style.progress_chars("=> "));
            }
            all.add(bar)
        })
    }

    fn begin(&mut self, device: Option<&str>, total: u64, prefix: &str) {
        let on = device.map_or_else(String::new, |device| format!("{}: ", harmless(device)));
        let bar = self.of(device);
        bar.reset();
        bar.set_length(total);
        bar.set_prefix(format!("{on}{prefix}"));
        bar.set_message("starting");
        bar.enable_steady_tick(TICK);
    }

    /// Shows how far a play is, which no device takes part in.
    fn advance(&mut self, step: u64, total: u64, what: &str) {
        let bar = self.of(None);
        bar.set_length(total);
        bar.set_position(step);
        bar.set_message(what.to_owned());
    }

    /// How far a forecast is.
    fn play(&mut self, prefix: &str, step: u32, total: u32) {
        if step == 0 {
            self.begin(None, u64::from(total), prefix);
        }
        self.advance(u64::from(step), u64::from(total), "steps");
    }

    fn say(&self, event: &Event) {
        if let Some(line) = plain::line(event) {
            // Printing past the bars would tear them. Where nothing can be printed the line is lost.
            let _ = self.all.println(line);
        }
    }

    fn clear(&self) {
        self.bars.values().for_each(ProgressBar::finish_and_clear);
    }
}

impl Reporter for Bar {
    fn report(&mut self, event: &Event) {
        match event {
            Event::TrialStarted { spec, device } => {
                let prefix = format!("trial {} ({}), batch {}", spec.id, spec.purpose, spec.point.batch_size);
                self.begin(device.as_deref(), u64::from(spec.total_steps()), &prefix);
            }
            Event::Step { step, total, loss, times, device } => {
                let bar = self.of(device.as_deref());
                bar.set_length(u64::from(*total));
                bar.set_position(u64::from(*step));
                let loss = loss.map_or_else(|| "loss not finite".to_owned(), |loss| format!("loss {loss:.3}"));
                bar.set_message(format!("{:.1} ms, {loss}", times.total_ms));
            }
            Event::RunPlaying { point, step, total } => {
                self.play(&format!("forecast of the whole run, batch {}", point.batch_size), *step, *total);
            }
            Event::RemediesPlaying { point, step, total } => {
                self.play(&format!("other shapes for the whole run, batch {}", point.batch_size), *step, *total);
            }
            Event::AllocatorTuning { point, what, step, total } => {
                if *total == 0 {
                    let prefix = format!("settings of the allocator, batch {}", point.batch_size);
                    self.begin(None, *total, &prefix);
                }
                self.advance(*step, *total, what);
            }
            Event::Sample { .. } => {}
            Event::StudyEnded { .. } => {
                self.clear();
                self.say(event);
            }
            other => {
                if let Event::TrialEnded { device: device @ Some(_), .. } = other {
                    // Another device may still be busy.
                    self.of(device.as_deref()).finish_and_clear();
                }
                let is_played = matches!(
                    other,
                    Event::RunPlayed { .. } | Event::RemediesPlayed { .. } | Event::AllocatorTuned { .. }
                );
                if is_played && self.bars.len() > 1 {
                    self.of(None).finish_and_clear();
                }
                self.say(other);
            }
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}
