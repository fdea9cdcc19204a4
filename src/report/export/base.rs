//! The file of `--into`, read so that nothing of it is lost on the way through.
//!
//! JSON allows more than its readers keep: a key twice, of which the last is taken, and numbers of any length, which
//! become the nearest that 64 bits hold. Whoever merges into such a file would change it without a word, so it is
//! refused, and the key named.

use std::collections::HashSet;
use std::fmt::Write;
use std::path::Path;

use serde_json::{Number, Value};

use super::ExportError;

/// Reads the text of the file at `path`.
pub fn read(path: &Path, text: &str) -> Result<Value, ExportError> {
    let value = serde_json::from_str(text).map_err(|error| {
        let (path, line, column) = (path.to_owned(), error.line(), error.column());
        match error.to_string() {
            why if why.starts_with("recursion limit") => ExportError::TooDeep { path, line, column },
            why if why.starts_with("number out of range") => ExportError::TooLarge { path, line, column },
            _ => ExportError::NotJson { path, line, column },
        }
    })?;
    Scan { text, at: 0, open: Vec::new() }.check()?;
    Ok(value)
}

/// An object or a list that has begun and not ended.
enum Open {
    Object { keys: HashSet<String>, key: String, awaits_key: bool },
    List(usize),
}

/// A walk over a text that is JSON.
struct Scan<'a> {
    text: &'a str,
    at: usize,
    open: Vec<Open>,
}

impl Scan<'_> {
    fn check(mut self) -> Result<(), ExportError> {
        while let Some(byte) = self.text.as_bytes().get(self.at) {
            match byte {
                b'{' => {
                    self.open.push(Open::Object { keys: HashSet::new(), key: String::new(), awaits_key: true });
                }
                b'[' => self.open.push(Open::List(0)),
                b'}' | b']' => drop(self.open.pop()),
                b',' => match self.open.last_mut() {
                    Some(Open::Object { awaits_key, .. }) => *awaits_key = true,
                    Some(Open::List(index)) => *index += 1,
                    None => {}
                },
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'-' | b'0'..=b'9' => {
                    self.number()?;
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
        Ok(())
    }

    /// Takes a string, which is a key where one is awaited.
    fn string(&mut self) -> Result<(), ExportError> {
        let start = self.at;
        let mut escaped = true;
        let rest = self.text.as_bytes().get(start..).unwrap_or_default();
        let length = rest.iter().position(|byte| {
            let ends = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            ends
        });
        self.at = length.map_or(self.text.len(), |length| start + length + 1);
        let Some(Open::Object { keys, key, awaits_key: awaits @ true }) = self.open.last_mut() else { return Ok(()) };
        *awaits = false;
        *key = self.text.get(start..self.at).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        if keys.insert(key.clone()) { Ok(()) } else { Err(ExportError::Twice { key: self.place() }) }
    }

    fn number(&mut self) -> Result<(), ExportError> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let end = rest.find(|c: char| !(c.is_ascii_digit() || "+-.eE".contains(c))).unwrap_or(rest.len());
        let literal = rest.get(..end).unwrap_or_default();
        self.at += end.max(1);
        let kept = serde_json::from_str::<Number>(literal).ok().map(|number| number.to_string());
        let is_kept =
            kept.is_some_and(|kept| Decimal::of(&kept).is_some_and(|kept| Decimal::of(literal) == Some(kept)));
        if is_kept { Ok(()) } else { Err(ExportError::NumberLost { key: self.place() }) }
    }

    /// Where the walk is, as `zero_optimization.stages[0]`.
    fn place(&self) -> String {
        let mut place = String::new();
        for open in &self.open {
            match open {
                Open::Object { key, .. } if place.is_empty() => place.push_str(key),
                Open::Object { key, .. } => place.extend([".", key]),
                // Writing to a String cannot fail.
                Open::List(index) => drop(write!(place, "[{index}]")),
            }
        }
        crate::text::harmless(&place).replace('\n', " ")
    }
}

/// The value of a decimal number, however it is written: digits without zeros around them, and a power of ten.
#[derive(PartialEq, Eq)]
struct Decimal {
    is_negative: bool,
    digits: String,
    exponent: i64,
}

impl Decimal {
    fn of(text: &str) -> Option<Self> {
        let (is_negative, text) = text.strip_prefix('-').map_or((false, text), |text| (true, text));
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        let significant = digits.trim_end_matches('0');
        let exponent: i64 = exponent.parse().ok()?;
        let exponent = exponent
            .checked_sub(i64::try_from(fraction.len()).ok()?)?
            .checked_add(i64::try_from(digits.len() - significant.len()).ok()?)?;
        let digits = significant.trim_start_matches('0').to_owned();
        // Nought has no exponent.
        Some(Self { is_negative, exponent: if digits.is_empty() { 0 } else { exponent }, digits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        read(Path::new("ds.json"), text).unwrap_err().to_string()
    }

    #[test]
    fn what_json_keeps_is_read() {
        for text in [
            "{}",
            r#"{"a": 0, "b": -0.0, "c": 1e-8, "d": 5E+8, "e": 100, "f": 1.50, "g": 18446744073709551615}"#,
            r#"{"a": {"a": [1, {"a": 2}], "b": "\"a\": 1, \\"}, "b": ["a", "a"], "\"": "a"}"#,
            r#"{"a": [[], {}, 0.1, 0.30000000000000004, 3.14159]}"#,
        ] {
            assert_eq!(read(Path::new("x"), text).unwrap(), serde_json::from_str::<Value>(text).unwrap(), "{text}");
        }
    }

    #[test]
    fn what_would_change_is_refused_with_its_key() {
        assert!(error(r#"{"a": {"b": [0, 123456789012345678901234567890]}}"#).contains("`a.b[1]`"));
        assert!(error(r#"{"lr": 0.1000000000000000000001}"#).contains("`lr`"));
        assert!(error(r#"{"lr": 1e-400}"#).contains("`lr`"));
        assert!(error(r#"{"a": 1, "bf16": {"x": 1, "\u0078": 2}}"#).contains("`bf16.x` twice"));
        assert!(error("{\"a\": 1e999}").contains("line 1"));
        assert!(error(&"[".repeat(1000)).contains("nested too deeply"));
        assert!(error("{\"a\": 1,\n}").contains("is not JSON: line 2 column 1"));
    }
}
