//! The config room: `model.yaml` in, a [`Plan`] out.
//!
//! ```text
//! read      bytes → text          bounded: 1 MiB, UTF-8
//! parse     text → tree + index   bounded: nesting, aliases; the only file that knows YAML
//! overrides --set                 applied to the tree, so they are checked like the file
//! section   tree → File           typed key by key, so that all errors are found in one run
//! supported File                  what a later version can do is refused, in one place
//! checks    File                  contradictions, missing keys, a data file that is not there
//! resolve   File → Plan           defaults, shares of the target, paths
//! validate  Plan, Registry        what only the rooms that use it can find
//! write     Plan → File           for `tune check`
//! ```
//!
//! Two types stand for a configuration. [`file::File`] is what was written, key by key; [`Plan`] is what it means,
//! with every default resolved, and only it leaves this room. Every error knows its place in the file.

use std::path::Path;

use serde_json::Value;

pub mod checks;
pub mod error;
pub mod file;
pub mod introspect;
pub mod leaf;
pub mod overrides;
pub mod parse;
pub mod plan;
pub mod problem;
pub mod read;
pub mod resolve;
pub mod section;
pub mod sections;
pub mod source;
pub mod supported;
pub mod tree;
mod validate;
pub mod words;
pub mod write;

pub use error::{Colours, ConfigError, Problems};
pub use file::json_schema;
pub use plan::Plan;
pub use problem::{Place, Problem, ProblemKind};
pub use source::Located;

/// A configuration that was read and found sound.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What it means.
    pub plan: Plan,
    /// Where its keys are, for errors that only others can find.
    pub source: Located,
}

/// Reads a configuration file and applies overrides (`key.path=value`) to it.
pub fn load(path: &Path, overrides: &[String]) -> Result<Loaded, ConfigError> {
    parse_text(path, &read::read(path)?, overrides)
}

/// Reads a configuration from text, as if it stood in the file at `path`.
pub fn parse_text(path: &Path, text: &str, overrides: &[String]) -> Result<Loaded, ConfigError> {
    let mut located = Located::new(path, text);
    let parsed = parse::parse(text).map_err(|finding| Problems::into_error(vec![at_finding(&located, &finding)]))?;
    let mut problems: Vec<Problem> = parsed.findings.iter().map(|finding| at_finding(&located, finding)).collect();
    let mut tree = parsed.tree;
    refuse_without_keys(&tree, &located)?;
    located.set_index(parsed.index);

    problems.extend(overrides::apply(&mut tree, &mut located, overrides));
    let file = section::type_file(tree, &located, &mut problems);
    supported::refuse_unsupported(&file, &located, &mut problems);
    match resolve::resolve(&file, &located, &mut problems) {
        Some(plan) if problems.is_empty() => Ok(Loaded { plan, source: located }),
        _ => Err(Problems::into_error(problems)),
    }
}

/// What has no keys at all gets one clear word instead of a list of missing keys.
fn refuse_without_keys(tree: &Value, located: &Located) -> Result<(), ConfigError> {
    let message = match tree {
        Value::Object(_) => return Ok(()),
        Value::Null => "the file is empty",
        _ => "the file holds no keys",
    };
    let problem = located.problem(ProblemKind::MissingKey, "", message).with_excerpt(None);
    Err(Problems::into_error(vec![
        problem.with_hint("the least that it needs: `{model: {family: gpt, preset: nano}, target: {batch_size: 16}}`"),
    ]))
}

fn at_finding(located: &Located, finding: &parse::Finding) -> Problem {
    let problem = located.problem_at(finding.span, finding.kind, &finding.key, &finding.message);
    match finding.hint {
        Some(hint) => problem.with_hint(hint),
        None => problem,
    }
}

#[cfg(test)]
mod tests;
