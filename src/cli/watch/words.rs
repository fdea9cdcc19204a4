//! How a watch reads for people.

use std::fmt::Write;

use crate::text::harmless;
use crate::units::{Bytes, format_duration};
use crate::watch::{Ending, Exit, Finding, Holder, Observations, Sample, Subject, Summary};

/// The width of the small chart beside a line.
pub(super) const SPARK_COLUMNS: usize = 24;
/// The width of the chart of the whole.
const CHART_COLUMNS: usize = 72;
/// Processes that a line names.
const NAMED: usize = 3;
/// What is said once a climb has ended.
pub(super) const NO_LEAK: &str = "  · the climb has ended: it was no leak so far\n";

pub(super) fn begin(subject: &Subject) -> String {
    let what = match (subject.pid, &subject.process) {
        (Some(pid), Some(name)) => format!("until {} (process {pid}) ends", harmless(name)),
        (Some(pid), None) => format!("until process {pid} ends"),
        (None, _) => "until Ctrl-C".to_owned(),
    };
    format!("{}, {}, {what}\n", harmless(&subject.name), Bytes(subject.total_bytes))
}

pub(super) fn sample(sample: &Sample, total_bytes: u64, spark: &str) -> String {
    let busy = sample.utilisation_percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent}%"));
    let mut named: Vec<String> = sample.processes.iter().take(NAMED).map(Holder::to_string).collect();
    if sample.processes.len() > NAMED {
        named.push(format!("{} more", sample.processes.len() - NAMED));
    }
    let row = format!(
        "{:>8.1} s  {:>10}  {:>4}  busy {busy:>4}  {spark}{}",
        sample.at_seconds,
        Bytes(sample.used_bytes).to_string(),
        percent(sample.used_bytes, total_bytes),
        named.join(", ")
    );
    format!("{}\n", row.trim_end())
}

pub(super) fn missed(at_seconds: f64) -> String {
    format!("{at_seconds:>8.1} s  the card did not answer\n")
}

pub(super) fn finding(finding: &Finding) -> String {
    format!("  ! {}\n", harmless(&finding.text))
}

pub(super) fn summary(subject: &Subject, found: &Summary, observations: &Observations) -> String {
    let mut text = format!("\n{}\n\n", ending(subject, found));
    let total = found.total_bytes;
    let share = |bytes| format!("{} ({})", Bytes(bytes), percent(bytes, total));
    let mut samples = found.samples.to_string();
    for (count, what) in [(found.missed_samples, "missed"), (found.disordered_samples, "out of order")] {
        if count > 0 {
            let _ = write!(samples, ", {count} {what}");
        }
    }
    let mut rows = vec![
        (
            "in use",
            format!("{} at most, {} at the end, of {}", share(found.peak_bytes), share(found.end_bytes), Bytes(total)),
        ),
        ("falls", format!("{} by more than 2% of the card", found.falls)),
        ("samples", samples),
    ];
    let named: Vec<String> = found.processes.iter().take(NAMED).map(Holder::to_string).collect();
    if !named.is_empty() {
        rows.push(("processes", format!("{} at most", named.join(", "))));
    }
    let chart = spark(&observations.heights(CHART_COLUMNS), total);
    rows.push(("over time", chart.trim_end().to_owned()));
    for (name, value) in rows {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<11} {value}");
    }
    if found.findings.is_empty() {
        text.push_str("\nNothing stands out.\n");
    }
    for finding in &found.findings {
        let _ = write!(text, "\n{}\n", harmless(&finding.sentence()));
        for (number, advice) in finding.advice.iter().enumerate() {
            let _ = writeln!(text, "  {}. {advice}", number + 1);
        }
    }
    text
}

fn ending(subject: &Subject, found: &Summary) -> String {
    let process = match (subject.pid, &subject.process) {
        (Some(pid), Some(name)) => format!("{} (process {pid})", harmless(name)),
        (Some(pid), None) => format!("process {pid}"),
        (None, _) => "the process".to_owned(),
    };
    let after = std::time::Duration::try_from_secs_f64(found.seconds.round()).unwrap_or_default();
    let after = format_duration(after);
    match found.ending {
        Ending::ProcessEnded { exit: Some(Exit::Code(code)) } => {
            format!("{process} ended with exit code {code} after {after}")
        }
        Ending::ProcessEnded { exit: Some(Exit::Signal(signal)) } => {
            format!("{process} was ended by signal {signal} after {after}")
        }
        Ending::ProcessEnded { exit: None } => {
            format!("{process} ended after {after}; its exit code was taken by its parent before it could be seen")
        }
        Ending::Interrupted => format!("the watch was stopped after {after}"),
        Ending::Unread => format!("nobody read the watch any more after {after}"),
        Ending::CardLost => format!("the card no longer answered after {after}"),
        Ending::CutOff => format!("the recording has no end; its last sample is at {after}"),
    }
}

/// Used bytes as columns, the whole height being the card; followed by room for what is not seen yet.
pub(super) fn spark(heights: &[u64], total_bytes: u64) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let level = |bytes: u64| {
        let share = bytes as f64 / total_bytes.max(1) as f64;
        LEVELS[((share * LEVELS.len() as f64) as usize).min(LEVELS.len() - 1)]
    };
    let drawn: String = heights.iter().map(|bytes| level(*bytes)).collect();
    format!("{drawn:<SPARK_COLUMNS$}  ")
}

fn percent(bytes: u64, total_bytes: u64) -> String {
    format!("{:.0}%", 100.0 * bytes as f64 / total_bytes.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::GIB;

    #[test]
    fn a_line_tells_time_memory_and_who_and_drives_no_terminal() {
        let processes =
            vec![Holder { pid: 7, name: Some("py\u{1b}[2J".to_owned()), bytes: Some(GIB), ..Holder::default() }];
        let seen = Sample {
            at_seconds: 12.0,
            used_bytes: 3 * GIB / 2,
            utilisation_percent: Some(98),
            processes,
            ..Sample::default()
        };
        let line = sample(&seen, 2 * GIB, "");
        assert_eq!(line, "    12.0 s     1.5 GiB   75%  busy  98%  py\u{fffd}[2J (process 7) 1.0 GiB\n");
    }

    #[test]
    fn columns_are_shares_of_the_card() {
        assert_eq!(spark(&[0, 50, 100, 500], 100).trim_end(), "▁▅██");
        assert_eq!(spark(&[1], 0).trim_end(), "█");
    }

    #[test]
    fn every_ending_has_its_words() {
        let subject = Subject { pid: Some(7), total_bytes: 100, ..Subject::default() };
        let observations = Observations::of(&subject);
        let told = |how| summary(&subject, &observations.summary(how), &observations);
        let ended = |exit| told(Ending::ProcessEnded { exit });
        assert!(ended(Some(Exit::Code(1))).contains("process 7 ended with exit code 1 after 0s"));
        assert!(ended(Some(Exit::Signal(9))).contains("by signal 9"));
        assert!(ended(None).contains("taken by its parent"));
        assert!(told(Ending::CutOff).contains("has no end") && told(Ending::CutOff).contains("Nothing stands out."));
    }
}
