//! Exporters: a safe recommendation in the form that a launch needs. One file a format.

use crate::report::Recommendation;
use crate::report::recommendation::Recommended;
use crate::search::recommend::Status;

pub mod env;

/// Writes a recommendation in one format.
pub trait Exporter {
    /// The text. A value that the format cannot hold is an error.
    fn export(&self, recommendation: &Recommendation, recommended: &Recommended) -> Result<String, ExportError>;
}

/// The formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Shell assignments, quoted, for `eval` in a job script.
    Env,
}

impl Format {
    /// The registry: the exporter of a format.
    pub fn exporter(self) -> &'static dyn Exporter {
        match self {
            Self::Env => &env::Env,
        }
    }
}

/// Exports a recommendation if it is safe to launch, and still the one for `expected_sha256` where that is given.
pub fn export(
    recommendation: &Recommendation,
    format: Format,
    expected_sha256: Option<&str>,
) -> Result<String, ExportError> {
    let found = &recommendation.provenance.config_sha256;
    if let Some(expected) = expected_sha256.filter(|expected| expected != found) {
        return Err(ExportError::Stale { expected: short(expected), found: short(found) });
    }
    match (&recommendation.status, &recommendation.recommended) {
        (Status::Safe, Some(recommended)) => format.exporter().export(recommendation, recommended),
        (status, _) => Err(ExportError::NotSafe(status.name())),
    }
}

/// Enough of a hash for people to compare.
fn short(sha256: &str) -> String {
    sha256.chars().take(12).collect()
}

/// Why a recommendation is not exported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// It was not proved by a soak.
    #[error(
        "the recommendation's status is `{0}`, and only `safe` ones are exported (hint: run `tune --config …` to its end, with a larger `--budget` if it ran out)"
    )]
    NotSafe(&'static str),
    /// It was made for another configuration.
    #[error(
        "the recommendation is stale: made for configuration {found}, and this one is {expected} (hint: run `tune --config …` again)"
    )]
    Stale {
        /// The start of the given configuration's hash.
        expected: String,
        /// The start of the recommendation's.
        found: String,
    },
    /// The format cannot hold a value.
    #[error("`{field}` holds a character that cannot be exported")]
    Unrepresentable {
        /// The field.
        field: &'static str,
    },
}
