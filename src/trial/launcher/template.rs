//! Arguments of a launcher and of its cancel command, with placeholders: `--job-name={trial}`.
//!
//! The grammar is that of [`placeholders`](crate::trial::placeholders). Slurm's ids are named as in the
//! environment, in capitals, so any bare word in braces that is no known name is an error. What is filled in never
//! begins with a dash and holds nothing that a shell takes for more: names are made here, and ids that a worker says
//! are checked ([`Place`](super::Place)).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::trial::placeholders::{Piece, fill, parse};

/// What a placeholder stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placeholder {
    /// A name that no other worker has, for the job or the container: `tune-quickstart-5f2a9c01-3`.
    Trial,
    /// The study's name, as far as a job's name may hold it.
    Study,
    /// The worker's process number on its machine.
    Pid,
    /// The name of the worker's machine.
    Node,
    /// Slurm's number of the worker's job.
    SlurmJob,
    /// Slurm's number of the worker's step.
    SlurmStep,
}

/// What holds a template, which decides what is known when it is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The launcher's command: nothing is known of the worker.
    Command,
    /// The cancel command: the worker has said where it is, most of the time.
    Cancel,
}

impl Holder {
    /// The placeholders that it may hold.
    pub fn placeholders(self) -> &'static [Placeholder] {
        const ALL: [Placeholder; 6] = [
            Placeholder::Trial,
            Placeholder::Study,
            Placeholder::Pid,
            Placeholder::Node,
            Placeholder::SlurmJob,
            Placeholder::SlurmStep,
        ];
        match self {
            Self::Command => &ALL[..2],
            Self::Cancel => &ALL,
        }
    }
}

impl Placeholder {
    /// The name between the braces.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trial => "trial",
            Self::Study => "study",
            Self::Pid => "pid",
            Self::Node => "node",
            Self::SlurmJob => "SLURM_JOB_ID",
            Self::SlurmStep => "SLURM_STEP_ID",
        }
    }
}

/// An argument with placeholders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Template {
    written: String,
    pieces: Vec<Piece<Placeholder>>,
}

/// A word in braces that is no placeholder there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{{{name}}}` is no placeholder here, expected one of {} (hint: `{{{{{name}}}}}` stands for itself)", listed(*holder))]
pub struct UnknownPlaceholder {
    /// The word.
    pub name: String,
    /// Where it stands.
    pub holder: Holder,
}

fn listed(holder: Holder) -> String {
    let names: Vec<String> = holder.placeholders().iter().map(|known| format!("`{{{}}}`", known.name())).collect();
    names.join(", ")
}

impl Template {
    /// Reads an argument of `holder`.
    pub fn parse(text: &str, holder: Holder) -> Result<Self, UnknownPlaceholder> {
        let named = |name: &str| holder.placeholders().iter().find(|known| known.name() == name).copied();
        let pieces = parse(text, u8::is_ascii_alphabetic, named)
            .map_err(|name| UnknownPlaceholder { name: name.to_owned(), holder })?;
        Ok(Self { written: text.to_owned(), pieces })
    }

    /// A text that stands for itself, whatever it holds.
    pub(super) fn plain(text: &str) -> Self {
        Self { written: text.to_owned(), pieces: vec![Piece::Text(text.to_owned())] }
    }

    /// A text and one placeholder after it.
    pub(super) fn ending_in(text: &str, placeholder: Placeholder) -> Self {
        let pieces = vec![Piece::Text(text.to_owned()), Piece::Value(placeholder)];
        Self { written: format!("{text}{{{}}}", placeholder.name()), pieces }
    }

    /// The text with every placeholder filled in; `None` if the value of any is not known.
    pub fn fill(&self, value: impl Fn(Placeholder) -> Option<String>) -> Option<String> {
        fill(&self.pieces, value)
    }

    /// Whether the placeholder is in it.
    pub fn holds(&self, placeholder: Placeholder) -> bool {
        self.pieces.contains(&Piece::Value(placeholder))
    }

    /// As it was written.
    pub fn as_written(&self) -> &str {
        &self.written
    }
}

impl TryFrom<String> for Template {
    type Error = UnknownPlaceholder;

    fn try_from(text: String) -> Result<Self, UnknownPlaceholder> {
        Self::parse(&text, Holder::Cancel)
    }
}

impl From<Template> for String {
    fn from(template: Template) -> Self {
        template.written
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str) -> Option<String> {
        let value = |placeholder| match placeholder {
            Placeholder::Trial => Some("tune-a-1".to_owned()),
            Placeholder::SlurmJob => Some("12".to_owned()),
            _ => None,
        };
        Template::parse(text, Holder::Cancel).unwrap().fill(value)
    }

    #[test]
    fn placeholders_are_filled_in_wherever_they_stand() {
        assert_eq!(filled("--job-name={trial}").as_deref(), Some("--job-name=tune-a-1"));
        assert_eq!(filled("{SLURM_JOB_ID}.0").as_deref(), Some("12.0"));
        assert_eq!(filled("{{trial}} {} {1}").as_deref(), Some("{trial} {} {1}"));
        assert_eq!(filled("{SLURM_JOB_ID}.{SLURM_STEP_ID}"), None, "what is not known fills nothing");
    }

    #[test]
    fn what_only_a_worker_can_say_is_no_placeholder_of_the_command() {
        let error = Template::parse("--x={SLURM_JOB_ID}", Holder::Command).unwrap_err().to_string();
        assert_eq!(
            error,
            "`{SLURM_JOB_ID}` is no placeholder here, expected one of `{trial}`, `{study}` (hint: `{{SLURM_JOB_ID}}` \
             stands for itself)"
        );
        assert!(Template::parse("{trail}", Holder::Cancel).unwrap_err().to_string().contains("`{SLURM_STEP_ID}`"));
    }

    #[test]
    fn templates_made_here_are_those_that_would_be_read() {
        let made = Template::ending_in("--job-name=", Placeholder::Trial);
        assert_eq!(made, Template::parse("--job-name={trial}", Holder::Command).unwrap());
        assert_eq!(Template::plain("{x}").fill(|_| None).as_deref(), Some("{x}"));
    }
}
