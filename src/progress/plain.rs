//! One line an event, for logs and CI.

use std::time::{Duration, Instant};

use super::{Event, Reporter, say};
use crate::search::rules::whole_run;
use crate::search::staged::breach_reason;
use crate::search::{JudgedTrial, Verdict};
use crate::text::harmless;
use crate::trial::{TrialRecord, TrialSpec};
use crate::units::{Bytes, plural};

/// How often a play that takes long says how far it is.
const TOLD_EVERY: Duration = Duration::from_secs(5);

/// Plain lines.
#[derive(Debug, Default)]
pub struct Plain {
    /// When something of the running play was last said, or it began.
    told: Option<Instant>,
}

impl Plain {
    /// How far a play is, when that is due again.
    fn playing(&mut self, event: &Event) -> Option<String> {
        let Event::RunPlaying { point, step, total } = event else { return None };
        let told = self.told.filter(|_| *step > 0);
        if told.is_some_and(|told| told.elapsed() < TOLD_EVERY) {
            return None;
        }
        self.told = Some(Instant::now());
        told.map(|_| format!("whole run of batch {}: {step} of {total} steps played", point.batch_size))
    }
}

impl Reporter for Plain {
    fn report(&mut self, event: &Event) {
        if let Some(line) = self.playing(event) {
            say(&line);
        }
        if let Some(line) = line(event) {
            say(&line);
        }
    }
}

/// What an event says in one line; `None` for those that only bars show.
pub(super) fn line(event: &Event) -> Option<String> {
    Some(match event {
        Event::StudyStarted { name, target_batch_size, strategy, study, resumed_trials } => {
            let resumed = match resumed_trials {
                0 => String::new(),
                count => format!(", {} resumed", plural(*count, "trial")),
            };
            format!(
                "tuning {} for a batch of {target_batch_size} ({strategy}, journal in {study}{resumed})",
                harmless(name)
            )
        }
        Event::AnswerKnown { study, started } => format!(
            "this configuration was tuned on this device before (in {study}, started {}); its answer stands (hint: \
             `--fresh` searches again)",
            harmless(started)
        ),
        Event::DeviceReady { facts } => format!(
            "device {}: {}, {} for tensors, allocator {}, {}",
            facts.device,
            harmless(&facts.name),
            Bytes(facts.limit_bytes),
            facts.allocator,
            plural(facts.cpus, "cpu")
        ),
        Event::TrialStarted { spec, device } => format!("{}{}", started(spec), on(device.as_deref())),
        Event::TrialEnded { record, verdict, device } => format!("{}{}", ended(record, verdict), on(device.as_deref())),
        Event::Forecast { method, largest_batch_size, error_percent, reason } => {
            let largest = largest_batch_size.map_or_else(String::new, |size| format!("up to batch {size} fits, "));
            let error = error_percent.map_or_else(String::new, |error| format!("{error:.2}% off where checked, "));
            format!("forecast {method}: {largest}{error}{}", harmless(reason))
        }
        Event::Skipped { point, reason } => format!("skipped batch {}: {}", point.batch_size, harmless(reason)),
        Event::Warning { text } => format!("warning: {}", harmless(text)),
        Event::Recommended { point, status, path } => {
            format!("{status}: batch {} × {} written to {path}", point.batch_size, point.accumulation_steps)
        }
        Event::StudyEnded { status, trials, seconds } => {
            format!("finished: {status} after {} in {seconds:.1} s", plural(*trials, "trial"))
        }
        Event::RunPlayed { point, outlook } => {
            format!("whole run of batch {}: {}", point.batch_size, harmless(&whole_run::sentence(outlook)))
        }
        Event::RemediesPlayed { point, remedies } => {
            let best = remedies.offered().next().map_or_else(
                || "no other shapes gain anything, by forecast".to_owned(),
                |best| format!("with {}, by forecast: {}", best.changes, best.reason),
            );
            format!("whole run of batch {}: {best}", point.batch_size)
        }
        Event::AllocatorTuned { point, found } => {
            format!("settings of the allocator for batch {}: {}", point.batch_size, harmless(&found.reason))
        }
        Event::Step { .. }
        | Event::Sample { .. }
        | Event::RunPlaying { .. }
        | Event::RemediesPlaying { .. }
        | Event::AllocatorTuning { .. } => {
            return None;
        }
    })
}

/// What a line ends with where there is more than one device.
fn on(device: Option<&str>) -> String {
    device.map_or_else(String::new, |device| format!(", on {}", harmless(device)))
}

fn started(spec: &TrialSpec) -> String {
    let length = match (spec.is_throughput(), spec.total_steps()) {
        // The loader alone makes no steps.
        (true, 1) => "1 batch".to_owned(),
        (true, count) => format!("{count} batches"),
        (false, count) => plural(count as usize, "step"),
    };
    let size = spec.sample_size.map_or_else(String::new, |size| format!(", {size}"));
    format!("trial {} ({}): {}{size}, {length}", spec.id, spec.purpose, spec.point)
}

fn ended(record: &TrialRecord, verdict: &Verdict) -> String {
    let trial = JudgedTrial { record: record.clone(), verdict: verdict.clone() };
    let result = if trial.is_safe() { "ok".to_owned() } else { harmless(&breach_reason(&trial)) };
    let figures = record.measurement.as_ref().map_or_else(String::new, |measurement| {
        if let Some(rate) = measurement.batches_per_second {
            return format!("{rate:.1} batches/s of the loader alone, ");
        }
        // What a program does not tell is not known, and not zero.
        let speed = match (measurement.samples_per_second > 0.0, measurement.step_ms.p50 > 0.0) {
            (true, true) => {
                format!("{:.1} samples/s, {:.1} ms a step, ", measurement.samples_per_second, measurement.step_ms.p50)
            }
            (true, false) => format!("{:.1} samples/s, its start included, ", measurement.samples_per_second),
            (false, _) => String::new(),
        };
        let peak = match measurement.peak_reserved_bytes {
            0 => String::new(),
            bytes => format!("peak {}, ", Bytes(bytes)),
        };
        format!("{speed}{peak}")
    });
    format!("trial {}: {figures}{result} ({:.1} s)", record.spec.id, record.seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::Point;

    #[test]
    fn a_play_says_how_far_it_is_now_and_then() {
        let mut plain = Plain::default();
        let at = |step| Event::RunPlaying { point: Point::plain(8), step, total: 300_000 };
        assert_eq!((plain.playing(&at(0)), plain.playing(&at(1000))), (None, None));
        plain.told = Instant::now().checked_sub(TOLD_EVERY);
        let said = plain.playing(&at(120_000));
        assert_eq!(said.as_deref(), Some("whole run of batch 8: 120000 of 300000 steps played"));
        assert_eq!(plain.playing(&at(120_001)), None);
    }
}
