//! Where and how the study ran, and what it warned of.

use super::document::{fact, table};
use super::markup::{Html, brief, text};
use super::places;
use super::study::Study;
use crate::units::Bytes;

/// The most warnings, and characters of each.
const MOST_WARNINGS: usize = 50;
const LONGEST_WARNING: usize = 1000;

pub(super) fn warnings(study: &Study<'_>, html: &mut Html) {
    let warnings = study.warnings();
    if warnings.is_empty() {
        write!(html, "<p>No trial warned of anything.</p>");
        return;
    }
    write!(html, "<ul>");
    for warning in warnings.iter().take(MOST_WARNINGS) {
        write!(html, "<li>{}</li>", brief(warning, LONGEST_WARNING));
    }
    write!(html, "</ul>");
    if warnings.len() > MOST_WARNINGS {
        write!(html, "<p>and {} more</p>", warnings.len() - MOST_WARNINGS);
    }
}

pub(super) fn write(study: &Study<'_>, html: &mut Html) {
    table(html, "Environment", &["what", "value"], |html| {
        if let Some(facts) = study.facts {
            fact(html, "device", format!("{} ({})", facts.name, facts.device));
            fact(html, "memory", Bytes(facts.total_bytes));
            fact(html, "free at the start", Bytes(facts.free_bytes));
            fact(html, "used outside the allocator", Bytes(facts.external_bytes));
            fact(html, "limit", Bytes(facts.limit_bytes));
            fact(html, "allocator", &facts.allocator);
            let optional = [
                ("allocator settings of the environment", &facts.alloc_conf),
                ("driver", &facts.driver),
                ("uuid", &facts.uuid),
            ];
            for (name, value) in optional {
                if let Some(value) = value {
                    fact(html, name, value);
                }
            }
            fact(html, "processors", facts.cpus);
            fact(html, "host", &facts.hostname);
        }
        fact(html, "study began", &study.header.started);
        if let Some(found) = &study.recommendation {
            fact(html, "time", format!("{:.0} s", found.provenance.seconds));
            fact(html, "trials out of memory", found.provenance.oom_trials);
        }
        fact(html, "version", &study.header.version);
        fact(html, "configuration", &study.header.config_sha256);
    });
    places::write(study, html);
    if study.unknown_entries > 0 {
        write!(
            html,
            "<p>The journal has {} entries of a newer version, which are not shown.</p>",
            study.unknown_entries
        );
    }
    let plan = serde_json::to_string_pretty(&study.header.plan).unwrap_or_default();
    write!(html, "<details><summary>The resolved plan</summary><pre>{}</pre></details>", text(plan));
}
