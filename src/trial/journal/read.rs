//! Reading a journal, whole or torn.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde_json::Value;

use super::{Contents, Entry, Header, JournalError, MAX_ENTRY_BYTES, SCHEMA};

/// Reads the journal at `path` without changing it, a torn last line left out.
pub fn read(path: &Path) -> Result<Contents, JournalError> {
    let failed = |source| JournalError::Read { path: path.to_owned(), source };
    // To open a pipe is to wait for whoever writes into it.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("it is no file")));
    }
    let mut lines = Lines { input: BufReader::new(File::open(path).map_err(failed)?), path, line: 0, whole_bytes: 0 };
    let Some(first) = lines.next_whole()? else { return Err(JournalError::NoHeader { path: path.to_owned() }) };
    let header = header(&first, &lines)?;
    let (mut entries, mut unknown_entries) = (Vec::new(), 0);
    while let Some(line) = lines.next_whole()? {
        match entry(&line).map_err(|reason| lines.damaged(reason))? {
            Some(entry) => entries.push(entry),
            None => unknown_entries += 1,
        }
    }
    Ok(Contents { header, entries, unknown_entries, whole_bytes: lines.whole_bytes })
}

/// The first line. The schema is looked at before anything else, so that another version's header is told apart from
/// a damaged one.
fn header(line: &[u8], lines: &Lines<'_>) -> Result<Header, JournalError> {
    let value: Value = serde_json::from_slice(line).map_err(|error| lines.damaged(error.to_string()))?;
    match value.get("schema").and_then(Value::as_str) {
        Some(SCHEMA) => serde_json::from_value(value).map_err(|error| lines.damaged(error.to_string())),
        Some(other) => {
            let found = other.chars().take(80).flat_map(char::escape_debug).collect();
            Err(JournalError::Schema { path: lines.path.to_owned(), found })
        }
        None => Err(lines.damaged("no field `schema`".to_owned())),
    }
}

/// An entry; `None` if its kind is of a newer version.
fn entry(line: &[u8]) -> Result<Option<Entry>, String> {
    #[derive(serde::Deserialize)]
    struct Kind<'a> {
        #[serde(borrow)]
        entry: std::borrow::Cow<'a, str>,
    }
    let kind: Kind<'_> = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    if !Entry::KINDS.contains(&kind.entry.as_ref()) {
        return Ok(None);
    }
    serde_json::from_slice(line).map(Some).map_err(|error| error.to_string())
}

/// The whole lines of a file, one after the other and never longer than a bound.
struct Lines<'a> {
    input: BufReader<File>,
    path: &'a Path,
    line: usize,
    whole_bytes: u64,
}

impl Lines<'_> {
    /// The next line without its newline; `None` at the end or at a torn line.
    fn next_whole(&mut self) -> Result<Option<Vec<u8>>, JournalError> {
        let mut line = Vec::new();
        self.input
            .by_ref()
            .take(MAX_ENTRY_BYTES as u64 + 1)
            .read_until(b'\n', &mut line)
            .map_err(|source| JournalError::Read { path: self.path.to_owned(), source })?;
        if line.len() > MAX_ENTRY_BYTES {
            self.line += 1;
            return Err(self.damaged(format!("it is longer than {MAX_ENTRY_BYTES} bytes")));
        }
        if line.pop() != Some(b'\n') {
            return Ok(None);
        }
        self.line += 1;
        self.whole_bytes += line.len() as u64 + 1;
        Ok(Some(line))
    }

    fn damaged(&self, reason: String) -> JournalError {
        JournalError::Damaged { path: self.path.to_owned(), line: self.line, reason }
    }
}
