//! A `config.json` as a stranger wrote it: its keys, their values, and where they stand.
//!
//! What serde says of a value that it cannot take names types of this program and no key, so values are taken by key
//! here, and the place of one that is wrong is looked up in the text once more. A key that is `null` is as one that is
//! missing, as it is for `transformers`.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};

use crate::model::ModelError;
use crate::text::harmless;

/// The longest file. A configuration has a few kilobytes, those that name a thousand classes some fifty.
pub(super) const MAX_BYTES: u64 = 1 << 20;
/// Characters of a value that are shown.
const SHOWN: usize = 40;

/// A place in a text. Lines and columns count from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// As it follows a file's name: `:3:14`.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ":{}:{}", self.line, self.column)
    }
}

/// The text of a stranger's file, which may be anything.
pub(in crate::model) fn read_text(path: &Path, limit_bytes: u64) -> Result<String, String> {
    // Before it is opened: to open a pipe would wait for its writer.
    if !std::fs::metadata(path).map_err(|error| error.to_string())?.is_file() {
        return Err("it is no file".to_owned());
    }
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(limit_bytes + 1).read_to_string(&mut text));
    read.map_err(|error| error.to_string())?;
    if text.len() as u64 > limit_bytes {
        return Err(format!("it is longer than {limit_bytes} bytes"));
    }
    Ok(text)
}

/// An open configuration.
pub(super) struct ConfigFile<'a> {
    path: &'a Path,
    text: String,
    keys: Map<String, Value>,
}

impl<'a> ConfigFile<'a> {
    /// Reads the file, which must be of this `model_type`.
    pub(super) fn open(path: &'a Path, family: &str, model_type: &str) -> Result<Self, ModelError> {
        let mut file = Self { path, text: String::new(), keys: Map::new() };
        file.text = read_text(path, MAX_BYTES).map_err(|reason| file.error(None, &reason))?;
        file.keys = match serde_json::from_str(&file.text) {
            Ok(Value::Object(keys)) => keys,
            Ok(other) => return Err(file.error(None, &format!("it is {}, expected keys in `{{…}}`", shown(&other)))),
            Err(error) => {
                let place = Place { line: error.line(), column: error.column().max(1) };
                let text = error.to_string();
                let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
                return Err(file.error(Some(place), &format!("it is no JSON: {what}")));
            }
        };
        let keys = file.keys();
        let found = match keys.optional::<&str>("model_type")? {
            Some(found) if found == model_type => return Ok(file),
            Some(found) => format!("`{}`", found.escape_debug()),
            None => "missing".to_owned(),
        };
        Err(keys.error_at(
            "model_type",
            &format!("its `model_type` is {found}, and family `{family}` needs `{model_type}`"),
        ))
    }

    /// What it holds.
    pub(super) fn keys(&self) -> Keys<'_> {
        Keys { file: self, values: &self.keys, name: None }
    }

    fn error(&self, place: Option<Place>, reason: &str) -> ModelError {
        ModelError::Config { path: self.path.to_owned(), place, reason: harmless(reason) }
    }
}

/// What a value is to be.
pub(super) trait Kind<'a>: Sized {
    /// In the user's words.
    const WANTED: &'static str;

    /// The value, if it is that.
    fn of(value: &'a Value) -> Option<Self>;
}

impl Kind<'_> for usize {
    const WANTED: &'static str = "a whole number that is not negative";

    fn of(value: &Value) -> Option<Self> {
        value.as_u64().and_then(|number| number.try_into().ok())
    }
}

impl Kind<'_> for f64 {
    const WANTED: &'static str = "a number";

    fn of(value: &Value) -> Option<Self> {
        value.as_f64()
    }
}

impl Kind<'_> for bool {
    const WANTED: &'static str = "`true` or `false`";

    fn of(value: &Value) -> Option<Self> {
        value.as_bool()
    }
}

impl<'a> Kind<'a> for &'a str {
    const WANTED: &'static str = "a text in quotes";

    fn of(value: &'a Value) -> Option<Self> {
        value.as_str()
    }
}

impl<'a> Kind<'a> for &'a Map<String, Value> {
    const WANTED: &'static str = "keys in `{…}`";

    fn of(value: &'a Value) -> Option<Self> {
        value.as_object()
    }
}

/// The keys of the file, or of one object in it.
pub(super) struct Keys<'a> {
    file: &'a ConfigFile<'a>,
    values: &'a Map<String, Value>,
    /// The object's own key.
    name: Option<&'static str>,
}

impl<'a> Keys<'a> {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.values.len()
    }

    /// The value of a key that must be there.
    pub(super) fn needed<T: Kind<'a>>(&self, key: &str) -> Result<T, ModelError> {
        let missing = || {
            let place = self.name.and_then(|name| place_of(&self.file.text, &[name]));
            self.file.error(place, &format!("`{}` is missing, expected {}", self.named(key), T::WANTED))
        };
        self.optional(key)?.ok_or_else(missing)
    }

    /// The value of a key that may be missing.
    pub(super) fn optional<T: Kind<'a>>(&self, key: &str) -> Result<Option<T>, ModelError> {
        let wrong =
            |value| self.error_at(key, &format!("`{}` is {}, expected {}", self.named(key), shown(value), T::WANTED));
        match self.values.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => T::of(value).map(Some).ok_or_else(|| wrong(value)),
        }
    }

    /// The keys of an object in it. Those inside that one have no keys of their own here: nobody needs them.
    pub(super) fn object(&self, key: &'static str) -> Result<Option<Self>, ModelError> {
        let values = self.optional::<&Map<String, Value>>(key)?;
        Ok(values.map(|values| Self { file: self.file, values, name: Some(key) }))
    }

    /// Refuses the value of a key that the family does not compute.
    pub(super) fn check(&self, is_built: bool, key: &str) -> Result<(), ModelError> {
        let value = || self.values.get(key).map_or_else(|| "null".to_owned(), Value::to_string);
        if is_built {
            Ok(())
        } else {
            Err(self.error_at(key, &format!("`{}: {}` is not built", self.named(key), shortened(value()))))
        }
    }

    /// Refuses another value than the one that the family computes, which is also that of a key that is missing.
    pub(super) fn check_is(&self, key: &str, built: bool) -> Result<(), ModelError> {
        self.check(self.optional(key)?.unwrap_or(built) == built, key)
    }

    /// What is wrong with the value of a key.
    fn error_at(&self, key: &str, reason: &str) -> ModelError {
        let path: Vec<&str> = self.name.into_iter().chain([key]).collect();
        self.file.error(place_of(&self.file.text, &path), reason)
    }

    fn named(&self, key: &str) -> String {
        self.name.map_or_else(|| key.to_owned(), |name| format!("{name}.{key}"))
    }
}

/// A value as the user knows it.
fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        other => format!("`{}`", shortened(other.to_string())),
    }
}

fn shortened(text: String) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Where the value at the end of a path of keys stands in a text that is known to be JSON. Of a key that is written
/// twice the last one counts, as it does for every reader.
fn place_of(text: &str, path: &[&str]) -> Option<Place> {
    let mut cursor = Cursor { text, at: 0 };
    for key in path {
        cursor.skip_space();
        cursor.at = cursor.value_of(key)?;
    }
    let before = text.get(..cursor.at)?;
    let line_start = before.rfind('\n').map_or(0, |end| end + 1);
    Some(Place { line: before.matches('\n').count() + 1, column: before[line_start..].chars().count() + 1 })
}

/// A walk over a text.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl Cursor<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    /// Where the value of a key begins in the object that begins here.
    fn value_of(&mut self, key: &str) -> Option<usize> {
        let mut found = None;
        self.at += 1; // The brace.
        loop {
            self.skip_space();
            if self.peek()? != b'"' {
                return found;
            }
            let start = self.at;
            self.skip_string();
            let name: String = serde_json::from_str(self.text.get(start..self.at)?).ok()?;
            self.skip_space();
            self.at += 1; // The colon.
            self.skip_space();
            if name == key {
                found = Some(self.at);
            }
            self.skip_value();
            if self.peek()? != b',' {
                return found;
            }
            self.at += 1;
        }
    }

    /// To behind a text's closing quote.
    fn skip_string(&mut self) {
        self.at += 1;
        while let Some(byte) = self.peek() {
            self.at += match byte {
                b'\\' => 2,
                _ => 1,
            };
            if byte == b'"' {
                return;
            }
        }
    }

    /// To what ends a value of an object: a comma, or the object's end.
    fn skip_value(&mut self) {
        let mut depth = 0_usize;
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => {
                    self.skip_string();
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b',' | b'}' | b']' if depth == 0 => return,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
        }
    }
}
