//! Units that people write and read: bytes, percentages and durations.
//!
//! Inside the program a size is a [`Bytes`] (or a `u64` field whose name ends in `_bytes`), a share is a
//! [`Fraction`] between 0 and 1, and a time is a [`std::time::Duration`]. Each type here parses the form people
//! write in a configuration (`40GiB`, `85%`, `10m`) and prints it back in the same form.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One mebibyte in bytes.
pub const MIB: u64 = 1 << 20;
/// One gibibyte in bytes.
pub const GIB: u64 = 1 << 30;

/// A number of bytes.
///
/// Serialises as a plain integer, displays in binary units: `1.5 GiB`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&bytesize::ByteSize::b(self.0).display().iec().to_string())
    }
}

impl FromStr for Bytes {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let invalid =
            || UnitError { text: text.to_owned(), expected: "a size such as `40GiB`, `512 MiB` or `1073741824`" };
        if text.trim_start().starts_with('-') {
            return Err(invalid());
        }
        text.trim().parse::<bytesize::ByteSize>().map(|size| Self(size.as_u64())).map_err(|_| invalid())
    }
}

/// A share between 0 and 1, written as a percentage: `30%`.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fraction(pub f64);

impl Fraction {
    /// The share of `bytes` that this fraction stands for, rounded down.
    pub fn of(self, bytes: u64) -> u64 {
        (bytes as f64 * self.0) as u64
    }
}

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // At most two decimals, none that say nothing: 30%, 2.5%, 0.25%.
        let percent = format!("{:.2}", self.0 * 100.0);
        f.pad(&format!("{}%", percent.trim_end_matches('0').trim_end_matches('.')))
    }
}

impl FromStr for Fraction {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let invalid = || UnitError { text: text.to_owned(), expected: "a percentage such as `30%`" };
        let number = text.trim().strip_suffix('%').ok_or_else(invalid)?;
        match number.trim_end().parse::<f64>() {
            Ok(percent) if percent.is_finite() => Ok(Self(percent / 100.0)),
            _ => Err(invalid()),
        }
    }
}

/// Parses a duration such as `120s`, `10m` or `1h 30m`.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let invalid = || UnitError { text: text.to_owned(), expected: "a time such as `120s`, `10m` or `1h 30m`" };
    let signed: jiff::SignedDuration = text.trim().parse().map_err(|_| invalid())?;
    Duration::try_from(signed).map_err(|_| invalid())
}

/// Prints a duration in the form [`parse_duration`] reads: `10m`, `2m 5s`, `500ms`.
pub fn format_duration(duration: Duration) -> String {
    if duration.is_zero() {
        return "0s".to_owned();
    }
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s"), (u64::from(millis), "ms")];
    let shown: Vec<String> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, unit)| format!("{n}{unit}")).collect();
    if shown.is_empty() { format!("{}us", duration.as_micros()) } else { shown.join(" ") }
}

/// `1 trial`, `2 trials`: a count with its noun in the right number.
pub fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("{count} {noun}") } else { format!("{count} {noun}s") }
}

/// A text that is not in the form its unit is written in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid value `{text}`, expected {expected}")]
pub struct UnitError {
    /// What was written.
    pub text: String,
    /// The form that is allowed, with an example.
    pub expected: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_with_and_without_a_space() {
        assert_eq!("40GiB".parse(), Ok(Bytes(40 * GIB)));
        assert_eq!("512 MiB".parse(), Ok(Bytes(512 * MIB)));
        assert_eq!("1024".parse(), Ok(Bytes(1024)));
        assert!("forty".parse::<Bytes>().is_err());
        assert!("-1GiB".parse::<Bytes>().is_err());
        assert_eq!(Bytes(3 * GIB / 2).to_string(), "1.5 GiB");
    }

    #[test]
    fn percentages_need_their_sign() {
        assert_eq!("30%".parse(), Ok(Fraction(0.3)));
        assert_eq!("2.5 %".parse(), Ok(Fraction(0.025)));
        assert!("0.3".parse::<Fraction>().is_err());
        assert!("nan%".parse::<Fraction>().is_err());
        assert_eq!(Fraction(0.3).to_string(), "30%");
        assert_eq!(Fraction(0.025).to_string(), "2.5%");
    }

    #[test]
    fn durations_survive_a_round_trip() {
        for text in ["120s", "10m", "1h 30m", "500ms", "0s"] {
            let duration = parse_duration(text).unwrap();
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration), "{text}");
        }
        assert!(parse_duration("-5s").is_err());
        assert!(parse_duration("ten").is_err());
    }

    #[test]
    fn nouns_agree_with_their_count() {
        assert_eq!(plural(1, "trial"), "1 trial");
        assert_eq!(plural(0, "trial"), "0 trials");
    }
}
