//! The answer, what was measured of it, and what the safety rules say.

use super::document::{table, tile};
use super::markup::{Html, brief, text};
use super::study::Study;
use crate::report::recommendation::{Alternative, Basis, Measured, Recommended};
use crate::search::recommend::Status;
use crate::units::{Bytes, Fraction, plural};

/// The longest reason in a table.
pub(super) const LONGEST_REASON: usize = 400;
/// The most alternatives of a kind.
const MOST_OTHERS: usize = 50;

/// What stands above everything: the status and the configuration in a sentence.
pub(super) fn headline(study: &Study<'_>, html: &mut Html) {
    let status = study.recommendation.as_ref().map_or(Status::None, |recommendation| recommendation.status);
    write!(html, "<div class=\"answer {}\"><p class=\"headline\">", status.name());
    match (study.recommended(), status) {
        (Some(recommended), Status::Safe) => write!(html, "Safe: {}", text(sentence(recommended))),
        (Some(recommended), _) => write!(html, "Not verified yet: {}", text(sentence(recommended))),
        (None, _) => write!(html, "No safe configuration so far"),
    }
    write!(html, "</p>");
    for line in why(study, status) {
        write!(html, "<p>{}</p>", text(line));
    }
    write!(html, "</div>");
}

fn sentence(recommended: &Recommended) -> String {
    format!(
        "batch size {} × {} = {}, {}, prefetch depth {}",
        recommended.batch_size,
        plural(recommended.accumulation_steps, "accumulation step"),
        recommended.effective_batch_size,
        plural(recommended.loader_workers, "loader worker"),
        recommended.prefetch_depth,
    )
}

/// Why that is the answer, and how far the study came.
fn why(study: &Study<'_>, status: Status) -> Vec<String> {
    let mut lines = Vec::new();
    if study.is_unreadable {
        lines.push("The journal's last recommendation is not one that this version can read.".to_owned());
    }
    if !study.left_out.is_empty() {
        lines.push(format!("Left out, since it cannot be: {}.", study.left_out.join("; ")));
    }
    match status {
        Status::Safe => lines.push(
            "The fastest point that meets the target and passed a soak: a long run with an evaluation pass and a \
             checkpoint, in which no safety rule broke. Within half a percent of speed the one with less memory wins."
                .to_owned(),
        ),
        Status::Unverified => {
            lines.push(
                "The best point of the short trials; its soak has not passed, so it may not be launched.".to_owned(),
            );
        }
        Status::None if study.trials.is_empty() => lines.push("No trial has ended.".to_owned()),
        Status::None => lines.push("Every point that was tried broke a rule; see what was rejected.".to_owned()),
    }
    let done = plural(study.trials.len(), "trial");
    lines.push(match study.conclusion {
        Some(_) => format!("The study ended after {done}."),
        None => format!("The study has not ended; {done} so far."),
    });
    if study.starts > 1 {
        lines.push(format!("It was taken up again {}.", plural(study.starts - 1, "time")));
    }
    if let Some(spec) = study.unfinished.last() {
        lines
            .push(format!("Trial {} ({}, {}) began and has no end in the journal.", spec.id, spec.purpose, spec.point));
    }
    lines
}

/// The figures of the answer and the rules' findings.
pub(super) fn write(study: &Study<'_>, html: &mut Html) {
    let Some(recommendation) = &study.recommendation else {
        write!(html, "<p>The journal holds no recommendation yet.</p>");
        return;
    };
    if let Some(recommended) = &recommendation.recommended {
        write!(html, "<dl class=\"tiles\">");
        configuration(recommended, html);
        write!(html, "</dl>");
        if let Some(reason) = &recommended.allocator.reason {
            write!(html, "<p>Settings of the allocator: {}.</p>", brief(reason, 2 * LONGEST_REASON));
        }
    }
    if let Some(measured) = &recommendation.measured {
        write!(html, "<h3>Measured over {}</h3><dl class=\"tiles\">", text(plural(measured.steps as usize, "step")));
        figures(measured, html);
        write!(html, "</dl>");
    }
    if recommendation.checks.is_empty() {
        write!(html, "<p>There is no point whose safety rules could be shown.</p>");
    } else {
        table(html, "Safety rules", &["finding", "rule", "what it means"], |html| {
            for check in &recommendation.checks {
                // What could not be judged has no colour.
                let level = if check.outcome() == check.level().name() { check.outcome() } else { "nothing" };
                write!(
                    html,
                    "<tr><td class=\"{level}\">{}</td><td>{}</td><td class=\"long\">{}</td></tr>",
                    check.outcome(),
                    brief(check.rule.replace('_', " "), 80),
                    brief(&check.reason, LONGEST_REASON)
                );
            }
        });
    }
    alternatives(study, html);
}

fn configuration(recommended: &Recommended, html: &mut Html) {
    tile(html, "batch size", recommended.batch_size);
    tile(html, "accumulation steps", recommended.accumulation_steps);
    tile(html, "effective batch size", recommended.effective_batch_size);
    tile(html, "loader workers × prefetch", format!("{} × {}", recommended.loader_workers, recommended.prefetch_depth));
    tile(html, "batches staged on the device", recommended.device_prefetch);
    tile(html, "precision", recommended.precision);
    tile(html, "allocator", &recommended.allocator.backend);
    if let Some(conf) = &recommended.allocator.conf {
        tile(html, "allocator settings", conf);
    }
}

fn figures(measured: &Measured, html: &mut Html) {
    if measured.samples_per_second > 0.0 {
        tile(html, "samples a second", format!("{:.1}", measured.samples_per_second));
    }
    if measured.step_ms.p50 > 0.0 {
        tile(html, "step, median (95 %)", format!("{:.1} ms ({:.1})", measured.step_ms.p50, measured.step_ms.p95));
        tile(html, "waiting for data", Fraction(measured.data_wait_fraction));
    }
    if measured.peak_reserved_bytes > 0 {
        tile(html, "peak allocated", Bytes(measured.peak_allocated_bytes));
        tile(html, "peak reserved", Bytes(measured.peak_reserved_bytes));
        tile(html, "limit", Bytes(measured.limit_bytes));
        tile(html, "free at the peak", Bytes(measured.headroom_bytes));
    }
    if let Some(rate) = measured.fragmentation.max {
        tile(html, "highest fragmentation", Fraction(rate));
    }
    if let Some(rate) = measured.fragmentation.native {
        tile(html, "under PyTorch's native allocator (replay)", Fraction(rate));
    }
    if let (Some(first), Some(last)) = (measured.first_loss, measured.last_loss) {
        tile(html, "loss, first and last", format!("{first:.3} to {last:.3}"));
    }
}

fn alternatives(study: &Study<'_>, html: &mut Html) {
    let Some(recommendation) = &study.recommendation else { return };
    let others = |basis| recommendation.alternatives.iter().filter(move |other| other.basis == basis).take(MOST_OTHERS);
    measured_alternatives(others(Basis::Measured).collect(), html);
    forecast_alternatives(others(Basis::Forecast).collect(), html);
}

fn measured_alternatives(others: Vec<&Alternative>, html: &mut Html) {
    if others.is_empty() {
        return;
    }
    write!(html, "<h3>Slower points that need less memory</h3>");
    let headings = ["batch × accumulation", "workers × prefetch", "samples/s#", "peak reserved#"];
    table(html, "Alternatives", &headings, |html| {
        for other in others {
            let rate = other.samples_per_second.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.1}"));
            write!(
                html,
                "<tr><td>{} × {}</td><td>{} × {}</td><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>",
                other.point.batch_size,
                other.point.accumulation_steps,
                other.point.loader_workers,
                other.point.prefetch_depth,
                text(rate),
                Bytes(other.peak_reserved_bytes)
            );
        }
    });
}

fn forecast_alternatives(others: Vec<&Alternative>, html: &mut Html) {
    if others.is_empty() {
        return;
    }
    write!(
        html,
        "<h3>Other shapes, by forecast</h3><p>None of these was run, so none is proved. What they are compared with is the \
         same point as it is.</p>"
    );
    let headings = ["batch × accumulation", "with", "peak reserved#", "instead of#", "what it changes"];
    table(html, "Alternatives by forecast", &headings, |html| {
        for (other, remedy) in others.into_iter().filter_map(|other| Some((other, other.remedy.as_ref()?))) {
            write!(
                html,
                "<tr><td>{} × {}</td><td class=\"long\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
                 <td class=\"long\">{}</td></tr>",
                other.point.batch_size,
                other.point.accumulation_steps,
                text(remedy.changes),
                Bytes(other.peak_reserved_bytes),
                Bytes(remedy.as_it_is.peak_reserved_bytes),
                brief(&remedy.reason, LONGEST_REASON)
            );
        }
    });
}
