//! `--set key.path=value`: a value of the configuration from the command line.
//!
//! Overrides are applied to the tree before typing, so they are checked like the file itself. The value is YAML
//! (`--set search.loader_workers='[0, 1]'`). An empty value or `null` takes the key away, which leaves its default.

use serde_json::{Map, Value};

use super::parse;
use super::problem::{Problem, ProblemKind};
use super::source::{Located, join};

/// The longest key path: deeper than any key is.
const DEEPEST: usize = 16;

/// Applies overrides in order; a later one wins. Returns what is wrong with them.
pub fn apply(tree: &mut Value, located: &mut Located, overrides: &[String]) -> Vec<Problem> {
    overrides.iter().filter_map(|text| apply_one(tree, located, text).err().map(|problem| *problem)).collect()
}

fn apply_one(tree: &mut Value, located: &mut Located, text: &str) -> Result<(), Box<Problem>> {
    let position = located.push_override(text);
    let malformed = |located: &Located, message: &str| {
        let problem = located.problem_in_override(position, ProblemKind::Syntax, "", message);
        Box::new(problem.with_hint("write it as `--set key.path=value`, such as `--set target.batch_size=64`"))
    };
    let (path, value) = text.split_once('=').ok_or_else(|| malformed(located, "no `=` in it"))?;
    let path = path.trim();
    let keys: Vec<&str> = path.split('.').collect();
    if keys.iter().any(|key| key.is_empty()) || keys.len() > DEEPEST {
        return Err(malformed(located, &format!("`{path}` is not the path of a key")));
    }
    let value = value_of(value, located, position, path)?;
    let section = descend(tree, located, position, &keys)?;
    let key = keys.last().copied().unwrap_or_default();
    located.override_key(path, position);
    if value.is_null() {
        section.remove(key);
    } else {
        section.insert(key.to_owned(), value);
    }
    Ok(())
}

fn value_of(text: &str, located: &Located, position: usize, path: &str) -> Result<Value, Box<Problem>> {
    let refuse = |kind, message: &str| Box::new(located.problem_in_override(position, kind, path, message));
    let parsed = parse::parse(text).map_err(|finding| refuse(finding.kind, &finding.message))?;
    match parsed.findings.first() {
        Some(finding) => Err(refuse(finding.kind, &format!("`{}`: {}", finding.key, finding.message))),
        None => Ok(parsed.tree),
    }
}

/// The mapping that holds the last of the keys; those on the way are created.
fn descend<'a>(
    tree: &'a mut Value,
    located: &mut Located,
    position: usize,
    keys: &[&str],
) -> Result<&'a mut Map<String, Value>, Box<Problem>> {
    let mut path = String::new();
    let mut current = tree;
    for key in keys.iter().take(keys.len().saturating_sub(1)) {
        path = join(&path, key);
        let section = as_mapping(current).ok_or_else(|| not_a_section(located, position, &path))?;
        current = section.entry((*key).to_owned()).or_insert(Value::Null);
        if current.is_null() && !located.contains(&path) {
            located.override_key(&path, position);
        }
    }
    as_mapping(current).ok_or_else(|| not_a_section(located, position, &path))
}

fn not_a_section(located: &Located, position: usize, path: &str) -> Box<Problem> {
    let message = format!("`{path}` holds a value in the file, not keys");
    Box::new(located.problem_in_override(position, ProblemKind::Conflict, path, &message))
}

/// The mapping in a value; nothing counts as an empty one.
fn as_mapping(value: &mut Value) -> Option<&mut Map<String, Value>> {
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn applied(mut tree: Value, overrides: &[&str]) -> Result<Value, String> {
        let mut located = Located::new(Path::new("model.yaml"), "");
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        match apply(&mut tree, &mut located, &overrides).first() {
            Some(problem) => Err(format!("{}: {problem}", problem.place())),
            None => Ok(tree),
        }
    }

    #[test]
    fn values_are_yaml_and_sections_are_created() {
        let tree = applied(json!({"seed": 1}), &["seed=7", "search.loader_workers=[0, 1]", "memory.limit=85%"]);
        assert_eq!(tree, Ok(json!({"seed": 7, "search": {"loader_workers": [0, 1]}, "memory": {"limit": "85%"}})));
    }

    #[test]
    fn an_empty_value_takes_the_key_away() {
        assert_eq!(applied(json!({"a": {"b": 1, "c": 2}}), &["a.b="]), Ok(json!({"a": {"c": 2}})));
        assert_eq!(applied(json!({"a": 1}), &["a=null"]), Ok(json!({})));
    }

    #[test]
    fn what_is_wrong_with_an_override_names_it() {
        assert_eq!(applied(json!({}), &["seed"]), Err("--set seed: no `=` in it".to_owned()));
        assert!(applied(json!({}), &["=1"]).unwrap_err().contains("not the path of a key"));
        assert!(applied(json!({}), &["a.b=[1"]).unwrap_err().starts_with("--set a.b=[1: a.b: not valid YAML"));
        assert!(applied(json!({"a": 1}), &["a.b=1"]).unwrap_err().contains("`a` holds a value"));
    }
}
