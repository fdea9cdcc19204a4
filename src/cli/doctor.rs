//! `tune doctor`: whether this machine is fit for a training run.

use std::fmt::Write;
use std::path::Path;

use super::{Form, print_result};
use crate::doctor::{self, Diagnosis, Facts, Finding, Level, Status};
use crate::error::Error;
use crate::units::plural;

pub(super) fn run(form: Form) -> Result<u8, Error> {
    let diagnosis = doctor::examine(&Facts::gather(Path::new("/")));
    match form {
        Form::Json => print_result(&format!("{}\n", super::to_json(&diagnosis)))?,
        Form::Table => print_result(&words(&diagnosis))?,
    }
    Ok(diagnosis.exit_code())
}

fn words(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for finding in &diagnosis.findings {
        let subject = finding.card.map_or_else(String::new, |card| format!("cuda:{card} "));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:<8}{subject}{}", mark(finding.level), finding.found);
        let _ = writeln!(text, "        {}", finding.meaning);
        if let Some(advice) = finding.advice.as_ref().filter(|_| finding.level > Level::Fine) {
            let _ = writeln!(text, "        → {advice}");
        }
    }
    let _ = writeln!(text, "\n{}", verdict(diagnosis));
    text
}

fn mark(level: Level) -> &'static str {
    match level {
        Level::Fine => "ok",
        Level::Note => "note",
        Level::Warning => "warning",
        Level::Problem => "PROBLEM",
    }
}

fn verdict(diagnosis: &Diagnosis) -> String {
    let count = |level| diagnosis.findings.iter().filter(|finding: &&Finding| finding.level == level).count();
    let warnings = plural(count(Level::Warning), "warning");
    match diagnosis.status {
        Status::NoDevice => format!("No card can be used here; {warnings} on the rest."),
        Status::Problem => format!("{} will break a run; {warnings}.", plural(count(Level::Problem), "problem")),
        Status::Fine => format!("Fit for a run; {warnings}."),
    }
}
