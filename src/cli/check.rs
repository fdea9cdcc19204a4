//! `tune check`: the resolved plan, or every reason why it cannot run.

use super::{PlanArgs, print_result};
use crate::config::{self, Loaded};
use crate::error::Error;
use crate::exit_code;
use crate::model::Registry;
use crate::progress::say;

/// Loads a plan and validates it against what this binary knows: its families, and data that can be opened.
pub(super) fn load(args: &PlanArgs, registry: &Registry) -> Result<Loaded, Error> {
    let loaded = config::load(&args.path(), &args.changes.overrides())?;
    loaded.validate(registry)?;
    Ok(loaded)
}

pub(super) fn run(args: &PlanArgs, registry: &Registry) -> Result<u8, Error> {
    let loaded = load(args, registry)?;
    print_result(&loaded.plan.to_yaml()?)?;
    for note in loaded.notes(registry) {
        say(&format!("note: {note}"));
    }
    Ok(exit_code::SAFE)
}
