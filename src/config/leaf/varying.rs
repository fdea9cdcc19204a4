//! What may vary from sample to sample or batch to batch: one value for all, or keys that say how it is drawn.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Leaf, LeafVisitor};

/// How something is drawn, as a section of its own.
pub trait Range: DeserializeOwned + Serialize + JsonSchema {
    /// The one value that may stand in its place.
    type One: Leaf + Serialize + JsonSchema;
    /// What it is a range of, for the schema.
    const NAME: &'static str;
    /// What is allowed, with examples of both.
    const EXPECTED: &'static str;
}

/// One value for all, or a range.
#[derive(Clone, Debug, PartialEq)]
pub enum Varying<R: Range> {
    /// All the same.
    Fixed(R::One),
    /// Drawn.
    Range(R),
}

impl<R: Range> Leaf for Varying<R> {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(R::EXPECTED)
    }

    fn from_whole(number: u64) -> Option<Self> {
        R::One::from_whole(number).map(Self::Fixed)
    }
}

struct VaryingVisitor<R>(PhantomData<R>);

impl<'de, R: Range> Visitor<'de> for VaryingVisitor<R> {
    type Value = Varying<R>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Varying::<R>::expecting(f)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Varying<R>, E> {
        LeafVisitor::new().visit_u64(number)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Varying<R>, A::Error> {
        R::deserialize(MapAccessDeserializer::new(map)).map(Varying::Range)
    }
}

impl<'de, R: Range> Deserialize<'de> for Varying<R> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(VaryingVisitor(PhantomData))
    }
}

impl<R: Range> Serialize for Varying<R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(one) => one.serialize(serializer),
            Self::Range(range) => range.serialize(serializer),
        }
    }
}

impl<R: Range> JsonSchema for Varying<R> {
    fn schema_name() -> Cow<'static, str> {
        R::NAME.into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [generator.subschema_for::<R::One>(), generator.subschema_for::<R>()] })
    }
}
