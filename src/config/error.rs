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
use std::path::PathBuf;

use miette::{GraphicalReportHandler, GraphicalTheme};

use super::problem::{Problem, printable};
use crate::units::plural;

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
            .with_context_lines(1)
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
        problems.sort_by_key(|problem| problem.place().order());
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
            write!(f, "{}: {problem}", problem.place())?;
            if let Some(hint) = problem.hint() {
                write!(f, " (hint: {hint})")?;
            }
        }
        Self::rest(self.0.len()).map_or(Ok(()), |rest| write!(f, "\n{rest}"))
    }
}

impl Error for Problems {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::problem::{Place, ProblemKind};

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
    fn the_tail_of_many_problems_is_counted_instead_of_printed() {
        let many = (0..60).map(|line| Problem::new(ProblemKind::UnknownKey, "k", "unknown key", at(line))).collect();
        let error = Problems::into_error(many);
        assert_eq!(error.to_string().lines().count(), MOST_PROBLEMS + 1);
        assert!(error.to_string().ends_with("… and 10 more problems"));
        assert!(error.render(Colours::Off, 80).contains("… and 10 more problems"));
    }
}
