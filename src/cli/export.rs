//! `tune export`: a safe recommendation in the form that a launch needs.

use std::path::Path;

use super::{ExportArgs, input, print_result};
use crate::config::{self, Plan};
use crate::device::facts;
use crate::error::Error;
use crate::exit_code;
use crate::progress::say;
use crate::report::export::{self, ExportError, Request, base};
use crate::report::{Recommendation, recommendation};
use crate::trial::disk;

pub(super) fn run(args: &ExportArgs) -> Result<u8, Error> {
    let recommendation = Recommendation::read(&args.recommendation)?;
    let plan = match &args.config {
        Some(path) => Some(config::load(path, &args.changes.overrides())?.plan),
        None => None,
    };
    let expected = plan.as_ref().map(Plan::sha256);
    let base = args.into.as_deref().map(json).transpose()?;
    let exported = export::export(&Request {
        recommendation: &recommendation,
        format: args.format,
        expected_sha256: expected.as_deref(),
        base: base.as_ref(),
        shared_memory_bytes: shared_memory(&recommendation),
    })?;
    if let Some(plan) = &plan {
        refuse_other_replicas(&recommendation, plan.target.replicas)?;
    }
    match &args.output {
        Some(path) => {
            refuse_recommendation_as_output(&args.recommendation, path)?;
            recommendation::write_whole(path, exported.text.as_bytes())?;
        }
        None => print_result(&exported.text)?,
    }
    for note in &exported.notes {
        say(&format!("note: {note}"));
    }
    Ok(exit_code::SAFE)
}

/// What is free of shared memory, where this is the host that the recommendation was made on. Another host's is not known.
fn shared_memory(recommendation: &Recommendation) -> Option<u64> {
    let is_here = facts::hostname(Path::new("/")) == recommendation.environment.hostname;
    is_here.then(|| disk::free_bytes(Path::new("/dev/shm"))).flatten()
}

/// A file of the format, to merge the recommendation into.
fn json(path: &Path) -> Result<serde_json::Value, Error> {
    let text = input::text(path)?;
    Ok(base::read(path, &text)?)
}

/// Whoever edits the number of replicas and the effective batch with it changes what is launched.
fn refuse_other_replicas(recommendation: &Recommendation, expected: usize) -> Result<(), ExportError> {
    match recommendation.recommended.as_ref().map(|recommended| recommended.replicas) {
        Some(found) if found != expected => Err(ExportError::Replicas { expected, found }),
        _ => Ok(()),
    }
}

/// An export in place of the recommendation that it is of would lose the latter.
fn refuse_recommendation_as_output(recommendation: &Path, output: &Path) -> Result<(), ExportError> {
    match (recommendation.canonicalize(), output.canonicalize()) {
        (Ok(from), Ok(to)) if from == to && from.is_file() => {
            Err(ExportError::OutputIsInput { path: output.to_owned() })
        }
        _ => Ok(()),
    }
}
