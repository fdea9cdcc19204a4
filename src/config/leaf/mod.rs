//! Leaf values: what may stand behind a key.
//!
//! serde's `untagged` enums answer a wrong value with "data did not match any variant". A [`Leaf`] instead says what
//! it takes, with an example, and is tried with whatever scalar was written: `limit: 85%`, `limit: 40GiB` and
//! `limit: auto` are one type. Each type prints itself in the form in which it is read and knows its JSON Schema.
//!
//! # To add a leaf type
//! Put it into the file of its kind, implement [`Leaf`], `Serialize` and `JsonSchema`, and name it in
//! [`deserialize_leaf!`](crate::config::leaf).

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, Unexpected, Visitor};

pub mod amount;
pub mod choice;
pub mod list;
pub mod memory;
pub mod number;
pub mod text;
pub mod time;
pub mod varying;

/// A value written as one scalar.
pub trait Leaf: Sized {
    /// What is allowed, with an example: `a size such as `40GiB``.
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// From text.
    fn from_text(_text: &str) -> Option<Self> {
        None
    }

    /// From a whole number that is not negative.
    fn from_whole(_number: u64) -> Option<Self> {
        None
    }

    /// From a number with a fraction or an exponent.
    fn from_real(_number: f64) -> Option<Self> {
        None
    }

    /// From `true` or `false`.
    fn from_bool(_flag: bool) -> Option<Self> {
        None
    }
}

/// Hands whatever scalar comes to a [`Leaf`], and words the refusal.
pub struct LeafVisitor<L>(PhantomData<L>);

impl<L> LeafVisitor<L> {
    /// A visitor for `L`.
    pub fn new() -> Self {
        Self(PhantomData)
    }
}

impl<L> Default for LeafVisitor<L> {
    fn default() -> Self {
        Self::new()
    }
}

impl<L: Leaf> Visitor<'_> for LeafVisitor<L> {
    type Value = L;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        L::expecting(f)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<L, E> {
        L::from_text(text).ok_or_else(|| E::invalid_value(Unexpected::Str(&shortened(text)), &self))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<L, E> {
        L::from_whole(number).ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<L, E> {
        let leaf = u64::try_from(number).ok().and_then(L::from_whole);
        leaf.ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<L, E> {
        L::from_real(number).ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<L, E> {
        L::from_bool(flag).ok_or_else(|| E::invalid_value(Unexpected::Bool(flag), &self))
    }
}

/// The longest text that a refusal quotes in full, in characters.
const LONGEST_QUOTE: usize = 80;

/// A text short enough to be quoted with room for what is allowed beside it.
pub fn shortened(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(LONGEST_QUOTE) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

/// Implements `Deserialize` for types that implement [`Leaf`].
macro_rules! deserialize_leaf {
    ($([$($generics:tt)*] $leaf:ty;)*) => {$(
        impl<'de, $($generics)*> serde::Deserialize<'de> for $leaf {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any($crate::config::leaf::LeafVisitor::<Self>::new())
            }
        }
    )*};
}
pub(crate) use deserialize_leaf;

/// Implements `Serialize` by `Display`, for leaf types that are written as text.
macro_rules! serialize_as_text {
    ($($leaf:ty),* $(,)?) => {$(
        impl serde::Serialize for $leaf {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}
pub(crate) use serialize_as_text;

/// Implements `JsonSchema` for a leaf type with a schema written in place.
macro_rules! leaf_schema {
    ($([$($generics:tt)*] $leaf:ty => $schema:tt;)*) => {$(
        impl<$($generics)*> schemars::JsonSchema for $leaf {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                std::any::type_name::<Self>().into()
            }

            fn json_schema(_generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($schema)
            }
        }
    )*};
}
pub(crate) use leaf_schema;

#[cfg(test)]
mod tests;
