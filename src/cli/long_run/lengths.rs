//! How long the samples of a run are.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::LongRunError;
use crate::cli::input;
use crate::memory::forecast::batching::Lengths;

/// Longer samples fit no device.
pub(super) const MAX_LENGTH: u64 = 1 << 24;

/// How long the samples of a run are, as it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) enum RunLengths {
    /// Drawn evenly between two bounds.
    Uniform {
        /// The shortest.
        min: u64,
        /// The longest.
        max: u64,
    },
    /// One a line, in the order of the run.
    File(PathBuf),
}

/// Why two bounds bound no length.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::cli) enum BoundsError {
    /// A side of the colon has no number, or one that no length is.
    #[error("expected two lengths from 1 to {MAX_LENGTH}, such as 64:512, or a file")]
    Number,
    /// The shortest is longer than the longest.
    #[error("the shortest, `{min}`, is longer than the longest, `{max}` (hint: {max}:{min})")]
    Reversed {
        /// What stands first.
        min: u64,
        /// What stands second.
        max: u64,
    },
}

impl FromStr for RunLengths {
    type Err = BoundsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // No file of lengths is called that.
        let is_range = text.contains(':') && text.chars().all(|c| c.is_ascii_digit() || "+-:. ".contains(c));
        let Some((min, max)) = text.split_once(':').filter(|_| is_range) else {
            return Ok(Self::File(PathBuf::from(text)));
        };
        let length = |text: &str| text.parse().ok().filter(|length| (1..=MAX_LENGTH).contains(length));
        let (min, max) = length(min).zip(length(max)).ok_or(BoundsError::Number)?;
        if min > max { Err(BoundsError::Reversed { min, max }) } else { Ok(Self::Uniform { min, max }) }
    }
}

impl RunLengths {
    /// The file, where they are in one.
    pub(super) fn file(&self) -> Option<&Path> {
        match self {
            Self::Uniform { .. } => None,
            Self::File(path) => Some(path),
        }
    }

    /// The samples.
    pub(super) fn samples(&self) -> Result<Samples, LongRunError> {
        Ok(match self {
            Self::Uniform { min, max } => Samples::Drawn { min: *min, max: *max },
            Self::File(path) => Samples::Listed(read(path)?),
        })
    }
}

/// The samples of a run.
#[derive(Clone, Debug)]
pub(super) enum Samples {
    /// Drawn evenly between two bounds.
    Drawn {
        /// The shortest.
        min: u64,
        /// The longest.
        max: u64,
    },
    /// In the order of a file. A run that is longer begins it again, as an epoch does.
    Listed(Vec<u64>),
}

impl Samples {
    /// The samples of an epoch, where there is one.
    pub(super) fn epoch(&self) -> Option<u64> {
        match self {
            Self::Drawn { .. } => None,
            Self::Listed(lengths) => Some(lengths.len() as u64),
        }
    }
}

impl Lengths for Samples {
    fn of(&self, sample: u64) -> u64 {
        match self {
            Self::Drawn { min, max } => {
                // Any length from the number alone, so that a run need not be held and is the same each time.
                let count = u128::from(max.saturating_sub(*min)) + 1;
                min + ((u128::from(mixed(sample)) * count) >> 64) as u64
            }
            Self::Listed(lengths) => lengths.of(sample),
        }
    }

    fn longest(&self) -> u64 {
        match self {
            Self::Drawn { max, .. } => *max,
            Self::Listed(lengths) => lengths.longest(),
        }
    }
}

/// A number without order for each number: the finaliser of SplitMix64 (Steele, Lea, and Flood, 2014).
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn read(path: &Path) -> Result<Vec<u64>, LongRunError> {
    let text = input::text(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let length = |(index, line): (usize, &str)| {
        let length = line.trim().parse().ok().filter(|length| (1..=MAX_LENGTH).contains(length));
        length.ok_or_else(|| LongRunError::Length { path: path.to_owned(), line: index + 1 })
    };
    let lengths: Vec<u64> = lines.map(length).collect::<Result<_, _>>()?;
    if lengths.is_empty() { Err(LongRunError::NoLengths { path: path.to_owned() }) } else { Ok(lengths) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_bounds_or_a_file() {
        let parsed = |text: &str| text.parse::<RunLengths>();
        assert_eq!(parsed("64:512"), Ok(RunLengths::Uniform { min: 64, max: 512 }));
        for text in ["lengths.txt", "c:12", "64"] {
            assert_eq!(parsed(text), Ok(RunLengths::File(PathBuf::from(text))));
        }
    }

    #[test]
    fn bounds_that_bound_nothing_say_what_is_wrong_with_them() {
        let refused = |text: &str| text.parse::<RunLengths>().unwrap_err();
        for text in ["0:4", "16:", ":16", ":", "1:99999999999", "16:4294967295", "-1:5", "1:2:3", "1.5:2"] {
            assert_eq!(refused(text), BoundsError::Number, "{text}");
        }
        let reversed = refused("512:64").to_string();
        assert_eq!(reversed, "the shortest, `512`, is longer than the longest, `64` (hint: 64:512)");
    }

    #[test]
    fn a_file_is_read_in_its_order_and_begun_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lengths.txt");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            RunLengths::File(path.clone()).samples()
        };
        let samples = read("5\n7\n\n3\n4\n").unwrap();
        assert_eq!((0..6).map(|sample| samples.of(sample)).collect::<Vec<_>>(), [5, 7, 3, 4, 5, 7]);
        assert_eq!((samples.longest(), samples.epoch()), (7, Some(4)));
        assert!(matches!(read("5\nx\n"), Err(LongRunError::Length { line: 2, .. })));
        assert!(matches!(read("5\n0\n"), Err(LongRunError::Length { line: 2, .. })));
        assert!(matches!(read("\n"), Err(LongRunError::NoLengths { .. })));
    }

    #[test]
    fn lengths_are_drawn_evenly_and_the_same_each_time() {
        let samples = Samples::Drawn { min: 10, max: 13 };
        let mut counts = [0_u32; 4];
        for sample in 0..4000 {
            counts[samples.of(sample) as usize - 10] += 1;
        }
        assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
        assert_eq!(samples.of(17), samples.of(17));
        assert_eq!(Samples::Drawn { min: 8, max: 8 }.of(3), 8);
    }
}
