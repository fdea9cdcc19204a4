//! The memory limit: `85%`, `40GiB` or `auto`.

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
            LimitSpec::Bytes(Bytes(bytes)) if bytes % GIB == 0 => write!(f, "{}GiB", bytes / GIB),
            LimitSpec::Bytes(Bytes(bytes)) if bytes % MIB == 0 => write!(f, "{}MiB", bytes / MIB),
            LimitSpec::Bytes(Bytes(bytes)) => write!(f, "{bytes}B"),
        }
    }
}

serialize_as_text!(Limit);
deserialize_leaf! { [] Limit; }
leaf_schema! {
    [] Limit => {
        "anyOf": [{ "type": "string", "examples": ["auto", "85%", "40GiB"] }, { "type": "integer", "minimum": 1 }]
    };
}
