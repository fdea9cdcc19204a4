//! Memory: the limit (`85%`, `40GiB` or `auto`), and plain sizes (`600KiB`).

use std::fmt;

use super::amount::exact_percentage;
use super::{Leaf, deserialize_leaf, leaf_schema, serialize_as_text};
use crate::memory::LimitSpec;
use crate::units::{Bytes, Fraction, GIB, MIB};

/// A pebibyte: no device has as much.
const MOST_BYTES: u64 = 1 << 50;

/// What tensors may use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limit(pub LimitSpec);

impl Leaf for Limit {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`auto`, a share of the device above 0% and up to 100% such as `85%`, or a size such as `40GiB`")
    }

    fn from_text(text: &str) -> Option<Self> {
        if text == "auto" {
            return Some(Self(LimitSpec::Auto));
        }
        if let Ok(fraction) = text.parse::<Fraction>() {
            return (fraction.0 > 0.0 && fraction.0 <= 1.0).then_some(Self(LimitSpec::Fraction(fraction)));
        }
        text.parse::<Bytes>().ok().and_then(|bytes| Self::from_whole(bytes.0))
    }

    fn from_whole(number: u64) -> Option<Self> {
        (1..=MOST_BYTES).contains(&number).then_some(Self(LimitSpec::Bytes(Bytes(number))))
    }
}

impl fmt::Display for Limit {
    /// In a form that reads back exactly: `1536MiB`, never a rounded `1.5 GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            LimitSpec::Auto => f.write_str("auto"),
            LimitSpec::Fraction(fraction) => f.write_str(&exact_percentage(fraction)),
            LimitSpec::Bytes(bytes) => write_exactly(f, bytes),
        }
    }
}

/// A size in the largest unit that it is a multiple of.
fn write_exactly(f: &mut fmt::Formatter<'_>, Bytes(bytes): Bytes) -> fmt::Result {
    match bytes {
        bytes if bytes.is_multiple_of(GIB) => write!(f, "{}GiB", bytes / GIB),
        bytes if bytes.is_multiple_of(MIB) => write!(f, "{}MiB", bytes / MIB),
        bytes => write!(f, "{bytes}B"),
    }
}

/// A size in memory, from a byte to a gibibyte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(Bytes);

impl Size {
    /// The size, moved into the bounds.
    pub fn clamped(bytes: u64) -> Self {
        Self(Bytes(bytes.clamp(1, GIB)))
    }

    /// The size.
    pub fn bytes(self) -> u64 {
        self.0.0
    }
}

impl Leaf for Size {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size from 1B to 1GiB, such as `600KiB`")
    }

    fn from_text(text: &str) -> Option<Self> {
        text.parse::<Bytes>().ok().and_then(|bytes| Self::from_whole(bytes.0))
    }

    fn from_whole(number: u64) -> Option<Self> {
        (1..=GIB).contains(&number).then_some(Self(Bytes(number)))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_exactly(f, self.0)
    }
}

serialize_as_text!(Limit, Size);
deserialize_leaf! { [] Limit; [] Size; }
leaf_schema! {
    [] Limit => {
        "anyOf": [{ "type": "string", "examples": ["auto", "85%", "40GiB"] }, { "type": "integer", "minimum": 1 }]
    };
    [] Size => {
        "anyOf": [{ "type": "string", "examples": ["600KiB", "1MiB"] }, { "type": "integer", "minimum": 1, "maximum": GIB }]
    };
}
