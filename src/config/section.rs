//! Typing a section key by key, so that one wrong value does not hide the next.
//!
//! serde stops at the first error. Every key of a section has a default, so a section with a single key is a complete
//! section: each key is tried alone, what is refused is reported and taken out, and what is left is read as a whole.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::file::File;
use super::introspect::field_names;
use super::leaf::shortened;
use super::parse;
use super::problem::{Problem, ProblemKind};
use super::sections::budget::BudgetFile;
use super::sections::command::CommandFile;
use super::sections::data::{DataFile, LengthRange, SideRange};
use super::sections::launcher::LauncherFile;
use super::sections::memory::MemoryFile;
use super::sections::model::ModelFile;
use super::sections::safety::SafetyFile;
use super::sections::search::{BatchSizeFile, SearchFile};
use super::sections::target::TargetFile;
use super::sections::train::TrainFile;
use super::sections::trial::TrialFile;
use super::source::{Located, element, join};
use crate::suggest::closest;

/// A section: where it is, and how its keys are typed.
struct Section {
    keys: &'static [&'static str],
    shape: Shape,
    names: fn() -> &'static [&'static str],
    check: fn(Value) -> Result<(), serde_json::Error>,
}

/// What may stand behind a section's key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Keys.
    Mapping,
    /// Keys, or one value for all.
    MappingOrValue,
}

const fn section<T: DeserializeOwned>(keys: &'static [&'static str], shape: Shape) -> Section {
    Section { keys, shape, names: field_names::<T>, check: |value| T::deserialize(value).map(drop) }
}

/// All sections, inner ones before those that hold them.
const SECTIONS: [Section; 15] = [
    section::<BatchSizeFile>(&["search", "batch_size"], Shape::Mapping),
    section::<LengthRange>(&["data", "sequence_length"], Shape::MappingOrValue),
    section::<SideRange>(&["data", "image_size"], Shape::MappingOrValue),
    section::<ModelFile>(&["model"], Shape::Mapping),
    section::<CommandFile>(&["command"], Shape::Mapping),
    section::<TrainFile>(&["train"], Shape::Mapping),
    section::<DataFile>(&["data"], Shape::Mapping),
    section::<TargetFile>(&["target"], Shape::Mapping),
    section::<SearchFile>(&["search"], Shape::Mapping),
    section::<MemoryFile>(&["memory"], Shape::Mapping),
    section::<SafetyFile>(&["safety"], Shape::Mapping),
    section::<TrialFile>(&["trial"], Shape::Mapping),
    section::<BudgetFile>(&["budget"], Shape::Mapping),
    section::<LauncherFile>(&["launcher"], Shape::MappingOrValue),
    section::<File>(&[], Shape::Mapping),
];

/// Types a tree. What was refused is among the problems, and has its default in the file.
pub fn type_file(mut tree: Value, located: &Located, problems: &mut Vec<Problem>) -> File {
    for section in &SECTIONS {
        section.prune(&mut tree, located, problems);
    }
    File::deserialize_or_report(tree, located, problems)
}

impl File {
    fn deserialize_or_report(tree: Value, located: &Located, problems: &mut Vec<Problem>) -> Self {
        serde_json::from_value(tree).unwrap_or_else(|error| {
            // Every key was accepted alone, so this cannot be; if it is, it is said instead of hidden.
            problems.push(located.problem(ProblemKind::InvalidValue, "", &error.to_string()));
            Self::default()
        })
    }
}

impl Section {
    fn path(&self) -> String {
        self.keys.iter().fold(String::new(), |path, key| join(&path, key))
    }

    /// Takes out of the section what cannot be read, and reports it.
    fn prune(&self, tree: &mut Value, located: &Located, problems: &mut Vec<Problem>) {
        let Some((name, above)) = self.keys.split_last() else {
            return self.prune_root(tree, located, problems);
        };
        let mut holder = Some(tree);
        for key in above {
            holder = holder.and_then(|value| value.get_mut(*key));
        }
        let Some(holder) = holder.and_then(Value::as_object_mut) else { return };
        match holder.get_mut(*name) {
            None => {}
            Some(Value::Object(entries)) => self.prune_entries(entries, located, problems),
            // A section without keys, or one value for all.
            Some(Value::Null) => drop(holder.remove(*name)),
            Some(_) if self.shape == Shape::MappingOrValue => {}
            Some(other) => {
                problems.push(self.not_a_mapping(other, located));
                holder.remove(*name);
            }
        }
    }

    fn prune_root(&self, tree: &mut Value, located: &Located, problems: &mut Vec<Problem>) {
        if let Value::Object(entries) = tree {
            return self.prune_entries(entries, located, problems);
        }
        if !tree.is_null() {
            problems.push(self.not_a_mapping(tree, located));
        }
        *tree = Value::Object(Map::new());
    }

    fn not_a_mapping(&self, found: &Value, located: &Located) -> Problem {
        let message = format!("invalid type: {}, expected keys such as {}", describe(found), listed((self.names)()));
        located.problem(ProblemKind::InvalidValue, &self.path(), &message)
    }

    fn prune_entries(&self, entries: &mut Map<String, Value>, located: &Located, problems: &mut Vec<Problem>) {
        let path = self.path();
        let names = (self.names)();
        entries.retain(|key, value| {
            let found = if names.contains(&key.as_str()) {
                self.try_key(key, value, located)
            } else {
                vec![unknown_key(&path, key, names, located)]
            };
            let accepted = found.is_empty();
            problems.extend(found);
            accepted
        });
    }

    /// Reads the section with this key alone.
    fn try_key(&self, key: &str, value: &Value, located: &Located) -> Vec<Problem> {
        let path = join(&self.path(), key);
        let alone = |value: Value| {
            let section = Value::Object(Map::from_iter([(key.to_owned(), value)]));
            (self.check)(section).map_err(|error| error.to_string())
        };
        let refused = |path: &str, message: &str| located.problem(ProblemKind::InvalidValue, path, message);
        let Err(message) = alone(value.clone()) else { return Vec::new() };
        let mut problems = Vec::new();
        // Where a list is allowed, its elements are at fault if they are refused alone. Where none is, a list of any
        // element is refused as the empty one is.
        let no_list = alone(Value::Array(Vec::new())).err();
        for (position, element_value) in value.as_array().into_iter().flatten().enumerate() {
            let found = alone(Value::Array(vec![element_value.clone()])).err();
            if let Some(message) = found.filter(|found| Some(found) != no_list.as_ref()) {
                problems.push(refused(&element(&path, position), &message));
            }
        }
        if problems.is_empty() {
            let problem = refused(&path, &message);
            problems.push(match hint(value, &message, |value| alone(value).is_ok()) {
                Some(hint) => problem.with_hint(&hint),
                None => problem,
            });
        }
        problems
    }
}

/// The way out of a refused value: the word that was meant, or the quotes that made a number text.
fn hint(value: &Value, message: &str, accepts: impl Fn(Value) -> bool) -> Option<String> {
    let written = value.as_str()?;
    let allowed = message.split_once("expected one of ").map_or("", |(_, allowed)| allowed);
    let words: Vec<&str> = allowed.split('`').skip(1).step_by(2).collect();
    if let Some(word) = closest(written, &words) {
        return Some(format!("did you mean `{word}`?"));
    }
    let unquoted = parse::parse(written).ok()?.tree;
    (!unquoted.is_string() && accepts(unquoted)).then(|| "write it without the quotes".to_owned())
}

fn unknown_key(section: &str, key: &str, names: &[&'static str], located: &Located) -> Problem {
    let message = format!("unknown key, expected one of {}", listed(names));
    let problem = located.problem_with_key(ProblemKind::UnknownKey, &join(section, key), &message);
    let similar = closest(key, names).map(|name| join(section, name));
    match similar.or_else(|| elsewhere(key)) {
        Some(name) => problem.with_hint(&format!("did you mean `{name}`?")),
        None => problem,
    }
}

/// The key of another section, for keys that were indented too little or too much.
fn elsewhere(key: &str) -> Option<String> {
    let same = SECTIONS.iter().find(|section| (section.names)().contains(&key));
    same.map(|section| join(&section.path(), key)).or_else(|| {
        let similar = |section: &Section| closest(key, (section.names)()).map(|name| join(&section.path(), name));
        SECTIONS.iter().find_map(similar)
    })
}

fn listed(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// A value in serde's words.
fn describe(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(flag) => format!("boolean `{flag}`"),
        Value::Number(number) => format!("number `{number}`"),
        Value::String(text) => format!("string {:?}", shortened(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "keys".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn problems(tree: Value) -> Vec<String> {
        let mut problems = Vec::new();
        type_file(tree, &Located::new(Path::new("model.yaml"), ""), &mut problems);
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn one_wrong_value_does_not_hide_the_next() {
        let found = problems(json!({"trial": {"steps": 0, "soak_steps": "many"}, "target": {"batch_size": -1}}));
        assert_eq!(found.len(), 3, "{found:#?}");
    }

    #[test]
    fn elements_of_a_list_are_reported_one_by_one() {
        let found = problems(json!({"search": {"loader_workers": [0, 2000, "x"]}}));
        assert!(found[0].starts_with("search.loader_workers[1]: "), "{found:#?}");
        assert!(found[1].starts_with("search.loader_workers[2]: "), "{found:#?}");
    }

    #[test]
    fn a_value_where_a_section_is_wanted_is_refused_with_its_keys() {
        let found = problems(json!({"budget": "10m"}));
        assert_eq!(found, ["budget: invalid type: string \"10m\", expected keys such as `time`, `trials`"]);
    }

    #[test]
    fn an_empty_section_means_its_defaults() {
        let mut problems = Vec::new();
        let located = Located::new(Path::new("model.yaml"), "");
        let file = type_file(json!({"train": null, "launcher": null}), &located, &mut problems);
        assert!(problems.is_empty());
        assert_eq!(file, File::default());
    }

    #[test]
    fn every_section_of_the_file_is_typed_key_by_key() {
        let mut tree = serde_json::to_value(File::default()).unwrap();
        let sections = tree.as_object_mut().unwrap();
        sections.retain(|_, value| value.is_object());
        for name in sections.keys() {
            assert!(SECTIONS.iter().any(|section| section.keys == [name.as_str()]), "{name}");
        }
    }
}
