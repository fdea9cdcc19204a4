//! `tune replay`: what a recording needs under other allocator settings.

use std::fmt::Write;

use super::{Form, ReplayArgs, input, print_result, rate};
use crate::error::Error;
use crate::exit_code;
use crate::memory::compare::{self, ReplayOptions, ReplayReport};
use crate::memory::policy::{AllocConf, Backend};
use crate::units::Bytes;

pub(super) fn run(args: &ReplayArgs) -> Result<u8, Error> {
    let trace = input::recording(&args.file)?.into_trace();
    let limit_bytes = args.limit.map(|limit| limit.0);
    if args.compare {
        let reports = compare::compare(&trace, limit_bytes)?;
        match Form::of(args.json) {
            Form::Json => print_result(&format!("{}\n", super::to_json(&reports)))?,
            Form::Table => print_result(&ranking(&reports))?,
        }
        return Ok(exit_code::SAFE);
    }
    let report = compare::report(&trace, &ReplayOptions { conf: conf(args, &trace.conf)?, limit_bytes })?;
    match Form::of(args.json) {
        Form::Json => print_result(&format!("{}\n", super::to_json(&report)))?,
        Form::Table => print_result(&table(&report))?,
    }
    Ok(exit_code::SAFE)
}

/// The settings that the flags ask for; none where the file's own are meant.
fn conf(args: &ReplayArgs, own: &AllocConf) -> Result<Option<AllocConf>, Error> {
    let mut conf = match &args.conf {
        Some(text) => Some(text.parse::<AllocConf>()?),
        None => None,
    };
    if let Some(backend) = args.backend {
        let backend = Backend::from(backend);
        if conf.is_some() || backend != own.backend {
            conf.get_or_insert_default().backend = backend;
        }
    }
    Ok(conf)
}

fn table(report: &ReplayReport) -> String {
    let settings = if report.conf.is_empty() { "the defaults" } else { &report.conf };
    let mut text = format!("{} events under {} with {settings}\n\n", report.events, report.backend);
    let limit = report.minimum_limit_bytes.map_or_else(|| "none".to_owned(), |bytes| Bytes(bytes).to_string());
    let rows = [
        ("peak allocated", Bytes(report.peak_allocated_bytes).to_string()),
        ("peak reserved", Bytes(report.peak_reserved_bytes).to_string()),
        ("smallest limit", limit),
        ("segments", format!("{} taken, {} given back", report.segments_allocated, report.segments_freed)),
        ("retries", report.retries.to_string()),
        (
            "fragmentation",
            format!(
                "peak {}, external {}, cache {}",
                rate(report.rates.peak),
                rate(report.rates.external),
                rate(report.rates.reserved)
            ),
        ),
    ];
    for (name, value) in rows {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<15} {value}");
    }
    match (report.oom_at_event, report.limit_bytes) {
        (Some(event), Some(limit)) => {
            let _ = writeln!(text, "out of memory   at event {event} under {}", Bytes(limit));
        }
        (None, Some(limit)) => {
            let _ = writeln!(text, "survives        under {}", Bytes(limit));
        }
        (_, None) => {}
    }
    text
}

fn ranking(reports: &[ReplayReport]) -> String {
    let mut text = format!(
        "{:>14}  {:>13}  {:>10}  {:>7}  {:<9}  settings\n",
        "smallest limit", "peak reserved", "fragmented", "retries", "result"
    );
    for report in reports {
        let limit = report.minimum_limit_bytes.map_or_else(|| "none".to_owned(), |bytes| Bytes(bytes).to_string());
        let result = match (report.limit_bytes, report.oom_at_event) {
            (None, _) => "-",
            (Some(_), None) => "survives",
            (Some(_), Some(_)) => "runs out",
        };
        let _ = writeln!(
            text,
            "{limit:>14}  {:>13}  {:>10}  {:>7}  {result:<9}  {}",
            Bytes(report.peak_reserved_bytes).to_string(),
            rate(report.rates.peak),
            report.retries,
            if report.conf.is_empty() { "(the defaults)" } else { &report.conf }
        );
    }
    text
}
