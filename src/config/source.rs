//! Where every key of a configuration was written.
//!
//! serde knows values and forgets places. The [`Index`] keeps, for the path of every key, where the key and its value
//! stand; [`Located`] adds the text, so that any later finding about `model.preset` (an unknown preset, a missing
//! data file) points into the file or at the `--set` that it came from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::{ConfigError, Problems};
use super::problem::{Excerpt, Place, Problem, ProblemKind, escape, printable};

/// Lines longer than this are not shown.
const LONGEST_LINE: usize = 400;

/// A piece of the file. Lines and columns count from 1; columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
    /// Its length in characters, on its first line.
    pub length: usize,
}

impl Span {
    /// The beginning of the file.
    pub const START: Self = Self { line: 1, column: 1, length: 0 };
}

/// Which part of an entry a problem is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The key itself: it is unknown, or something under it is missing.
    Key,
    /// What stands behind it.
    Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    File { key: Option<Span>, value: Span },
    Override(usize),
}

/// The places of all keys, by their paths (`search.loader_workers[2]`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index(BTreeMap<String, Entry>);

impl Index {
    /// Notes where a key and its value stand; elements of lists have no key.
    pub fn insert(&mut self, path: String, key: Option<Span>, value: Span) {
        self.0.insert(path, Entry::File { key, value });
    }

    /// Notes that the value of `path` comes from an override, and forgets what stood below it in the file.
    pub fn insert_override(&mut self, path: &str, position: usize) {
        self.0.retain(|known, _| !is_below(known, path));
        self.0.insert(path.to_owned(), Entry::Override(position));
    }

    /// Whether the key was written anywhere.
    pub fn contains(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    /// The entry of the path, or of the nearest key above it.
    fn nearest(&self, path: &str) -> Option<(bool, Entry)> {
        let mut current = path;
        loop {
            if let Some(entry) = self.0.get(current) {
                return Some((current == path, *entry));
            }
            current = parent(current)?;
        }
    }
}

/// The path of `key` inside `section`.
pub fn join(section: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '<'));
    match (section.is_empty(), plain) {
        (true, true) => key.to_owned(),
        (false, true) => format!("{section}.{key}"),
        (_, false) => format!("{section}[{key:?}]"),
    }
}

/// The path of an element of a list.
pub fn element(list: &str, position: usize) -> String {
    format!("{list}[{position}]")
}

fn parent(path: &str) -> Option<&str> {
    path.rfind(['.', '[']).map(|end| &path[..end])
}

fn is_below(path: &str, ancestor: &str) -> bool {
    path.strip_prefix(ancestor).is_some_and(|rest| rest.starts_with(['.', '[']))
}

/// A configuration's text with the places of its keys.
#[derive(Clone, Debug)]
pub struct Located {
    path: PathBuf,
    text: Arc<str>,
    lines: Arc<[Line]>,
    index: Index,
    overrides: Vec<String>,
}

/// One line of the file: where it begins, in bytes, and how long it is without its end.
#[derive(Clone, Copy, Debug)]
struct Line {
    start: usize,
    length: usize,
}

impl Located {
    /// A text without any known key yet.
    pub fn new(path: &Path, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            lines: lines(text).into(),
            text: text.into(),
            index: Index::default(),
            overrides: Vec::new(),
        }
    }

    /// The configuration file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the key was written, in the file or with `--set`.
    pub fn contains(&self, key: &str) -> bool {
        self.index.contains(key)
    }

    /// Whether the key's value comes from `--set`.
    pub fn is_override(&self, key: &str) -> bool {
        matches!(self.index.nearest(key), Some((_, Entry::Override(_))))
    }

    /// An error about the value of `key`, for findings made outside this room: an unknown preset, a file that is not
    /// there. It points at the key's value, or at the nearest key above it where the key was not written.
    pub fn error_at(&self, key: &str, message: impl AsRef<str>) -> ConfigError {
        Problems::into_error(vec![self.problem(ProblemKind::Outside, key, message.as_ref())])
    }

    /// A problem with the value of `key`.
    pub fn problem(&self, kind: ProblemKind, key: &str, message: &str) -> Problem {
        self.problem_with(Part::Value, kind, key, message)
    }

    /// A problem with `key` itself.
    pub fn problem_with_key(&self, kind: ProblemKind, key: &str, message: &str) -> Problem {
        self.problem_with(Part::Key, kind, key, message)
    }

    fn problem_with(&self, part: Part, kind: ProblemKind, key: &str, message: &str) -> Problem {
        match self.index.nearest(key) {
            Some((_, Entry::Override(position))) => self.problem_in_override(position, kind, key, message),
            Some((found, Entry::File { key: written, value })) => {
                let at_value = found && part == Part::Value;
                self.problem_at(if at_value { value } else { written.unwrap_or(value) }, kind, key, message)
            }
            None => self.problem_at(Span::START, kind, key, message),
        }
    }

    /// A problem at a piece of the file.
    pub fn problem_at(&self, span: Span, kind: ProblemKind, key: &str, message: &str) -> Problem {
        let place = Place::File { path: self.path.clone(), line: span.line, column: span.column };
        Problem::new(kind, key, message, place).with_excerpt(self.excerpt(span))
    }

    /// A problem with an override.
    pub fn problem_in_override(&self, position: usize, kind: ProblemKind, key: &str, message: &str) -> Problem {
        let text = self.overrides.get(position).cloned().unwrap_or_default();
        let shown = escape(&text);
        let start = shown.find('=').map_or(0, |equals| equals + 1);
        let span = (start, shown.len() - start).into();
        let excerpt = Excerpt { name: "--set".to_owned(), line: position + 1, column: start + 1, span, text: shown };
        Problem::new(kind, key, message, Place::Override { text, position }).with_excerpt(Some(excerpt))
    }

    /// Takes note of where the file's keys are.
    pub fn set_index(&mut self, index: Index) {
        self.index = index;
    }

    /// Takes note of an override's text; returns its position.
    pub fn push_override(&mut self, text: &str) -> usize {
        self.overrides.push(text.to_owned());
        self.overrides.len() - 1
    }

    /// Takes note that `key` comes from the override at `position`.
    pub fn override_key(&mut self, key: &str, position: usize) {
        self.index.insert_override(key, position);
    }

    fn excerpt(&self, span: Span) -> Option<Excerpt> {
        let line = self.lines.get(span.line.checked_sub(1)?)?;
        if line.length > LONGEST_LINE {
            return None;
        }
        let text = self.text.get(line.start..line.start + line.length)?;
        let byte = |column: usize| text.char_indices().nth(column).map_or(text.len(), |(offset, _)| offset);
        let first = span.column.saturating_sub(1);
        let (start, end) = (byte(first), byte(first.saturating_add(span.length)));
        Some(Excerpt {
            name: printable(&self.path),
            text: text.to_owned(),
            line: span.line,
            column: span.column,
            span: (start, end - start).into(),
        })
    }
}

/// The lines of a text, ended as YAML ends them: by `\n`, `\r` or both.
fn lines(text: &str) -> Vec<Line> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut start = 0;
    for (offset, byte) in bytes.iter().enumerate() {
        let ends = *byte == b'\n' || (*byte == b'\r' && bytes.get(offset + 1) != Some(&b'\n'));
        if ends {
            let length = text[start..offset].trim_end_matches('\r').len();
            found.push(Line { start, length });
            start = offset + 1;
        }
    }
    found.push(Line { start, length: text.len() - start });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_was_not_written_is_placed_at_the_nearest_one_above() {
        let mut located = Located::new(Path::new("model.yaml"), "a: 1\nmodel:\n  family: gpt\n");
        let mut index = Index::default();
        let key = Span { line: 2, column: 1, length: 5 };
        index.insert("model".to_owned(), Some(key), Span { line: 3, column: 3, length: 1 });
        located.set_index(index);
        let error = located.error_at("model.preset", "unknown preset");
        assert_eq!(error.to_string(), "model.yaml:2:1: model.preset: unknown preset");
        assert_eq!(located.error_at("data.path", "x").to_string(), "model.yaml:1:1: data.path: x");
    }

    #[test]
    fn an_override_hides_what_stood_below_its_key() {
        let mut index = Index::default();
        let span = Span::START;
        for path in ["data", "data.sequence_length", "data.sequence_length.min", "data.sequence_lengths"] {
            index.insert(path.to_owned(), Some(span), span);
        }
        index.insert_override("data.sequence_length", 0);
        assert!(!index.contains("data.sequence_length.min"));
        assert!(index.contains("data.sequence_lengths"));
        assert_eq!(index.nearest("data.sequence_length.min"), Some((false, Entry::Override(0))));
    }

    #[test]
    fn paths_quote_keys_that_would_be_misread() {
        assert_eq!(join("model.options", "a.b"), "model.options[\"a.b\"]");
        assert_eq!(join("", "seed"), "seed");
        assert_eq!(element("search.loader_workers", 2), "search.loader_workers[2]");
    }

    #[test]
    fn lines_end_at_any_of_the_three_line_ends() {
        let ends: Vec<(usize, usize)> = lines("a\r\nbc\rd\n").iter().map(|line| (line.start, line.length)).collect();
        assert_eq!(ends, [(0, 1), (3, 2), (6, 1), (8, 0)]);
    }
}
