//! Text: names, paths, devices, and the arguments of a command.

use std::fmt;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{Leaf, LeafVisitor, deserialize_leaf, leaf_schema, serialize_as_text};
use crate::device::DeviceChoice;
use crate::memory::policy::AllocConf;

/// The longest name or path.
const LONGEST: usize = 4096;

/// A text that is not empty and prints on one line. (A YAML escape such as `"\x1b"` could smuggle control characters
/// past the check of the file itself.)
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Text(pub String);

impl Leaf for Text {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text on one line, such as `gpt2-medium` (numbers and other words with a meaning in quotes)")
    }

    fn from_text(text: &str) -> Option<Self> {
        let printable = !text.trim().is_empty() && !text.chars().any(char::is_control);
        (printable && text.len() <= LONGEST).then(|| Self(text.to_owned()))
    }
}

/// Which device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceName(pub DeviceChoice);

impl Leaf for DeviceName {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`auto`, `cpu`, `cuda` or a device by its number such as `cuda:1`")
    }

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok().map(Self)
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Settings of PyTorch's allocator, in the form of `PYTORCH_CUDA_ALLOC_CONF`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct ConfText(pub String);

impl Leaf for ConfText {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("settings of PyTorch's allocator, such as `expandable_segments:True,max_split_size_mb:128`")
    }

    fn from_text(text: &str) -> Option<Self> {
        (!text.trim().is_empty() && text.parse::<AllocConf>().is_ok()).then(|| Self(text.to_owned()))
    }
}

/// One argument of a command, or the value of an environment variable. Numbers are taken as they print, and an
/// unquoted `{batch_size}`, which YAML reads as a mapping with one empty value, is taken as the placeholder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Argument(pub String);

impl Leaf for Argument {
    fn expecting(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an argument such as `train.py`, `\"--batch={batch_size}\"` or `{batch_size}`")
    }

    fn from_text(text: &str) -> Option<Self> {
        // The operating system ends an argument at the first NUL.
        (!text.contains('\0')).then(|| Self(text.to_owned()))
    }

    fn from_whole(number: u64) -> Option<Self> {
        Some(Self(number.to_string()))
    }

    fn from_real(number: f64) -> Option<Self> {
        Some(Self(number.to_string()))
    }

    fn from_bool(flag: bool) -> Option<Self> {
        Some(Self(flag.to_string()))
    }
}

struct ArgumentVisitor;

impl<'de> Visitor<'de> for ArgumentVisitor {
    type Value = Argument;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Argument::expecting(f)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Argument, E> {
        LeafVisitor::new().visit_str(text)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Argument, E> {
        LeafVisitor::new().visit_u64(number)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Argument, E> {
        Ok(Argument(number.to_string()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Argument, E> {
        LeafVisitor::new().visit_f64(number)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Argument, E> {
        LeafVisitor::new().visit_bool(flag)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Argument, A::Error> {
        let refused = || A::Error::invalid_type(Unexpected::Map, &ArgumentVisitor);
        match map.next_entry::<String, Option<serde::de::IgnoredAny>>()? {
            Some((name, None)) if map.next_key::<String>()?.is_none() => Ok(Argument(format!("{{{name}}}"))),
            _ => Err(refused()),
        }
    }
}

/// A program and its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Arguments(pub Vec<Argument>);

struct ArgumentsVisitor;

impl<'de> Visitor<'de> for ArgumentsVisitor {
    type Value = Arguments;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of arguments such as `[python3, train.py, \"--batch={batch_size}\"]`")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Arguments, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(Arguments)
    }
}

impl<'de> Deserialize<'de> for Arguments {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ArgumentsVisitor)
    }
}

impl<'de> Deserialize<'de> for Argument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ArgumentVisitor)
    }
}

serialize_as_text!(DeviceName);
deserialize_leaf! {
    [] Text;
    [] DeviceName;
    [] ConfText;
}
leaf_schema! {
    [] Text => { "type": "string", "minLength": 1, "maxLength": LONGEST };
    [] DeviceName => { "type": "string", "pattern": "^(auto|cpu|cuda(:[0-9]+)?)$" };
    [] ConfText => { "type": "string", "minLength": 1 };
    [] Arguments => { "type": "array", "items": { "type": ["string", "number", "boolean", "object"] } };
    [] Argument => { "type": ["string", "number", "boolean", "object"] };
}
