//! Reading a configuration file, however little of one it is.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::error::{ConfigError, Problems};
use super::problem::ProblemKind;
use super::source::{Located, Span};

/// The largest configuration. The longest one that means something is a few kilobytes.
pub const LARGEST_BYTES: u64 = 1 << 20;

/// Reads the text of a configuration: UTF-8, at most 1 MiB, without control characters.
///
/// Larger files are refused by their metadata, unread; pipes and devices, whose metadata says nothing, after the first
/// mebibyte.
pub fn read(path: &Path) -> Result<String, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(ConfigError::Directory { path: path.to_owned() });
    }
    if metadata.len() > LARGEST_BYTES {
        return Err(ConfigError::TooLarge { path: path.to_owned() });
    }
    let mut bytes = Vec::new();
    file.take(LARGEST_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LARGEST_BYTES {
        return Err(ConfigError::TooLarge { path: path.to_owned() });
    }
    text(path, &bytes)
}

/// The bytes as text, if that is what they are.
fn text(path: &Path, bytes: &[u8]) -> Result<String, ConfigError> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let valid = String::from_utf8_lossy(&bytes[..error.valid_up_to()]).into_owned();
            let message = "not UTF-8 text from here on, so not a configuration";
            return Err(refuse(path, &valid, message));
        }
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match text.char_indices().find(|(_, character)| is_binary(*character)) {
        Some((offset, character)) => {
            let message = format!("control character U+{:04X}, so not a configuration", u32::from(character));
            Err(refuse(path, &text[..offset], &message))
        }
        None => Ok(text.to_owned()),
    }
}

/// A refusal at the end of the text that was still good. Nothing of it is shown: the line may hold anything.
fn refuse(path: &Path, good: &str, message: &str) -> ConfigError {
    let line = good.matches('\n').count() + 1;
    let column = good.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
    let located = Located::new(path, "");
    let problem = located.problem_at(Span { line, column, length: 0 }, ProblemKind::Syntax, "", message);
    Problems::into_error(vec![problem.with_excerpt(None).with_hint("is it the right file?")])
}

/// What YAML does not allow unescaped.
fn is_binary(character: char) -> bool {
    character.is_control() && !matches!(character, '\t' | '\n' | '\r' | '\u{85}')
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn a_hundred_megabytes_are_refused_unread() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // Sparse: it takes no space, and reading it would show NULs.
        file.as_file().set_len(100 << 20).unwrap();
        assert!(matches!(read(file.path()), Err(ConfigError::TooLarge { .. })));
    }

    #[test]
    fn an_endless_device_is_refused_after_a_mebibyte() {
        assert!(matches!(read(Path::new("/dev/zero")), Err(ConfigError::TooLarge { .. })));
    }

    #[test]
    fn a_directory_is_named_as_one() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(read(directory.path()), Err(ConfigError::Directory { .. })));
    }

    #[test]
    fn binary_junk_is_refused_where_it_begins() {
        let junk = file(b"seed: 1\nname: \x00\x01");
        assert!(read(junk.path()).unwrap_err().to_string().contains(":2:7: control character U+0000"));
        let latin1 = file(b"name: caf\xe9\n");
        assert!(read(latin1.path()).unwrap_err().to_string().contains(":1:10: not UTF-8"));
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_text() {
        assert_eq!(read(file(b"\xef\xbb\xbfseed: 1\n").path()).unwrap(), "seed: 1\n");
    }
}
