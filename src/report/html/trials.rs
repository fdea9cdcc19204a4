//! Every trial, and what was rejected and why.

use super::answer::LONGEST_REASON;
use super::document::table;
use super::markup::{Html, brief, text};
use super::study::Study;
use crate::search::{JudgedTrial, staged};
use crate::trial::Outcome;
use crate::units::{Bytes, plural};

/// The most rows of a table.
const MOST_ROWS: usize = 400;
/// The most logs of crashed workers, and the characters of each: the end of a log says most.
const MOST_LOGS: usize = 10;
const LOG_CHARS: usize = 3000;

pub(super) fn all(study: &Study<'_>, html: &mut Html) {
    let headings = ["trial#", "why it ran", "point", "samples/s#", "peak reserved#", "seconds#", "result"];
    table(html, "Every trial", &headings, |html| {
        for trial in study.trials.iter().take(MOST_ROWS) {
            row(study, trial, html);
        }
    });
    more(study.trials.len(), html);
}

fn row(study: &Study<'_>, trial: &JudgedTrial, html: &mut Html) {
    let record = &trial.record;
    let spec = &record.spec;
    let best = if spec.is_soak() && study.is_answer(&spec.point) { " class=\"best\"" } else { "" };
    write!(
        html,
        "<tr{best}><td class=\"number\">{}</td><td>{}</td><td>{}</td>",
        spec.id,
        spec.purpose,
        brief(&spec.point, 160)
    );
    let told = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
    let rate = trial.samples_per_second().filter(|rate| *rate > 0.0).map(|rate| format!("{rate:.1}"));
    let reserved = record.measurement.as_ref().map(|measurement| measurement.peak_reserved_bytes);
    let reserved = reserved.filter(|bytes| *bytes > 0).map(|bytes| Bytes(bytes).to_string());
    write!(
        html,
        "<td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{:.1}</td>",
        told(rate),
        told(reserved),
        record.seconds
    );
    if trial.is_safe() {
        write!(html, "<td class=\"passed\">ok</td></tr>");
    } else {
        write!(html, "<td class=\"long\">{}</td></tr>", brief(staged::breach_reason(trial), LONGEST_REASON));
    }
}

fn more(count: usize, html: &mut Html) {
    if let Some(more) = count.checked_sub(MOST_ROWS).filter(|more| *more > 0) {
        write!(html, "<p>and {} more, which the journal holds</p>", text(plural(more, "row")));
    }
}

pub(super) fn rejected(study: &Study<'_>, html: &mut Html) {
    // A probe is no candidate, nor is a loader without a model.
    let rejected: Vec<&JudgedTrial> =
        study.trials.iter().filter(|trial| !trial.is_safe() && trial.record.outcome != Outcome::Cancelled).collect();
    if rejected.is_empty() && study.skips.is_empty() {
        write!(html, "<p>Nothing was rejected.</p>");
        return;
    }
    table(html, "Rejected points", &["point", "outcome", "why"], |html| {
        for trial in rejected.iter().take(MOST_ROWS) {
            line(html, &trial.record.spec.point, trial.record.outcome.name(), &staged::breach_reason(trial));
        }
        for (point, reason) in study.skips.iter().take(MOST_ROWS) {
            line(html, point, "skipped", reason);
        }
    });
    more(rejected.len().max(study.skips.len()), html);
    logs(&rejected, html);
}

fn line(html: &mut Html, point: &crate::trial::Point, outcome: &str, reason: &str) {
    write!(
        html,
        "<tr><td>{}</td><td>{}</td><td class=\"long\">{}</td></tr>",
        brief(point, 160),
        text(outcome.replace('_', " ")),
        brief(reason, LONGEST_REASON)
    );
}

fn logs(rejected: &[&JudgedTrial], html: &mut Html) {
    let crashed = rejected.iter().filter_map(|trial| match &trial.record.outcome {
        Outcome::Crashed { log, .. } if !log.trim().is_empty() => Some((trial.record.spec.id, log)),
        _ => None,
    });
    for (id, log) in crashed.take(MOST_LOGS) {
        let before_the_end = log.chars().count().saturating_sub(LOG_CHARS);
        let end: String = log.chars().skip(before_the_end).collect();
        write!(html, "<details><summary>Last lines of trial {id}</summary><pre>{}</pre></details>", text(end));
    }
}
