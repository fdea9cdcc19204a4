//! The stack machine.

use std::collections::HashMap;

use super::super::super::policy::FastHash;
use super::{Arena, BUDGET_FACTOR, BUDGET_FLOOR_BYTES, PickleError, Value};

/// What a container costs beside its items.
pub(super) const CONTAINER_BYTES: usize = 48;

/// A pickle that is being read.
pub(super) struct Machine<'a> {
    pub(super) data: &'a [u8],
    pub(super) at: usize,
    /// Where the instruction that is being run began.
    pub(super) start: usize,
    pub(super) arena: Arena,
    stack: Vec<Value>,
    /// Stack heights, one for each mark.
    marks: Vec<usize>,
    /// Numbered without gaps, as Python writes it.
    memo: Vec<Value>,
    /// Other numbers.
    sparse_memo: HashMap<u64, Value, FastHash>,
    spent: usize,
}

impl<'a> Machine<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self {
            data,
            at: 0,
            start: 0,
            arena: Arena::default(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
            sparse_memo: HashMap::default(),
            spent: 0,
        }
    }

    /// Runs to the `STOP`.
    pub(super) fn run(mut self) -> Result<(Arena, Value), PickleError> {
        match self.data {
            [0x80, 2..=5, ..] => self.at = 2,
            _ => return Err(PickleError::NotPickle),
        }
        loop {
            self.start = self.at;
            let opcode = self.byte()?;
            if opcode == b'.' {
                let value = self.pop()?;
                return Ok((self.arena, value));
            }
            self.step(opcode)?;
        }
    }

    fn step(&mut self, opcode: u8) -> Result<(), PickleError> {
        match opcode {
            // Scalars.
            b'N' => self.push(Value::None),
            0x88 => self.push(Value::Bool(true)),
            0x89 => self.push(Value::Bool(false)),
            b'J' => {
                let number = i32::from_le_bytes(self.array()?);
                self.push(Value::Int(i64::from(number)))
            }
            b'K' => {
                let number = self.byte()?;
                self.push(Value::Int(i64::from(number)))
            }
            b'M' => {
                let number = u16::from_le_bytes(self.array()?);
                self.push(Value::Int(i64::from(number)))
            }
            0x8a => {
                let length = u64::from(self.byte()?);
                self.long(length)
            }
            0x8b => {
                let length = u32::from_le_bytes(self.array()?);
                self.long(u64::from(length))
            }
            b'G' => {
                let number = f64::from_be_bytes(self.array()?);
                self.push(Value::Float(number))
            }
            // Text and bytes.
            0x8c => {
                let length = u64::from(self.byte()?);
                self.text(length)
            }
            b'X' => {
                let length = u32::from_le_bytes(self.array()?);
                self.text(u64::from(length))
            }
            0x8d => {
                let length = u64::from_le_bytes(self.array()?);
                self.text(length)
            }
            b'U' | b'C' => {
                let length = u64::from(self.byte()?);
                self.bytes(length)
            }
            b'T' | b'B' => {
                let length = u32::from_le_bytes(self.array()?);
                self.bytes(u64::from(length))
            }
            0x8e | 0x96 => {
                let length = u64::from_le_bytes(self.array()?);
                self.bytes(length)
            }
            // The stack, the memo and framing.
            b'(' => self.mark(),
            b'0' => self.pop().map(drop),
            b'1' => self.since_mark().map(drop),
            b'2' => {
                let top = self.top()?;
                self.push(top)
            }
            0x95 => {
                let length = u64::from_le_bytes(self.array()?);
                self.check_length(length)
            }
            0x94 => self.memoize(self.memo.len() as u64),
            b'q' => {
                let place = u64::from(self.byte()?);
                self.memoize(place)
            }
            b'r' => {
                let place = u32::from_le_bytes(self.array()?);
                self.memoize(u64::from(place))
            }
            b'h' => {
                let place = u64::from(self.byte()?);
                self.recall(place)
            }
            b'j' => {
                let place = u32::from_le_bytes(self.array()?);
                self.recall(u64::from(place))
            }
            _ => self.container(opcode),
        }
    }

    fn container(&mut self, opcode: u8) -> Result<(), PickleError> {
        match opcode {
            b']' => {
                let list = self.new_list(Vec::new())?;
                self.push(Value::List(list))
            }
            b'}' => {
                let dict = self.new_dict(Vec::new())?;
                self.push(Value::Dict(dict))
            }
            b')' => self.tuple_of(0),
            0x85 => self.tuple_of(1),
            0x86 => self.tuple_of(2),
            0x87 => self.tuple_of(3),
            b'l' => {
                let items = self.since_mark()?;
                let list = self.new_list(items)?;
                self.push(Value::List(list))
            }
            b't' => {
                let items = self.since_mark()?;
                let tuple = self.new_list(items)?;
                self.push(Value::Tuple(tuple))
            }
            b'd' => {
                let items = self.since_mark()?;
                let dict = self.new_dict(items)?;
                self.push(Value::Dict(dict))
            }
            b'a' => {
                let item = self.pop()?;
                self.append(&[item])
            }
            b'e' => {
                let items = self.since_mark()?;
                self.append(&items)
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set_items(vec![key, value])
            }
            b'u' => {
                let items = self.since_mark()?;
                self.set_items(items)
            }
            _ => Err(self.refusal(opcode)),
        }
    }

    /// Why an instruction is not run.
    fn refusal(&self, opcode: u8) -> PickleError {
        let offset = self.start;
        let instruction = match opcode {
            b'c' => "GLOBAL",
            0x93 => "STACK_GLOBAL",
            b'R' => "REDUCE",
            b'b' => "BUILD",
            b'i' => "INST",
            b'o' => "OBJ",
            0x81 => "NEWOBJ",
            0x92 => "NEWOBJ_EX",
            b'P' => "PERSID",
            b'Q' => "BINPERSID",
            0x82..=0x84 => "EXT",
            _ => return PickleError::Unknown { opcode, offset },
        };
        PickleError::Code { instruction, offset }
    }

    fn malformed(&self, problem: &'static str) -> PickleError {
        PickleError::Malformed { offset: self.start, problem }
    }

    // The stack.

    pub(super) fn push(&mut self, value: Value) -> Result<(), PickleError> {
        self.grow_stacks()?;
        self.stack.push(value);
        Ok(())
    }

    fn mark(&mut self) -> Result<(), PickleError> {
        self.grow_stacks()?;
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// The stacks are counted when they would grow, at their doubled size.
    fn grow_stacks(&mut self) -> Result<(), PickleError> {
        let held = self.stack.capacity() * size_of::<Value>() + self.marks.capacity() * size_of::<usize>();
        if self.stack.len() == self.stack.capacity() || self.marks.len() == self.marks.capacity() {
            return self.check_budget(2 * held);
        }
        Ok(())
    }

    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Result<Value, PickleError> {
        if self.stack.len() <= self.floor() {
            return Err(self.malformed("the stack is empty"));
        }
        self.stack.pop().ok_or_else(|| self.malformed("the stack is empty"))
    }

    fn top(&self) -> Result<Value, PickleError> {
        if self.stack.len() <= self.floor() {
            return Err(self.malformed("the stack is empty"));
        }
        self.stack.last().copied().ok_or_else(|| self.malformed("the stack is empty"))
    }

    fn since_mark(&mut self) -> Result<Vec<Value>, PickleError> {
        let height = self.marks.pop().ok_or_else(|| self.malformed("there is no mark"))?;
        // A mark stands at a height that the stack cannot fall below while the mark is there.
        Ok(self.stack.split_off(height.min(self.stack.len())))
    }

    // Containers.

    pub(super) fn spend(&mut self, bytes: usize) -> Result<(), PickleError> {
        self.spent = self.spent.saturating_add(bytes);
        self.check_budget(0)
    }

    fn check_budget(&self, more: usize) -> Result<(), PickleError> {
        let budget_bytes = BUDGET_FLOOR_BYTES.saturating_add(self.data.len().saturating_mul(BUDGET_FACTOR));
        if self.spent.saturating_add(more) > budget_bytes {
            return Err(PickleError::TooLarge { offset: self.start, budget_bytes });
        }
        Ok(())
    }

    fn new_list(&mut self, items: Vec<Value>) -> Result<u32, PickleError> {
        self.spend(items.len() * size_of::<Value>() + CONTAINER_BYTES)?;
        self.arena.lists.push(items);
        Ok((self.arena.lists.len() - 1) as u32)
    }

    fn new_dict(&mut self, items: Vec<Value>) -> Result<u32, PickleError> {
        if !items.len().is_multiple_of(2) {
            return Err(self.malformed("a dictionary has a key without a value"));
        }
        self.spend(items.len() * size_of::<Value>() + CONTAINER_BYTES)?;
        self.arena.dicts.push(items);
        Ok((self.arena.dicts.len() - 1) as u32)
    }

    fn tuple_of(&mut self, count: usize) -> Result<(), PickleError> {
        let height = self.stack.len().checked_sub(count).filter(|height| *height >= self.floor());
        let height = height.ok_or_else(|| self.malformed("the stack is empty"))?;
        let items = self.stack.split_off(height);
        let tuple = self.new_list(items)?;
        self.push(Value::Tuple(tuple))
    }

    fn append(&mut self, items: &[Value]) -> Result<(), PickleError> {
        self.spend(2 * size_of_val(items))?;
        let Value::List(place) = self.top()? else { return Err(self.malformed("an item is appended to no list")) };
        match self.arena.lists.get_mut(place as usize) {
            Some(list) => list.extend_from_slice(items),
            None => return Err(self.malformed("an item is appended to no list")),
        }
        Ok(())
    }

    fn set_items(&mut self, items: Vec<Value>) -> Result<(), PickleError> {
        if !items.len().is_multiple_of(2) {
            return Err(self.malformed("a dictionary has a key without a value"));
        }
        self.spend(2 * items.len() * size_of::<Value>())?;
        let Value::Dict(place) = self.top()? else { return Err(self.malformed("a key is set in no dictionary")) };
        match self.arena.dicts.get_mut(place as usize) {
            // Most dictionaries are filled at once: nothing is reserved beyond that.
            Some(dict) if dict.is_empty() => *dict = items,
            Some(dict) => dict.extend_from_slice(&items),
            None => return Err(self.malformed("a key is set in no dictionary")),
        }
        Ok(())
    }

    // The memo.

    fn memoize(&mut self, place: u64) -> Result<(), PickleError> {
        let value = self.top()?;
        if place == self.memo.len() as u64 {
            self.spend(2 * size_of::<Value>())?;
            self.memo.push(value);
        } else if let Some(old) = self.memo.get_mut(place as usize) {
            *old = value;
        } else {
            self.spend(4 * size_of::<Value>())?;
            self.sparse_memo.insert(place, value);
        }
        Ok(())
    }

    fn recall(&mut self, place: u64) -> Result<(), PickleError> {
        let value = self.memo.get(place as usize).or_else(|| self.sparse_memo.get(&place)).copied();
        let value = value.ok_or_else(|| self.malformed("an object is recalled that was not kept"))?;
        self.push(value)
    }
}
