//! A tree of plain values, whatever the format that they were written in.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// A tree of plain values. Unlike `serde_yaml::Value` it takes a key that is no text (`8: x`, and `{batch_size}` with
/// its empty value), and keeps the first of two equal keys, which [`super::parse`] reports.
pub struct Tree(pub Value);

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a plain YAML value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree(Value::Null))
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Tree, E> {
        Ok(Tree(flag.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Tree, E> {
        Ok(Tree(number.into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Tree, E> {
        Ok(Tree(number.into()))
    }

    fn visit_u128<E>(self, number: u128) -> Result<Tree, E> {
        Ok(Tree(number.to_string().into()))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Tree, E> {
        Ok(Tree(number.to_string().into()))
    }

    /// A number that JSON has no word for (`.inf`, `.nan`) stays text: no key takes it.
    fn visit_f64<E>(self, number: f64) -> Result<Tree, E> {
        Ok(Tree(Number::from_f64(number).map_or_else(|| number.to_string().into(), Value::Number)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Tree, E> {
        Ok(Tree(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tree, A::Error> {
        let mut elements = Vec::new();
        while let Some(Tree(value)) = list.next_element()? {
            elements.push(value);
        }
        Ok(Tree(elements.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut mapping: A) -> Result<Tree, A::Error> {
        let mut entries = Map::new();
        while let Some((Tree(key), Tree(value))) = mapping.next_entry()? {
            let name = match key {
                Value::String(name) => name,
                other => other.to_string(),
            };
            entries.entry(name).or_insert(value);
        }
        Ok(Tree(entries.into()))
    }
}
