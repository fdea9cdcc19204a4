//! Instructions' arguments: bytes, numbers, and texts.

use super::machine::{CONTAINER_BYTES, Machine};
use super::{PickleError, Value};

impl<'a> Machine<'a> {
    pub(super) fn byte(&mut self) -> Result<u8, PickleError> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let bytes = self.data.get(self.at..).and_then(|rest| rest.first_chunk::<N>());
        let bytes = *bytes.ok_or_else(|| self.truncated(N as u64))?;
        self.at += N;
        Ok(bytes)
    }

    fn slice(&mut self, length: u64) -> Result<&'a [u8], PickleError> {
        self.check_length(length)?;
        let end = self.at + length as usize;
        let bytes = &self.data[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    pub(super) fn check_length(&self, length: u64) -> Result<(), PickleError> {
        if length > (self.data.len() - self.at) as u64 { Err(self.truncated(length)) } else { Ok(()) }
    }

    fn truncated(&self, length: u64) -> PickleError {
        let left = (self.data.len() - self.at) as u64;
        PickleError::Truncated { offset: self.start, needed: length.saturating_sub(left) }
    }

    pub(super) fn long(&mut self, length: u64) -> Result<(), PickleError> {
        let bytes = self.slice(length)?;
        let value = match bytes.last() {
            None => Value::Int(0),
            Some(_) if bytes.len() > 8 => Value::HugeInt,
            // Little-endian two's complement: the last byte carries the sign.
            Some(last) => {
                let mut wide = [if *last >= 0x80 { 0xff } else { 0 }; 8];
                wide[..bytes.len()].copy_from_slice(bytes);
                Value::Int(i64::from_le_bytes(wide))
            }
        };
        self.push(value)
    }

    pub(super) fn text(&mut self, length: u64) -> Result<(), PickleError> {
        let bytes = self.slice(length)?;
        // Python may write lone surrogates; they are of no use here, but no reason to refuse the file.
        let text = String::from_utf8_lossy(bytes);
        if let Some(place) = self.arena.interned.get(text.as_ref()) {
            return self.push(Value::Text(*place));
        }
        self.spend(2 * text.len() + 2 * CONTAINER_BYTES)?;
        let place = self.arena.texts.len() as u32;
        self.arena.texts.push(text.as_ref().into());
        self.arena.interned.insert(text.into_owned().into_boxed_str(), place);
        self.push(Value::Text(place))
    }

    pub(super) fn bytes(&mut self, length: u64) -> Result<(), PickleError> {
        self.slice(length)?;
        self.push(Value::Bytes)
    }
}
