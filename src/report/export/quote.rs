//! Quoting: a stranger's text as one word of a shell, one string of Python or YAML, or part of a comment.

use std::fmt::Write;

/// A value in single quotes, where the shell expands nothing. A NUL byte cannot be in an environment at all; other control
/// characters could be, but the text is also printed, and a terminal would obey them.
pub(super) fn shell(value: &str) -> Option<String> {
    if value.contains(|c: char| c.is_control() && !"\n\t".contains(c)) {
        return None;
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        return Some(value.to_owned());
    }
    Some(format!("'{}'", value.replace('\'', r"'\''")))
}

/// A string literal of Python and of YAML alike, in ASCII. Both know `\xNN`, `\uNNNN` and `\UNNNNNNNN`; JSON's pairs of
/// surrogates are two characters to either, and some characters beyond ASCII end a line in YAML.
pub(super) fn literal(value: &str) -> String {
    let mut quoted = String::with_capacity(value.len() + 2);
    quoted.push('"');
    for character in value.chars() {
        // Writing to a String cannot fail.
        let _ = match (character, u32::from(character)) {
            ('"' | '\\', _) => write!(quoted, "\\{character}"),
            ('\n', _) => write!(quoted, "\\n"),
            (' '..='~', _) => write!(quoted, "{character}"),
            (_, code @ 0..=0xff) => write!(quoted, "\\x{code:02x}"),
            (_, code @ 0..=0xffff) => write!(quoted, "\\u{code:04x}"),
            (_, code) => write!(quoted, "\\U{code:08x}"),
        };
    }
    quoted.push('"');
    quoted
}

/// A text for a comment: printable ASCII only, so that nothing ends the line, and not much of it.
pub(super) fn one_line(text: &str) -> String {
    const MAX_CHARACTERS: usize = 200;
    text.chars().take(MAX_CHARACTERS).map(|c| if matches!(c, ' '..='~') { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_reads_back_exactly_what_was_quoted() {
        for value in ["64", "", "it's", "$(touch /tmp/owned)", "a\nb", "`id`", "\\", "expandable_segments:True"] {
            let script = format!("v={}; printf %s \"$v\"", shell(value).unwrap());
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), value);
        }
    }

    #[test]
    fn what_an_environment_or_a_terminal_cannot_have_is_refused() {
        for value in ["a\0b", "\u{1b}[2J", "a\rb", "\u{9b}31m", "\u{7f}"] {
            assert_eq!(shell(value), None, "{value:?}");
        }
    }

    #[test]
    fn yaml_reads_back_exactly_what_was_quoted() {
        for value in ["", "off", "a\"b\\", "a\nb\r\tc", "\u{85}\u{2028}\0", "日本 🚀", "# no comment", "{{ x }}"] {
            let read: String = serde_yaml::from_str(&literal(value)).unwrap();
            assert_eq!(read, value);
            assert!(literal(value).is_ascii());
        }
    }

    #[test]
    fn a_comment_stays_one_line() {
        assert_eq!(one_line("a\nrm -rf /\u{2028}b"), "a?rm -rf /?b");
    }
}
