//! The names that a serde type reads: the keys of a section, the words of an enumeration.
//!
//! serde's derive hands the list to the deserializer before it reads anything. A deserializer that keeps the list and
//! then gives up learns the names without a value, so no second list has to be kept by hand for messages.

use serde::de::value::Error;
use serde::de::{Deserialize, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

/// The keys of a struct that derives `Deserialize`; none for other types.
pub fn field_names<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut names = Names(&[]);
    // The deserializer always gives up: only what it was told matters.
    let _ = T::deserialize(&mut names);
    names.0
}

/// The variants of a unit-only enum that derives `Deserialize`; none for other types.
pub fn variant_names<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    field_names::<T>()
}

struct Names(&'static [&'static str]);

impl<'de> Deserializer<'de> for &mut Names {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Error> {
        Err(Error::custom("only names were asked for"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0 = fields;
        self.deserialize_any(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0 = variants;
        self.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::StrategyKind;

    #[test]
    fn names_come_from_the_types_themselves() {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "kebab-case")]
        #[expect(dead_code, reason = "only its names are read")]
        struct Section {
            first_key: u32,
            second: String,
        }
        assert_eq!(field_names::<Section>(), ["first-key", "second"]);
        assert_eq!(variant_names::<StrategyKind>(), ["staged", "grid"]);
        assert!(field_names::<u32>().is_empty());
    }
}
