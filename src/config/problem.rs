//! One thing that is wrong with a configuration: what, where, and the way out.
//!
//! Everything that came from the file is escaped and cut before it is printed, so a hostile file can neither move the
//! cursor nor fill the screen.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};

use miette::{Diagnostic, LabeledSpan, MietteError, MietteSpanContents, SourceCode, SourceSpan, SpanContents};

/// The longest message, hint or key that is printed in full.
const LONGEST_TEXT: usize = 600;

/// What kind of problem it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProblemKind {
    /// Not YAML, or more of it than a configuration may hold.
    Syntax,
    /// A key that there is not.
    UnknownKey,
    /// A key written twice.
    DuplicateKey,
    /// A key that must be there and is not.
    MissingKey,
    /// A wrong type or an impossible value.
    InvalidValue,
    /// Values that contradict each other.
    Conflict,
    /// Something that a later version can do.
    NotSupported,
    /// Something outside the file that it names and that is not there, or not as it should be.
    Outside,
}

impl ProblemKind {
    fn code(self) -> &'static str {
        match self {
            Self::Syntax => "config::syntax",
            Self::UnknownKey => "config::unknown_key",
            Self::DuplicateKey => "config::duplicate_key",
            Self::MissingKey => "config::missing_key",
            Self::InvalidValue => "config::invalid_value",
            Self::Conflict => "config::conflict",
            Self::NotSupported => "config::not_supported",
            Self::Outside => "config::outside",
        }
    }
}

/// Where a problem is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the file.
    File {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Counted from 1, in characters.
        column: usize,
    },
    /// In a `--set` of the command line.
    Override {
        /// What was given to `--set`.
        text: String,
        /// Its position among the overrides.
        position: usize,
    },
}

impl Place {
    /// Overrides come last: they were written last.
    pub fn order(&self) -> (usize, usize, usize) {
        match self {
            Self::File { line, column, .. } => (0, *line, *column),
            Self::Override { position, .. } => (1, *position, 0),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", printable(path)),
            Self::Override { text, .. } => write!(f, "--set {}", escape(text)),
        }
    }
}

/// The line of text that a problem is about.
///
/// miette would show the lines around it too, whatever their length; this hands it the one line and nothing else.
#[derive(Clone, Debug)]
pub struct Excerpt {
    /// What the text is called: the file's path, or `--set`.
    pub name: String,
    /// The line.
    pub text: String,
    /// Its number, counted from 1.
    pub line: usize,
    /// The column, counted from 1 in characters.
    pub column: usize,
    /// The piece to underline, in bytes of the line.
    pub span: SourceSpan,
}

impl SourceCode for Excerpt {
    /// Asked without context, miette wants to know where the piece is; with context, what to show.
    fn read_span<'a>(
        &'a self,
        _span: &SourceSpan,
        lines_before: usize,
        _lines_after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        let column = if lines_before == 0 { self.column.saturating_sub(1) } else { 0 };
        Ok(Box::new(MietteSpanContents::new_named(
            self.name.clone(),
            self.text.as_bytes(),
            (0, self.text.len()).into(),
            self.line.saturating_sub(1),
            column,
            1,
        )))
    }
}

/// One finding. Displays as `key: message`.
#[derive(Clone, Debug)]
pub struct Problem {
    kind: ProblemKind,
    key: String,
    message: String,
    hint: Option<String>,
    place: Place,
    excerpt: Option<Excerpt>,
}

impl Problem {
    /// A problem with the value of `key` (empty for the file as a whole).
    pub fn new(kind: ProblemKind, key: &str, message: &str, place: Place) -> Self {
        Self { kind, key: escape(key), message: escape(message), hint: None, place, excerpt: None }
    }

    /// Adds a way out.
    pub fn with_hint(mut self, hint: &str) -> Self {
        self.hint = Some(escape(hint));
        self
    }

    /// Adds the piece of text to show.
    pub fn with_excerpt(mut self, excerpt: Option<Excerpt>) -> Self {
        self.excerpt = excerpt;
        self
    }

    /// What kind of problem it is.
    pub fn kind(&self) -> ProblemKind {
        self.kind
    }

    /// The key's path, such as `target.batch_size`.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// A way out, where one is known.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Where it is.
    pub fn place(&self) -> &Place {
        &self.place
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() { f.write_str(&self.message) } else { write!(f, "{}: {}", self.key, self.message) }
    }
}

impl Error for Problem {}

impl Diagnostic for Problem {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(self.kind.code()))
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        match (&self.hint, &self.excerpt) {
            (Some(hint), Some(_)) => Some(Box::new(hint)),
            // Without an excerpt nothing else says where it is.
            (Some(hint), None) => Some(Box::new(format!("at {}: {hint}", self.place))),
            (None, None) => Some(Box::new(format!("at {}", self.place))),
            (None, Some(_)) => None,
        }
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.excerpt.as_ref().map(|excerpt| excerpt as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let excerpt = self.excerpt.as_ref()?;
        let label = LabeledSpan::new_primary_with_span(None, excerpt.span);
        Some(Box::new(std::iter::once(label)))
    }
}

/// Text from outside on one line, without control characters and of bounded length.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len().min(LONGEST_TEXT));
    for character in text.chars() {
        if escaped.len() >= LONGEST_TEXT {
            escaped.push('…');
            break;
        }
        if character.is_control() || is_invisible(character) {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    escaped
}

/// Characters that reorder or hide the text around them.
fn is_invisible(character: char) -> bool {
    matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// A path for people.
pub fn printable(path: &Path) -> String {
    escape(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_can_neither_move_the_cursor_nor_fill_the_screen() {
        let problem = Problem::new(
            ProblemKind::Syntax,
            "\u{1b}[2J",
            &"x".repeat(1 << 20),
            Place::File { path: "model.yaml".into(), line: 1, column: 3 },
        );
        let printed = problem.to_string();
        assert!(!printed.contains('\u{1b}'));
        assert!(printed.len() < 2 * LONGEST_TEXT);
        assert_eq!(escape("a\u{202e}b"), "a\\u{202e}b");
    }
}
