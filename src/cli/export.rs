//! `tune export`: a safe recommendation in the form that a launch needs.

use super::{ExportArgs, print_result};
use crate::config;
use crate::error::Error;
use crate::exit_code;
use crate::report::{Recommendation, export};

pub(super) fn run(args: &ExportArgs) -> Result<u8, Error> {
    let recommendation = Recommendation::read(&args.recommendation)?;
    let expected = match &args.config {
        Some(path) => Some(config::load(path, &args.changes.overrides())?.plan.sha256()),
        None => None,
    };
    print_result(&export::export(&recommendation, args.format, expected.as_deref())?)?;
    Ok(exit_code::SAFE)
}
