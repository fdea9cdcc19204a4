//! Lists of values to try, and the words that may stand in their place.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::number::Whole;
use super::shortened;
use super::text::{ConfText, DeviceName};

/// The longest list: every value multiplies the search.
const LONGEST: usize = 64;

/// Whole numbers from `MIN` to `MAX` to try, at least one and none twice, in the order in which they were written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Candidates<const MIN: u64, const MAX: u64>(Vec<Whole<MIN, MAX>>);

impl<const MIN: u64, const MAX: u64> Candidates<MIN, MAX> {
    /// The numbers, each moved into the bounds.
    pub fn clamped(numbers: &[usize]) -> Self {
        Self(numbers.iter().map(|number| Whole::clamped(*number as u64)).collect())
    }

    /// The numbers as counts.
    pub fn counts(&self) -> Vec<usize> {
        self.0.iter().map(|number| number.count()).collect()
    }
}

struct CandidatesVisitor<const MIN: u64, const MAX: u64>;

impl<'de, const MIN: u64, const MAX: u64> Visitor<'de> for CandidatesVisitor<MIN, MAX> {
    type Value = Candidates<MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of 1 to {LONGEST} different whole numbers from {MIN} to {MAX}, such as `[1, 2, 4]`")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut numbers = Vec::new();
        let mut seen = HashSet::new();
        while let Some(number) = list.next_element::<Whole<MIN, MAX>>()? {
            if !seen.insert(number) {
                return Err(A::Error::invalid_value(Unexpected::Other(&format!("`{}` twice", number.get())), &self));
            }
            numbers.push(number);
            if numbers.len() > LONGEST {
                return Err(A::Error::invalid_length(numbers.len(), &self));
            }
        }
        if numbers.is_empty() {
            return Err(A::Error::invalid_value(Unexpected::Other("an empty list"), &self));
        }
        Ok(Candidates(numbers))
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Candidates<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CandidatesVisitor)
    }
}

impl<const MIN: u64, const MAX: u64> JsonSchema for Candidates<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Candidates{MIN}To{MAX}").into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "array",
            "items": generator.subschema_for::<Whole<MIN, MAX>>(),
            "minItems": 1,
            "maxItems": LONGEST,
            "uniqueItems": true,
        })
    }
}

/// A list, or words that stand for one.
///
/// `L` reads the list; [`Worded::word`] knows the words.
pub trait Worded: Sized {
    /// What the list is read as.
    type List: for<'de> Deserialize<'de>;

    /// What is allowed, with an example.
    const EXPECTING: &'static str;

    /// What a word stands for.
    fn word(text: &str) -> Option<Self>;

    /// What a list stands for.
    fn list(list: Self::List) -> Self;
}

/// Reads a word or a list.
pub struct WordedVisitor<W>(pub PhantomData<W>);

impl<'de, W: Worded> Visitor<'de> for WordedVisitor<W> {
    type Value = W;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(W::EXPECTING)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<W, E> {
        W::word(text).ok_or_else(|| E::invalid_value(Unexpected::Str(&shortened(text)), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<W, A::Error> {
        W::List::deserialize(serde::de::value::SeqAccessDeserializer::new(list)).map(W::list)
    }
}

/// Accumulation steps to allow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Accumulation {
    /// Whatever the target asks for.
    #[default]
    Auto,
    /// These.
    Steps(Candidates<1, 65_536>),
}

impl Worded for Accumulation {
    type List = Candidates<1, 65_536>;

    const EXPECTING: &'static str = "`auto` or a list of whole numbers such as `[1, 2, 4]`";

    fn word(text: &str) -> Option<Self> {
        (text == "auto").then_some(Self::Auto)
    }

    fn list(list: Self::List) -> Self {
        Self::Steps(list)
    }
}

impl<'de> Deserialize<'de> for Accumulation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WordedVisitor(PhantomData))
    }
}

impl Serialize for Accumulation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Steps(list) => list.serialize(serializer),
        }
    }
}

impl JsonSchema for Accumulation {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Accumulation".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "const": "auto" }, generator.subschema_for::<Candidates<1, 65_536>>()] })
    }
}

/// Allocator settings to try.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AllocConfs {
    /// Those that help most often, where the program's are its own to choose.
    #[default]
    Auto,
    /// These; none keeps the program's.
    Some(Vec<ConfText>),
}

impl Worded for AllocConfs {
    type List = Vec<ConfText>;

    const EXPECTING: &'static str = "`auto` or a list of settings such as `[\"expandable_segments:True\"]`";

    fn word(text: &str) -> Option<Self> {
        (text == "auto").then_some(Self::Auto)
    }

    fn list(list: Self::List) -> Self {
        Self::Some(list)
    }
}

impl<'de> Deserialize<'de> for AllocConfs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WordedVisitor(PhantomData))
    }
}

impl Serialize for AllocConfs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Some(list) => list.serialize(serializer),
        }
    }
}

impl JsonSchema for AllocConfs {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "AllocConfs".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let conf = generator.subschema_for::<ConfText>();
        json_schema!({ "anyOf": [{ "const": "auto" }, { "type": "array", "items": conf, "maxItems": LONGEST }] })
    }
}

/// The devices that trials may run on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// The one that `device` names.
    #[default]
    Auto,
    /// All that the machine has.
    All,
    /// These.
    Some(Vec<DeviceName>),
}

impl Worded for Devices {
    type List = Vec<DeviceName>;

    const EXPECTING: &'static str = "`auto`, `all` or a list of devices such as `[cuda:0, cuda:1]`";

    fn word(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "all" => Some(Self::All),
            _ => None,
        }
    }

    fn list(list: Self::List) -> Self {
        Self::Some(list)
    }
}

impl<'de> Deserialize<'de> for Devices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WordedVisitor(PhantomData))
    }
}

impl Serialize for Devices {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::All => serializer.serialize_str("all"),
            Self::Some(list) => list.serialize(serializer),
        }
    }
}

impl JsonSchema for Devices {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Devices".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let device = generator.subschema_for::<DeviceName>();
        json_schema!({ "anyOf": [{ "enum": ["auto", "all"] }, { "type": "array", "items": device }] })
    }
}
