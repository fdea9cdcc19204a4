//! Shares and amounts: `30%`, and `50%` of the target or `32` samples.

use std::fmt;

use serde::{Serialize, Serializer};

use super::number::MANY;
use super::{Leaf, deserialize_leaf, leaf_schema};
use crate::units::Fraction;

/// Keeps a share of a whole number that is exact on paper (7 % of 100) from being rounded away from it.
const ROUNDING: f64 = 1e-9;

/// A percentage from `MIN` to `MAX` percent.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Share<const MIN: u32, const MAX: u32>(Fraction);

impl<const MIN: u32, const MAX: u32> Share<MIN, MAX> {
    /// The share, moved into the bounds.
    pub fn clamped(fraction: Fraction) -> Self {
        Self(Fraction(fraction.0.max(f64::from(MIN) / 100.0).min(f64::from(MAX) / 100.0)))
    }

    /// So many percent, moved into the bounds.
    pub fn percent(percent: u32) -> Self {
        Self::clamped(Fraction(f64::from(percent) / 100.0))
    }

    /// The share.
    pub fn fraction(self) -> Fraction {
        self.0
    }
}

impl<const MIN: u32, const MAX: u32> fmt::Display for Share<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&exact_percentage(self.0))
    }
}

impl<const MIN: u32, const MAX: u32> Serialize for Share<MIN, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<const MIN: u32, const MAX: u32> Leaf for Share<MIN, MAX> {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a percentage from {MIN}% to {MAX}%, such as `{}%`", 30.clamp(MIN, MAX.max(MIN)))
    }

    fn from_text(text: &str) -> Option<Self> {
        let fraction: Fraction = text.parse().ok()?;
        (f64::from(MIN)..=f64::from(MAX)).contains(&(fraction.0 * 100.0)).then_some(Self(fraction))
    }
}

/// The percentage that [`Fraction`]'s parser reads back as exactly this share.
pub fn exact_percentage(fraction: Fraction) -> String {
    let percent = fraction.0 * 100.0;
    (0..=17)
        .map(|decimals| format!("{percent:.decimals$}%"))
        .find(|text| text.parse() == Ok(fraction))
        .unwrap_or_else(|| format!("{percent}%"))
}

/// A number of samples, or a share of the target batch of one replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// A share of the target.
    Share(Fraction),
    /// So many samples.
    Samples(usize),
}

impl Amount {
    /// The samples, a share rounded up.
    pub fn at_least(self, target: usize) -> usize {
        match self {
            Self::Share(fraction) => ((target as f64 * fraction.0 - ROUNDING).ceil() as usize).max(1),
            Self::Samples(samples) => samples,
        }
    }

    /// The samples, a share rounded down, though not to none.
    pub fn at_most(self, target: usize) -> usize {
        match self {
            Self::Share(fraction) => ((target as f64 * fraction.0 + ROUNDING).floor() as usize).max(1),
            Self::Samples(samples) => samples,
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(fraction) => f.write_str(&exact_percentage(*fraction)),
            Self::Samples(samples) => write!(f, "{samples}"),
        }
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Share(_) => serializer.collect_str(self),
            Self::Samples(samples) => serializer.serialize_u64(*samples as u64),
        }
    }
}

impl Leaf for Amount {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a share of the target above 0% and up to 100%, such as `50%`, or a number of samples such as `32`")
    }

    fn from_text(text: &str) -> Option<Self> {
        let fraction: Fraction = text.parse().ok()?;
        (fraction.0 > 0.0 && fraction.0 <= 1.0).then_some(Self::Share(fraction))
    }

    fn from_whole(number: u64) -> Option<Self> {
        (1..=MANY).contains(&number).then(|| usize::try_from(number).ok().map(Self::Samples)).flatten()
    }
}

/// The step of the batch ladder.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Rung {
    /// An eighth of the target.
    #[default]
    Auto,
    /// This much.
    Amount(Amount),
}

impl Serialize for Rung {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Amount(amount) => amount.serialize(serializer),
        }
    }
}

impl Leaf for Rung {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`auto`, a share of the target such as `12.5%`, or a number of samples such as `8`")
    }

    fn from_text(text: &str) -> Option<Self> {
        if text == "auto" { Some(Self::Auto) } else { Amount::from_text(text).map(Self::Amount) }
    }

    fn from_whole(number: u64) -> Option<Self> {
        Amount::from_whole(number).map(Self::Amount)
    }
}

deserialize_leaf! {
    [const MIN: u32, const MAX: u32] Share<MIN, MAX>;
    [] Amount;
    [] Rung;
}

leaf_schema! {
    [const MIN: u32, const MAX: u32] Share<MIN, MAX> => { "type": "string", "pattern": "^[0-9.]+ *%$" };
    [] Amount => { "anyOf": [{ "type": "string", "pattern": "^[0-9.]+ *%$" }, { "type": "integer", "minimum": 1 }] };
    [] Rung => {
        "anyOf": [{ "type": "string", "pattern": "^(auto|[0-9.]+ *%)$" }, { "type": "integer", "minimum": 1 }]
    };
}
