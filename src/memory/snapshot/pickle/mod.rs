//! A reader for the part of Python's pickle format that holds data, and nothing else.
//!
//! A pickle is a program for a stack machine (PEP 3154, PEP 574; `Lib/pickletools.py` lists its instructions). The ones
//! that make numbers, text and containers are run here, protocols 2 to 5. The ones that import or call something
//! (`GLOBAL`, `REDUCE`, `BUILD`, …) are refused by name, so a file cannot do anything.
//!
//! A hostile file may claim lengths that it does not have, nest without end, or make a container with each of its
//! bytes. Lengths are checked against what is left before anything is reserved; containers live in one arena and are
//! named by their place, so depth costs no stack and a cycle is harmless; and the arena has a budget that grows with the
//! file, [`BUDGET_FACTOR`] times its size over a floor.

use std::collections::HashMap;

mod input;
mod machine;

/// The arena's budget is this many times the file's size …
const BUDGET_FACTOR: usize = 8;
/// … and this much.
const BUDGET_FLOOR_BYTES: usize = 64 << 20;

/// No dictionary of a snapshot has more keys; one that does would be searched for every one of them.
pub(super) const MAX_KEYS: usize = 256;

/// A value. Containers are places in the [`Arena`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// An integer beyond `i64`, of which nothing but that is kept.
    HugeInt,
    Float(f64),
    Text(u32),
    /// Bytes, which no snapshot has a use for.
    Bytes,
    List(u32),
    Tuple(u32),
    Dict(u32),
}

/// Where containers and texts live.
#[derive(Debug, Default)]
pub(super) struct Arena {
    texts: Vec<Box<str>>,
    lists: Vec<Vec<Value>>,
    /// Keys and values in turn.
    dicts: Vec<Vec<Value>>,
    /// Texts by content, so that equal keys are equal places.
    interned: HashMap<Box<str>, u32>,
}

impl Arena {
    /// The text of a value that is one.
    pub(super) fn text(&self, value: Value) -> Option<&str> {
        match value {
            Value::Text(place) => self.texts.get(place as usize).map(AsRef::as_ref),
            _ => None,
        }
    }

    /// The items of a list or tuple.
    pub(super) fn items(&self, value: Value) -> Option<&[Value]> {
        match value {
            Value::List(place) | Value::Tuple(place) => self.lists.get(place as usize).map(Vec::as_slice),
            _ => None,
        }
    }

    /// The keys and values of a dictionary, in the order of the file.
    pub(super) fn entries(&self, value: Value) -> Option<impl Iterator<Item = (Value, Value)>> {
        match value {
            Value::Dict(place) => {
                let flat = self.dicts.get(place as usize)?;
                Some(flat.as_chunks::<2>().0.iter().map(|[key, value]| (*key, *value)))
            }
            _ => None,
        }
    }

    /// A text as a value to compare keys with; `None` where the file does not hold it.
    pub(super) fn key(&self, text: &str) -> Option<Value> {
        self.interned.get(text).map(|place| Value::Text(*place))
    }

    /// All texts, by place.
    pub(super) fn into_texts(self) -> Vec<Box<str>> {
        self.texts
    }

    /// How many dictionaries the file made.
    pub(super) fn dictionaries(&self) -> usize {
        self.dicts.len()
    }

    /// The value of a text key; the last one where a key stands twice.
    pub(super) fn get(&self, dict: Value, key: &str) -> Option<Value> {
        let key = self.key(key)?;
        self.entries(dict)?.take(MAX_KEYS).filter(|(name, _)| *name == key).last().map(|(_, value)| value)
    }
}

/// A value that stands for a number.
impl Value {
    /// As an integer.
    pub(super) fn integer(self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(number),
            Self::Bool(flag) => Some(i64::from(flag)),
            _ => None,
        }
    }

    /// As a floating-point number.
    pub(super) fn number(self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(number),
            _ => self.integer().map(|number| number as f64),
        }
    }
}

/// What a pickle cannot be read for. The offset counts bytes from the start of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickleError {
    /// It does not start like one.
    #[error("not a pickle of protocol 2 to 5")]
    NotPickle,
    /// It ends within an instruction.
    #[error("the file ends early: {needed} bytes are missing at offset {offset}")]
    Truncated {
        /// Where.
        offset: usize,
        /// How many bytes an instruction claims beyond the end.
        needed: u64,
    },
    /// It wants something to be imported or called.
    #[error("the pickle runs code (`{instruction}` at offset {offset}), which is refused")]
    Code {
        /// The instruction's name in pickletools.
        instruction: &'static str,
        /// Where.
        offset: usize,
    },
    /// An instruction that does not exist or has no place in a snapshot.
    #[error("unknown instruction {opcode:#04x} at offset {offset}")]
    Unknown {
        /// The byte.
        opcode: u8,
        /// Where.
        offset: usize,
    },
    /// The stack or the memo does not hold what an instruction needs.
    #[error("the pickle is malformed at offset {offset}: {problem}")]
    Malformed {
        /// Where.
        offset: usize,
        /// What is wrong.
        problem: &'static str,
    },
    /// More memory than a file of this size can need.
    #[error("the pickle needs more than {budget_bytes} bytes of memory at offset {offset}")]
    TooLarge {
        /// Where.
        offset: usize,
        /// The budget.
        budget_bytes: usize,
    },
}

/// Reads one pickle.
pub(super) fn read(data: &[u8]) -> Result<(Arena, Value), PickleError> {
    machine::Machine::new(data).run()
}

#[cfg(test)]
mod tests;
