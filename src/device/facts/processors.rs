//! The processors that a process may run on, as the kernel lists them: `0-3,8`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A set of a machine's processors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Processors {
    /// First and last of each run.
    ranges: Vec<(usize, usize)>,
    count: usize,
}

/// A text that lists no processors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no list of processors such as `0-3,8`")]
pub struct NoProcessors(String);

impl Processors {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether any of them is one of the others too.
    pub fn overlap(&self, others: &Self) -> bool {
        let meet = |(first, last): (usize, usize)| others.ranges.iter().any(|(from, to)| first <= *to && *from <= last);
        self.ranges.iter().copied().any(meet)
    }
}

impl FromStr for Processors {
    type Err = NoProcessors;

    fn from_str(text: &str) -> Result<Self, NoProcessors> {
        let range = |range: &str| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            let length = last.checked_sub(first)?.checked_add(1)?;
            Some(((first, last), length))
        };
        let parsed: Option<Vec<((usize, usize), usize)>> = text.split(',').map(range).collect();
        let parsed = parsed.ok_or_else(|| NoProcessors(text.to_owned()))?;
        let count = parsed.iter().try_fold(0_usize, |count, (_, length)| count.checked_add(*length));
        let count = count.ok_or_else(|| NoProcessors(text.to_owned()))?;
        Ok(Self { ranges: parsed.into_iter().map(|(range, _)| range).collect(), count })
    }
}

impl TryFrom<String> for Processors {
    type Error = NoProcessors;

    fn try_from(list: String) -> Result<Self, NoProcessors> {
        list.parse()
    }
}

impl From<Processors> for String {
    fn from(processors: Processors) -> Self {
        processors.to_string()
    }
}

impl fmt::Display for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.ranges.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(list: &str) -> Processors {
        list.parse().unwrap()
    }

    #[test]
    fn lists_are_read_and_written_as_the_kernel_has_them() {
        for (list, count) in [("0-3,8", 5), ("7", 1), ("0-1,4-5,9", 5)] {
            assert_eq!((of(list).count(), of(list).to_string().as_str()), (count, list));
        }
        for wrong in ["", "5-2", "a", "0-18446744073709551615", "1,,2", "-1"] {
            assert!(wrong.parse::<Processors>().is_err(), "{wrong}");
        }
        assert!(serde_json::from_str::<Processors>("\"x\"").is_err());
        assert_eq!(serde_json::to_string(&of("0-3")).unwrap(), "\"0-3\"");
    }

    #[test]
    fn sets_overlap_where_they_have_one_in_common() {
        assert!(of("0-3").overlap(&of("3-5")) && of("0,8").overlap(&of("4-9")));
        assert!(!of("0-3").overlap(&of("4-7")) && !of("0,2").overlap(&of("1,3-9")));
    }
}
