//! YAML: the only file that knows it.
//!
//! Two parsers read the text. `saphyr-parser` streams events with their places, from which [`scan`] builds the index
//! and enforces the bounds (nesting, number of values with aliases expanded, one document, no tags) before anything
//! recursive or expanding sees the text. `serde_yaml` (the maintained fork `serde_yaml_ng` under that name) then reads
//! the values, into a tree whose types serde checks key by key; it knows no places.

use std::collections::{HashMap, HashSet};

use saphyr_parser::{Event, Parser, ScanError};
use serde::Deserialize;
use serde_json::Value;

use super::problem::ProblemKind;
use super::source::{Index, Span, element, join};
use super::tree::Tree;
use super::words::is_ambiguous;

/// The deepest nesting; a configuration needs five levels, a family's own options a few more.
const DEEPEST: usize = 32;
/// The most values, counted with every alias written out.
const MOST_VALUES: usize = 20_000;

/// Something wrong with the YAML itself, at a place in its text.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Where.
    pub span: Span,
    /// What kind.
    pub kind: ProblemKind,
    /// The key it belongs to.
    pub key: String,
    /// What it is.
    pub message: String,
    /// A way out.
    pub hint: Option<&'static str>,
}

impl Finding {
    fn syntax(span: Span, key: &str, message: impl Into<String>) -> Self {
        Self { span, kind: ProblemKind::Syntax, key: key.to_owned(), message: message.into(), hint: None }
    }

    fn hint(self, hint: &'static str) -> Self {
        Self { hint: Some(hint), ..self }
    }
}

/// A text that was read.
#[derive(Clone, Debug, Default)]
pub struct Parsed {
    /// Its values; null for a text without any.
    pub tree: Value,
    /// Where they stand.
    pub index: Index,
    /// What is wrong but does not keep the rest from being read: keys written twice, of which the first counts.
    pub findings: Vec<Finding>,
}

/// Reads one YAML document.
pub fn parse(text: &str) -> Result<Parsed, Finding> {
    let scanned = scan(text)?;
    if scanned.values == 0 {
        return Ok(Parsed::default());
    }
    let Tree(tree) = Tree::deserialize(serde_yaml::Deserializer::from_str(text)).map_err(|error| {
        let place = error.location();
        let span =
            place.map_or(Span::START, |place| Span { line: place.line(), column: place.column().max(1), length: 1 });
        Finding::syntax(span, "", error.to_string())
    })?;
    Ok(Parsed { tree, index: scanned.index, findings: scanned.findings })
}

/// Prints a value as a YAML document that older readers understand too: see [`super::words`].
pub fn print(value: &impl serde::Serialize) -> Result<String, String> {
    let mut tree = serde_yaml::to_value(value).map_err(|error| error.to_string())?;
    mark_ambiguous(&mut tree);
    let printed = serde_yaml::to_string(&tree).map_err(|error| error.to_string())?;
    Ok(printed.replace(QUOTES, "\""))
}

/// Characters that stand for quotes until the text is printed: the library decides on quotes by YAML 1.2 alone and
/// cannot be told otherwise. They are of Unicode's private use area, where nothing has a meaning, and are taken out of
/// what is to be printed.
const QUOTES: [char; 2] = ['\u{e0f0}', '\u{e0f1}'];

/// Puts marks around every text that needs quotes.
fn mark_ambiguous(value: &mut serde_yaml::Value) {
    match value {
        serde_yaml::Value::String(text) => {
            text.retain(|character| !QUOTES.contains(&character));
            if is_ambiguous(text) {
                *text = format!("{}{text}{}", QUOTES[0], QUOTES[1]);
            }
        }
        serde_yaml::Value::Sequence(list) => list.iter_mut().for_each(mark_ambiguous),
        serde_yaml::Value::Mapping(mapping) => {
            *mapping = std::mem::take(mapping)
                .into_iter()
                .map(|(mut key, mut value)| {
                    mark_ambiguous(&mut key);
                    mark_ambiguous(&mut value);
                    (key, value)
                })
                .collect();
        }
        _ => {}
    }
}

/// What the events say.
#[derive(Default)]
struct Scan {
    frames: Vec<Frame>,
    index: Index,
    findings: Vec<Finding>,
    /// Values so far, with aliases written out.
    values: usize,
    documents: usize,
    /// The values that an anchor stands for; `None` while it is still open.
    anchors: HashMap<usize, Option<usize>>,
}

/// An open list or mapping.
struct Frame {
    path: String,
    inside: Inside,
    start: Span,
    key: Option<Span>,
    anchor: usize,
    /// [`Scan::values`] when it was opened.
    values_before: usize,
}

enum Inside {
    List { next: usize },
    Mapping { seen: HashSet<String>, key: Option<(String, Span)> },
}

/// Reads the events of a text within the bounds. Never recursive.
fn scan(text: &str) -> Result<Scan, Finding> {
    let mut state = Scan::default();
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| unreadable(&error))?;
        let place = Span {
            line: span.start.line().max(1),
            column: span.start.col() + 1,
            length: if span.end.line() == span.start.line() {
                span.end.col().saturating_sub(span.start.col())
            } else {
                1
            },
        };
        state.event(event, place, (span.end.line(), span.end.col()))?;
    }
    Ok(state)
}

fn unreadable(error: &ScanError) -> Finding {
    let marker = error.marker();
    let span = Span { line: marker.line().max(1), column: marker.col() + 1, length: 1 };
    if error.info() == "recursion limit exceeded" {
        // The scanner looks ahead, and gives up at 255 open brackets before the first event of them arrives.
        return Finding::syntax(span, "", format!("nested more than {DEEPEST} levels deep"));
    }
    Finding::syntax(span, "", format!("not valid YAML: {}", error.info()))
        .hint("text with a meaning in YAML, such as braces or a colon and a space, goes in quotes")
}

impl Scan {
    fn event(&mut self, event: Event<'_>, span: Span, end: (usize, usize)) -> Result<(), Finding> {
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(Finding::syntax(span, "", "a second document begins here, and a configuration is one")
                        .hint("remove the `---`"));
                }
            }
            Event::Scalar(text, _, anchor, tag) => {
                self.refuse_tag(tag.is_some(), span)?;
                self.scalar(&text, span)?;
                self.close_anchor(anchor, 1);
            }
            Event::Alias(anchor) => self.alias(anchor, span)?,
            Event::SequenceStart(anchor, tag) => {
                self.refuse_tag(tag.is_some(), span)?;
                self.open(Inside::List { next: 0 }, anchor, span)?;
            }
            Event::MappingStart(anchor, tag) => {
                self.refuse_tag(tag.is_some(), span)?;
                self.open(Inside::Mapping { seen: HashSet::new(), key: None }, anchor, span)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(end),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        Ok(())
    }

    fn refuse_tag(&self, is_tagged: bool, span: Span) -> Result<(), Finding> {
        if is_tagged {
            return Err(Finding::syntax(span, self.path(), "YAML tags (`!name`) are not allowed")
                .hint("text that begins with `!` goes in quotes"));
        }
        Ok(())
    }

    fn path(&self) -> &str {
        self.frames.last().map_or("", |frame| &frame.path)
    }

    /// Counts values that are about to be read.
    fn count(&mut self, values: usize, span: Span) -> Result<(), Finding> {
        self.values = self.values.saturating_add(values);
        if self.values > MOST_VALUES {
            let aliases = if self.anchors.is_empty() { "" } else { " with aliases written out" };
            let message = format!("more than {MOST_VALUES} values{aliases}, which no configuration has");
            return Err(Finding::syntax(span, self.path(), message));
        }
        Ok(())
    }

    /// A scalar is a key or a value, by its position.
    fn scalar(&mut self, text: &str, span: Span) -> Result<(), Finding> {
        let Some(Frame { inside: Inside::Mapping { seen, key: key @ None }, path, .. }) = self.frames.last_mut() else {
            self.count(1, span)?;
            let (path, key) = self.next_path();
            if !path.is_empty() {
                self.index.insert(path, key, span);
            }
            return Ok(());
        };
        if !seen.insert(text.to_owned()) {
            let duplicate = join(path, text);
            self.findings.push(Finding {
                span,
                kind: ProblemKind::DuplicateKey,
                key: duplicate,
                message: "this key stands here for the second time".to_owned(),
                hint: Some("remove one of the two"),
            });
        }
        *key = Some((text.to_owned(), span));
        Ok(())
    }

    fn is_at_key(&self) -> bool {
        matches!(self.frames.last(), Some(Frame { inside: Inside::Mapping { key: None, .. }, .. }))
    }

    fn alias(&mut self, anchor: usize, span: Span) -> Result<(), Finding> {
        if self.is_at_key() {
            return Err(Finding::syntax(span, self.path(), "an alias (`*name`) cannot be a key"));
        }
        match self.anchors.get(&anchor) {
            Some(Some(values)) => self.count(*values, span)?,
            _ => return Err(Finding::syntax(span, self.path(), "this alias stands inside what it stands for")),
        }
        let (path, key) = self.next_path();
        self.index.insert(path, key, span);
        Ok(())
    }

    fn open(&mut self, inside: Inside, anchor: usize, span: Span) -> Result<(), Finding> {
        if self.is_at_key() {
            return Err(Finding::syntax(span, self.path(), "a list or a mapping cannot be a key")
                .hint("text that begins with a brace or a bracket goes in quotes"));
        }
        if self.frames.len() >= DEEPEST {
            return Err(Finding::syntax(span, "", format!("nested more than {DEEPEST} levels deep")));
        }
        let values_before = self.values;
        self.count(1, span)?;
        if anchor > 0 {
            self.anchors.insert(anchor, None);
        }
        let (path, key) = self.next_path();
        self.frames.push(Frame { path, inside, start: span, key, anchor, values_before });
        Ok(())
    }

    fn close(&mut self, end: (usize, usize)) {
        let Some(frame) = self.frames.pop() else { return };
        let (line, column) = end;
        let on_one_line = line == frame.start.line;
        let length = if on_one_line { (column + 1).saturating_sub(frame.start.column).max(1) } else { 1 };
        if !frame.path.is_empty() {
            self.index.insert(frame.path, frame.key, Span { length, ..frame.start });
        }
        self.close_anchor(frame.anchor, self.values - frame.values_before);
    }

    fn close_anchor(&mut self, anchor: usize, values: usize) {
        if anchor > 0 {
            self.anchors.insert(anchor, Some(values));
        }
    }

    /// The path of the value that comes now, and the place of its key. The root has an empty path.
    fn next_path(&mut self) -> (String, Option<Span>) {
        match self.frames.last_mut() {
            None => (String::new(), None),
            Some(Frame { inside: Inside::List { next }, path, .. }) => {
                *next += 1;
                (element(path, *next - 1), None)
            }
            Some(Frame { inside: Inside::Mapping { key, .. }, path, .. }) => match key.take() {
                Some((name, span)) => (join(path, &name), Some(span)),
                None => (path.clone(), None),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(text: &str) -> String {
        let finding = parse(text).unwrap_err();
        format!("{}:{} {}", finding.span.line, finding.span.column, finding.message)
    }

    #[test]
    fn every_key_and_element_has_its_place() {
        let parsed = parse("a:\n  b: [1, two]\n  c: \"é\"\nd:\n").unwrap();
        assert_eq!(parsed.tree, json!({"a": {"b": [1, "two"], "c": "é"}, "d": null}));
        for path in ["a", "a.b", "a.b[0]", "a.b[1]", "a.c", "d"] {
            assert!(parsed.index.contains(path), "{path}");
        }
    }

    #[test]
    fn aliases_are_expanded_and_a_bomb_of_them_is_not() {
        assert_eq!(parse("a: &x [1]\nb: *x\n").unwrap().tree["b"], json!([1]));
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let inner = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb = format!("{bomb}a{level}: &a{level} [{inner}]\n");
        }
        assert!(refusal(&bomb).contains("more than 20000 values"));
        assert!(refusal("a: &x [*x]\n").contains("inside what it stands for"));
    }

    #[test]
    fn nesting_is_bounded_in_both_styles_however_large_the_text() {
        assert!(refusal(&"[".repeat(1 << 20)).contains("levels deep"));
        assert!(refusal(&"{a: ".repeat(1 << 18)).contains("levels deep"));
        assert!(refusal(&"- ".repeat(1 << 19)).contains("levels deep"));
        assert!(refusal(&"- 1\n".repeat(MOST_VALUES)).contains("20000 values, which"));
        assert!(refusal(&"? ".repeat(1 << 19)).contains("cannot be a key"));
    }

    #[test]
    fn the_first_of_two_equal_keys_counts_and_the_second_is_reported() {
        let parsed = parse("a: 1\nb: 2\na: 3\n").unwrap();
        assert_eq!(parsed.tree["a"], 1);
        assert_eq!(parsed.findings.len(), 1);
        assert_eq!(parsed.findings[0].span, Span { line: 3, column: 1, length: 1 });
    }

    #[test]
    fn a_text_without_values_is_null() {
        for text in ["", "   \n", "# only a comment\n", "---\n", "~\n"] {
            assert_eq!(parse(text).unwrap().tree, Value::Null, "{text:?}");
        }
    }

    #[test]
    fn an_unquoted_placeholder_is_a_mapping_with_an_empty_value() {
        let parsed = parse("run: [python, train.py, {batch_size}]\n").unwrap();
        assert_eq!(parsed.tree["run"][2], json!({"batch_size": null}));
    }

    #[test]
    fn tags_and_second_documents_are_refused_in_place() {
        assert!(refusal("a: !!python/object x\n").starts_with("1:4 YAML tags"));
        assert!(refusal("a: 1\n---\nb: 2\n").starts_with("2:1 a second document"));
        assert!(refusal("a: *nowhere\n").contains("not valid YAML"));
    }

    #[test]
    fn words_that_older_readers_take_for_something_else_are_printed_in_quotes() {
        let value = json!({"off": "12:30", "a": ["no", "2026-11-29", "gpt", "0x1f", 7, true, "- x", "it's"]});
        let printed = print(&value).unwrap();
        assert_eq!(
            printed,
            "a:\n- \"no\"\n- \"2026-11-29\"\n- gpt\n- \"0x1f\"\n- 7\n- true\n- '- x'\n- it's\n\"off\": \"12:30\"\n"
        );
        assert_eq!(parse(&printed).unwrap().tree, value);
    }

    #[test]
    fn columns_count_characters() {
        let parsed = parse("é: {ü: [x]}\n").unwrap();
        assert!(parsed.index.contains("é.ü[0]"));
    }
}
