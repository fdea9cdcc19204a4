//! How long the samples of a run are, as it is asked for.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::bounds::{Bounds, BoundsError};

/// How long the samples of a run are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) enum RunLengths {
    /// Drawn evenly between two bounds.
    Uniform(Bounds),
    /// One a line, in the order of the run.
    File(PathBuf),
}

impl FromStr for RunLengths {
    type Err = BoundsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // No file of lengths is called that.
        let is_range = text.contains(':') && text.chars().all(|c| c.is_ascii_digit() || "+-:. ".contains(c));
        if is_range { text.parse().map(Self::Uniform) } else { Ok(Self::File(PathBuf::from(text))) }
    }
}

impl RunLengths {
    /// The file, where they are in one.
    pub(super) fn file(&self) -> Option<&Path> {
        match self {
            Self::Uniform(_) => None,
            Self::File(path) => Some(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_bounds_or_a_file() {
        let parsed = |text: &str| text.parse::<RunLengths>();
        assert_eq!(parsed("64:512"), "64:512".parse().map(RunLengths::Uniform));
        for text in ["lengths.txt", "c:12", "64"] {
            assert_eq!(parsed(text), Ok(RunLengths::File(PathBuf::from(text))));
        }
        for text in ["0:4", "16:", ":", "1:2:3:4"] {
            assert_eq!(parsed(text), Err(BoundsError::Number), "{text}");
        }
    }
}
