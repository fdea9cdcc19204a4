//! The closing table for people: what was tried, why the winner won, what was rejected.

use std::fmt::Write;

use super::Recommendation;
use super::recommendation::{Alternative, Measured, OtherPoint, Recommended, Remedy};
use crate::memory::FragmentationMetric;
use crate::search::recommend::Status;
use crate::search::{History, JudgedTrial, staged};
use crate::text::harmless;
use crate::train::GradientCheckpointing;
use crate::trial::Measurement;
use crate::trial::statistics::Trust;
use crate::units::{Bytes, Fraction, plural};

/// Columns of the table: heading, and whether numbers stand in it.
const COLUMNS: [(&str, Align); 8] = [
    ("trial", Align::Right),
    ("stage", Align::Left),
    ("batch", Align::Right),
    ("loader", Align::Right),
    ("samples/s", Align::Right),
    ("peak", Align::Right),
    ("fragmented", Align::Right),
    ("result", Align::Left),
];

/// Points of which it is told what other shapes would do.
const MOST_FORECASTS: usize = 2;

/// Which side a column's cells stand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}

/// The summary of a study for a terminal or a log.
pub fn summary(history: &History, recommendation: &Recommendation) -> String {
    let confs = alloc_confs(history);
    let rows: Vec<[String; 8]> = history.trials().iter().map(|trial| row(trial, &confs)).collect();
    let mut text = render(&rows);
    for (number, conf) in (1..).zip(&confs) {
        let _ = writeln!(text, "[{number}]: with {}", single_line(conf));
    }
    if !history.trials().iter().all(is_certain) {
        text.push_str("~: its steps were too few or too uneven for a certain figure\n");
    }
    text.push('\n');
    text.push_str(&answer(recommendation));
    text
}

/// The settings of the allocator that trials ran with, but for the program's own, in the order in which they came up.
fn alloc_confs(history: &History) -> Vec<&str> {
    let mut confs: Vec<&str> = Vec::new();
    for conf in history.trials().iter().filter_map(|trial| trial.record.spec.point.alloc_conf.as_deref()) {
        if !confs.contains(&conf) {
            confs.push(conf);
        }
    }
    confs
}

fn row(trial: &JudgedTrial, confs: &[&str]) -> [String; 8] {
    let record = &trial.record;
    let point = &record.spec.point;
    let measurement = record.measurement.as_ref();
    let rate = trial.verdict.checks.iter().find(|check| check.rule == "fragmentation").and_then(|check| check.value);
    let dash = || "-".to_owned();
    let conf = point.alloc_conf.as_deref().and_then(|conf| confs.iter().position(|known| *known == conf));
    let conf = conf.map_or_else(String::new, |place| format!(" [{}]", place + 1));
    // A program that does not report tells neither its speed nor its memory.
    let told = |is_told: fn(&Measurement) -> bool| measurement.filter(|measurement| is_told(measurement));
    [
        record.spec.id.to_string(),
        record.spec.purpose.to_string(),
        format!(
            "{} × {}{}{conf}",
            point.batch_size,
            point.accumulation_steps,
            recomputing(point.gradient_checkpointing)
        ),
        format!("{} × {}", point.loader_workers, point.prefetch_depth),
        told(|measurement| measurement.samples_per_second > 0.0).map_or_else(dash, |measurement| {
            format!("{}{:.1}", if is_certain(trial) { "" } else { "~" }, measurement.samples_per_second)
        }),
        told(|measurement| measurement.peak_reserved_bytes > 0)
            .map_or_else(dash, |measurement| Bytes(measurement.peak_reserved_bytes).to_string()),
        rate.map_or_else(dash, |rate| format!("{:.1}%", rate * 100.0)),
        if trial.is_safe() { "ok".to_owned() } else { single_line(&staged::breach_reason(trial)) },
    ]
}

/// Whether a trial's speed may be believed, as far as that was judged. Nobody takes a probe's for one.
fn is_certain(trial: &JudgedTrial) -> bool {
    let trust = trial.record.measurement.as_ref().and_then(|measurement| measurement.trust);
    trial.record.spec.is_probe() || trust.is_none_or(|trust| trust == Trust::Reliable)
}

/// A text without control characters of any kind.
fn printable(text: &str) -> String {
    harmless(text).chars().filter(|c| !c.is_control() && *c != char::REPLACEMENT_CHARACTER).collect()
}

/// The first line of a text, shortened, with control characters made harmless.
fn single_line(text: &str) -> String {
    const LONGEST: usize = 90;
    let line = printable(text.lines().next().unwrap_or(""));
    if line.chars().count() <= LONGEST {
        return line;
    }
    let cut: String = line.chars().take(LONGEST).collect();
    // Between two words: `3…` of 30 % would be another figure.
    let words = cut.rsplit_once(' ').map_or(cut.as_str(), |(words, _)| words);
    format!("{words} …")
}

fn render(rows: &[[String; 8]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([COLUMNS[column].0.chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..COLUMNS.len()).map(width).collect();
    let heading = COLUMNS.map(|(title, _)| title.to_owned());
    let mut text = String::new();
    for row in std::iter::once(&heading).chain(rows) {
        let cells = row.iter().zip(COLUMNS).zip(&widths).map(|((cell, (_, align)), width)| match align {
            Align::Left => format!("{cell:<width$}"),
            Align::Right => format!("{cell:>width$}"),
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn answer(recommendation: &Recommendation) -> String {
    let mut text = String::new();
    match (&recommendation.recommended, &recommendation.measured) {
        (Some(recommended), Some(measured)) => {
            text.push_str(&headline(recommendation.status, recommended));
            text.push_str(&figures(measured));
            if let Some(reason) = &recommended.allocator.reason {
                let _ = writeln!(text, "  allocator: {}", printable(reason.lines().next().unwrap_or_default()));
            }
            for check in &recommendation.checks {
                // A known answer is read from a journal.
                let (rule, reason) = (printable(&check.rule), printable(&check.reason));
                let _ = writeln!(text, "  {:<7}  {rule}: {reason}", check.outcome());
            }
        }
        _ => text.push_str("No safe configuration was found.\n"),
    }
    text.push_str(&by_forecast(&recommendation.alternatives));
    if !recommendation.rejected.is_empty() {
        let _ = writeln!(text, "Rejected: {}", plural(recommendation.rejected.len(), "point"));
        for rejected in &recommendation.rejected {
            let _ = writeln!(
                text,
                "  {} × {}{}: {}",
                rejected.point.batch_size,
                rejected.point.accumulation_steps,
                recomputing(rejected.point.gradient_checkpointing),
                single_line(&rejected.reason)
            );
        }
    }
    for note in &recommendation.notes {
        let _ = writeln!(text, "Note: {}", printable(note.lines().next().unwrap_or_default()));
    }
    for warning in &recommendation.warnings {
        let _ = writeln!(text, "Warning: {}", printable(warning.lines().next().unwrap_or_default()));
    }
    text
}

/// What other shapes would do: the best for each point, and how many more there are in the file.
fn by_forecast(alternatives: &[Alternative]) -> String {
    let of_point = |OtherPoint { batch_size, accumulation_steps, gradient_checkpointing, .. }: OtherPoint| {
        (batch_size, accumulation_steps, gradient_checkpointing)
    };
    let all: Vec<(&Alternative, &Remedy)> =
        alternatives.iter().filter_map(|other| Some((other, other.remedy.as_ref()?))).collect();
    let mut best: Vec<(&Alternative, &Remedy)> = Vec::new();
    for (other, remedy) in &all {
        if best.len() < MOST_FORECASTS && best.iter().all(|(told, _)| of_point(told.point) != of_point(other.point)) {
            best.push((other, remedy));
        }
    }
    let mut text = String::new();
    for (other, remedy) in &best {
        let point = format!("batch size {} × {}", other.point.batch_size, other.point.accumulation_steps);
        let (changes, reason) = (remedy.changes, printable(&remedy.reason));
        let _ = writeln!(text, "By forecast, not proved: {point} with {changes}: {reason}");
    }
    if all.len() > best.len() {
        let _ = writeln!(text, "  ({} more under `alternatives` in the file)", all.len() - best.len());
    }
    text
}

fn headline(status: Status, recommended: &Recommended) -> String {
    let title = match status {
        Status::Safe => "Safe",
        Status::Unverified => "Unverified (no soak has proved it)",
        Status::None => "None",
    };
    let replicas =
        if recommended.replicas > 1 { format!(" × {} replicas", recommended.replicas) } else { String::new() };
    format!(
        "{title}: batch size {} × {}{replicas} = {}, {}, prefetch depth {}{}\n",
        recommended.batch_size,
        plural(recommended.accumulation_steps, "accumulation step"),
        recommended.effective_batch_size,
        plural(recommended.loader_workers, "loader worker"),
        recommended.prefetch_depth,
        recomputing(recommended.gradient_checkpointing),
    )
}

/// What stands after a batch whose activations are recomputed.
fn recomputing(mode: GradientCheckpointing) -> String {
    if mode.is_none() { String::new() } else { format!(", recomputing {mode}") }
}

fn figures(measured: &Measured) -> String {
    let mut parts = Vec::new();
    if measured.samples_per_second > 0.0 {
        parts.push(format!("{:.1} samples/s", measured.samples_per_second));
    }
    if measured.step_ms.p50 > 0.0 {
        parts.push(format!("{:.1} ms a step", measured.step_ms.p50));
        parts.push(format!("{} of the time waiting for data", Fraction(measured.data_wait_fraction)));
    }
    if let (Some(first), Some(last)) = (measured.first_loss, measured.last_loss) {
        parts.push(format!("loss {first:.3} to {last:.3}"));
    }
    if parts.is_empty() {
        parts.push("how fast it runs is not known".to_owned());
    } else {
        let over = format!(" over {}", plural(measured.steps as usize, "step"));
        parts.last_mut().into_iter().for_each(|part| part.push_str(&over));
    }
    let mut text = format!(
        "  {}\n  {} reserved at the peak of a limit of {}, {} free\n",
        parts.join(", "),
        Bytes(measured.peak_reserved_bytes),
        Bytes(measured.limit_bytes),
        Bytes(measured.headroom_bytes),
    );
    let fragmentation = &measured.fragmentation;
    if let Some(native) = fragmentation.native {
        let here = fragmentation.max.filter(|_| fragmentation.metric == FragmentationMetric::Peak);
        let here = here.map_or_else(String::new, |here| format!("{} here, ", Fraction(here)));
        let native = Fraction(native);
        let _ = writeln!(text, "  fragmented at the peak: {here}{native} under PyTorch's native allocator (by replay)");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::recommendation::Fragmentation;
    use super::*;
    use crate::search::rules::testing::{completed, point, sample};
    use crate::search::{Verdict, rules};
    use crate::trial::{Measurement, Purpose, TrialSpec};

    fn measured(fragmentation: Fragmentation) -> Measured {
        Measured {
            samples_per_second: 10.0,
            step_ms: crate::trial::outcome::StepQuantiles { p50: 100.0, p95: 110.0 },
            data_wait_fraction: 0.0,
            batch_bytes: None,
            peak_allocated_bytes: 1 << 20,
            peak_reserved_bytes: 2 << 20,
            limit_bytes: 4 << 20,
            headroom_bytes: 2 << 20,
            largest_satisfiable_bytes: 2 << 20,
            largest_request_bytes: 1 << 20,
            allocated_blocks: 3,
            fragmentation,
            steps: 50,
            first_loss: Some(2.0),
            last_loss: Some(1.0),
        }
    }

    fn fragmentation(native: Option<f64>) -> Fragmentation {
        let metric = FragmentationMetric::Peak;
        Fragmentation { metric, max: Some(0.001), last: Some(0.0), threshold: 0.3, native }
    }

    #[test]
    fn the_native_allocator_s_rate_stands_beside_the_measured_one() {
        let line = |fragmentation| figures(&measured(fragmentation)).lines().nth(2).map(str::to_owned);
        assert_eq!(line(fragmentation(None)), None);
        assert_eq!(
            line(fragmentation(Some(0.139))).unwrap(),
            "  fragmented at the peak: 0.1% here, 13.9% under PyTorch's native allocator (by replay)"
        );
        // Another metric is not to be compared with it.
        let external = Fragmentation { metric: FragmentationMetric::External, ..fragmentation(Some(0.139)) };
        assert_eq!(
            line(external).unwrap(),
            "  fragmented at the peak: 13.9% under PyTorch's native allocator (by replay)"
        );
    }

    #[test]
    fn settings_of_the_allocator_are_numbered_and_listed_below() {
        let trial = |conf: Option<&str>| {
            let tried = crate::trial::Point { alloc_conf: conf.map(str::to_owned), ..point(8) };
            JudgedTrial { record: completed(tried, vec![sample(12)]), verdict: Verdict::default() }
        };
        let mut history = History::default();
        for conf in [None, Some("max_split_size_mb:64"), Some("expandable_segments:True"), Some("max_split_size_mb:64")]
        {
            history.tell(trial(conf));
        }
        let confs = alloc_confs(&history);
        assert_eq!(confs, ["max_split_size_mb:64", "expandable_segments:True"]);
        let batches: Vec<String> = history.trials().iter().map(|trial| row(trial, &confs)[2].clone()).collect();
        let plain = batches[0].clone();
        assert_eq!(batches[1..], [format!("{plain} [1]"), format!("{plain} [2]"), format!("{plain} [1]")]);
    }

    #[test]
    fn a_speed_that_may_not_be_believed_is_marked_and_explained() {
        let trial = |purpose, trust| {
            let record = completed(point(8), vec![sample(12)]);
            let measurement = record.measurement.map(|measurement| Measurement { trust, ..measurement });
            let spec = TrialSpec { purpose, ..record.spec };
            let record = crate::trial::TrialRecord { spec, measurement, ..record };
            let verdict: Verdict = rules::judge(&record, &rules::testing::safety());
            JudgedTrial { record, verdict }
        };
        let speed = |purpose, trust| row(&trial(purpose, trust), &[])[4].clone();
        let plain = speed(Purpose::Ladder, Some(Trust::Reliable));
        assert_eq!(speed(Purpose::Ladder, None), plain, "an old journal does not say");
        assert_eq!(speed(Purpose::Probe, Some(Trust::TooFew)), plain);
        for trust in [Trust::Wide, Trust::Drifting, Trust::TooFew] {
            assert_eq!(speed(Purpose::Ladder, Some(trust)), format!("~{plain}"));
        }
    }
}
