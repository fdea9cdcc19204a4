//! What can be wrong with a configuration, and where.
//!
//! A [`Problem`] is one finding: a place, a key, what was found and what is allowed. A run reports all of them at
//! once. [`ConfigError`] prints one line each (`model.yaml:3:12: target.batch_size: …`), for logs and editors;
//! [`ConfigError::render`] shows the lines of the file with the value underlined, for people.
//!
//! Everything that came from the file is escaped and cut before it is printed, so a hostile file can neither move the
//! cursor nor fill the screen.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, SourceCode, SourceSpan};

use crate::units::plural;

/// The longest message, hint or key that is printed in full.
const LONGEST_TEXT: usize = 600;
/// The most problems that are printed.
const MOST_PROBLEMS: usize = 50;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be opened or read.
    #[error("cannot read `{}`", printable(path))]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// It is a directory.
    #[error("`{}` is a directory (hint: name a file in it, such as `model.yaml`)", printable(path))]
    Directory {
        /// Which.
        path: PathBuf,
    },
    /// It is too large to be a configuration, and was not read.
    #[error("`{}` is larger than 1 MiB, which no configuration is (hint: is it the right file?)", printable(path))]
    TooLarge {
        /// Which file.
        path: PathBuf,
    },
    /// What it says is wrong.
    #[error(transparent)]
    Invalid(Box<Problems>),
    /// A plan cannot be printed.
    #[error("cannot print the plan as YAML: {message}")]
    Print {
        /// What the YAML library said.
        message: String,
    },
}

impl ConfigError {
    /// The problems found in the file; empty where it could not be read at all.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Invalid(problems) => &problems.0,
            Self::Read { .. } | Self::Directory { .. } | Self::TooLarge { .. } | Self::Print { .. } => &[],
        }
    }

    /// The error for people: every problem with its lines of the file.
    pub fn render(&self, colours: Colours, width: usize) -> String {
        let mut rendered = String::new();
        if self.problems().is_empty() {
            rendered = format!("error: {self}");
            let mut cause = self.source();
            while let Some(error) = cause {
                rendered = format!("{rendered}: {error}");
                cause = error.source();
            }
            rendered.push('\n');
            return rendered;
        }
        let theme = match colours {
            Colours::On => GraphicalTheme::unicode(),
            Colours::Off => GraphicalTheme::unicode_nocolor(),
        };
        let handler = GraphicalReportHandler::new_themed(theme)
            .with_width(width.max(40))
            .with_context_lines(0)
            .with_links(false)
            .without_syntax_highlighting();
        for problem in self.problems().iter().take(MOST_PROBLEMS) {
            if handler.render_report(&mut rendered, problem).is_err() {
                rendered = format!("{rendered}{problem}\n");
            }
        }
        if let Some(rest) = Problems::rest(self.problems().len()) {
            rendered = format!("{rendered}{rest}\n");
        }
        rendered
    }
}

/// Whether a rendering may use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    /// ANSI colours.
    On,
    /// Plain text.
    Off,
}

/// All that is wrong with a configuration, in the order of the file. Never empty.
#[derive(Debug)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// The error of these problems, sorted by their places.
    pub fn into_error(mut problems: Vec<Problem>) -> ConfigError {
        problems.sort_by(|left, right| left.place.order().cmp(&right.place.order()));
        ConfigError::Invalid(Box::new(Self(problems)))
    }

    fn rest(count: usize) -> Option<String> {
        (count > MOST_PROBLEMS).then(|| format!("… and {}", plural(count - MOST_PROBLEMS, "more problem")))
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, problem) in self.0.iter().take(MOST_PROBLEMS).enumerate() {
            if position > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{}: {problem}", problem.place)?;
            if let Some(hint) = &problem.hint {
                write!(f, " (hint: {hint})")?;
            }
        }
        Self::rest(self.0.len()).map_or(Ok(()), |rest| write!(f, "\n{rest}"))
    }
}

impl Error for Problems {}

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
    fn order(&self) -> (usize, usize, usize) {
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

/// The piece of text that a problem is about.
#[derive(Clone, Debug)]
pub struct Excerpt {
    /// The text it stands in, with its name.
    pub source: Arc<NamedSource<Arc<str>>>,
    /// Where in it, in bytes.
    pub span: SourceSpan,
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
        self.excerpt.as_ref().map(|excerpt| excerpt.source.as_ref() as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let excerpt = self.excerpt.as_ref()?;
        let label = LabeledSpan::new_primary_with_span(Some("here".to_owned()), excerpt.span);
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

    fn at(line: usize) -> Place {
        Place::File { path: "model.yaml".into(), line, column: 3 }
    }

    #[test]
    fn problems_print_one_line_each_in_the_order_of_the_file() {
        let error = Problems::into_error(vec![
            Problem::new(ProblemKind::InvalidValue, "b", "wrong", at(9)),
            Problem::new(ProblemKind::UnknownKey, "a", "unknown key", at(2)).with_hint("did you mean `c`?"),
        ]);
        assert_eq!(
            error.to_string(),
            "model.yaml:2:3: a: unknown key (hint: did you mean `c`?)\nmodel.yaml:9:3: b: wrong"
        );
    }

    #[test]
    fn hostile_text_can_neither_move_the_cursor_nor_fill_the_screen() {
        let problem = Problem::new(ProblemKind::Syntax, "\u{1b}[2J", &"x".repeat(1 << 20), at(1));
        let printed = problem.to_string();
        assert!(!printed.contains('\u{1b}'));
        assert!(printed.len() < 2 * LONGEST_TEXT);
        assert_eq!(escape("a\u{202e}b"), "a\\u{202e}b");
    }

    #[test]
    fn the_tail_of_many_problems_is_counted_instead_of_printed() {
        let many = (0..60).map(|line| Problem::new(ProblemKind::UnknownKey, "k", "unknown key", at(line))).collect();
        let error = Problems::into_error(many);
        assert_eq!(error.to_string().lines().count(), MOST_PROBLEMS + 1);
        assert!(error.to_string().ends_with("… and 10 more problems"));
        assert!(error.render(Colours::Off, 80).contains("… and 10 more problems"));
    }
}
