//! Durations: `120s`, `10m`, `1h 30m`.

use std::fmt;
use std::time::Duration;

use super::{Leaf, deserialize_leaf, leaf_schema, serialize_as_text};
use crate::units::{format_duration, parse_duration};

/// The longest: a year. Longer is a slip, and a deadline that far cannot overflow the clock.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// A time from a millisecond to a year, in whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(Duration);

impl Time {
    /// The time, moved into the bounds.
    pub fn clamped(duration: Duration) -> Self {
        Self(whole_millis(duration.clamp(Duration::from_millis(1), LONGEST)))
    }

    /// The time.
    pub fn duration(self) -> Duration {
        self.0
    }
}

/// What is below a millisecond would not survive printing, and means nothing for a timeout or a budget.
fn whole_millis(duration: Duration) -> Duration {
    Duration::new(duration.as_secs(), duration.subsec_millis() * 1_000_000)
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_duration(self.0))
    }
}

impl Leaf for Time {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time from 1ms to a year, such as `120s`, `10m` or `1h 30m`")
    }

    fn from_text(text: &str) -> Option<Self> {
        let duration = whole_millis(parse_duration(text).ok()?);
        (!duration.is_zero() && duration <= LONGEST).then_some(Self(duration))
    }
}

serialize_as_text!(Time);
deserialize_leaf! { [] Time; }
leaf_schema! { [] Time => { "type": "string", "examples": ["120s", "10m", "1h 30m"] }; }
