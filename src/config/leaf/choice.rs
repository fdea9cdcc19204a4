//! One word of a few: enumerations, and `pin_memory: true | false | auto`.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::de::value::{Error, StrDeserializer};
use serde::{Serialize, Serializer};

use super::{Leaf, deserialize_leaf, leaf_schema};
use crate::config::introspect::variant_names;
use crate::config::plan::PinMemory;

/// One of an enumeration's variants, by its name.
///
/// A plain enum answers `precision: 3` with "expected string or map"; this one names what is allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Choice<T>(pub T);

impl<T: DeserializeOwned> Leaf for Choice<T> {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one of ")?;
        for (position, name) in variant_names::<T>().iter().enumerate() {
            write!(f, "{}`{name}`", if position == 0 { "" } else { ", " })?;
        }
        Ok(())
    }

    fn from_text(text: &str) -> Option<Self> {
        T::deserialize(StrDeserializer::<Error>::new(text)).ok().map(Self)
    }
}

impl<T: JsonSchema> JsonSchema for Choice<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

/// Whether host batches are page-locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinning(pub PinMemory);

impl Leaf for Pinning {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`true`, `false` or `auto`")
    }

    fn from_text(text: &str) -> Option<Self> {
        (text == "auto").then_some(Self(PinMemory::Auto))
    }

    fn from_bool(flag: bool) -> Option<Self> {
        Some(Self(if flag { PinMemory::Always } else { PinMemory::Never }))
    }
}

impl Serialize for Pinning {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            PinMemory::Always => serializer.serialize_bool(true),
            PinMemory::Never => serializer.serialize_bool(false),
            PinMemory::Auto => serializer.serialize_str("auto"),
        }
    }
}

deserialize_leaf! {
    [T: DeserializeOwned] Choice<T>;
    [] Pinning;
}
leaf_schema! { [] Pinning => { "enum": [true, false, "auto"] }; }
