//! The data of a scan: Huffman codes, and the bits behind them (ITU-T T.81, annex F).
//!
//! Half of the time that an image takes goes by here, one symbol after the other: where the next code begins is known once
//! the last one is. So a look into a table gives at once how many bits a code and its value take, the bits to come are
//! loaded eight bytes at a time without asking whether they are needed, and a value is worked out without a branch, while
//! the next code is looked up. (Bits from the left, filled up to 56 and more: F. Giesen, "Reading bits in far too many
//! ways", 2018.)

use super::codes::{Codes, END, Step};
use super::data::Data;

/// Values of a block.
const VALUES: usize = 64;

/// Where the values of a block go, by their number in the file; those beyond it to one more place.
type Places = [u8; 256];

/// The values of a block, and a place for what leaves it.
pub(super) type Values = [i16; 2 * VALUES];

/// The data is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// The bits up to the next marker.
#[derive(Clone, Copy, Debug)]
struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    /// The next bits, from the left. Behind those that count are some of those that follow, or zeros.
    next: u64,
    count: u32,
    /// Bits that were made up behind the end of the data.
    missing: u32,
}

impl Bits<'_> {
    /// The next code, with 16 bits behind it at least.
    #[inline]
    fn step(&mut self, codes: &Codes) -> Result<Step, Broken> {
        if let Some(bytes) = self.data.get(self.at..).and_then(|rest| rest.first_chunk()) {
            let bytes_taken = (63 - self.count) / 8;
            self.next |= u64::from_be_bytes(*bytes) >> self.count;
            self.at += bytes_taken as usize;
            self.count += 8 * bytes_taken;
        } else {
            *self = self.filled_at_end();
        }
        codes.look_up(self.next).ok_or(Broken)
    }

    /// The same where less than eight bytes are left.
    #[cold]
    fn filled_at_end(mut self) -> Self {
        while self.count < 56 {
            match self.data.get(self.at) {
                Some(byte) => {
                    self.next |= u64::from(*byte) << (56 - self.count);
                    self.at += 1;
                }
                None => self.missing = self.missing.saturating_add(8),
            }
            self.count += 8;
        }
        self
    }

    /// The value behind a code: one that begins with a 0 is negative.
    #[inline]
    fn value(&self, step: Step) -> i16 {
        let (bits, behind) = (step.value_bits(), self.next << step.code_bits());
        let value = (behind >> 1 >> (63 - bits)) as u16;
        // All ones, or none.
        let is_positive = (behind.cast_signed() >> 63) as u16;
        value.wrapping_sub(!is_positive & ((1 << bits) - 1)).cast_signed()
    }

    #[inline]
    fn drop(&mut self, bits: u32) {
        self.next <<= bits;
        self.count -= bits;
    }

    /// The difference of a block's first value from that of the last block.
    #[inline]
    fn first(&mut self, codes: &Codes) -> Result<i16, Broken> {
        let step = self.step(codes)?;
        let value = self.value(step);
        self.drop(step.bits());
        Ok(value)
    }
}

/// Reads the data of a scan block by block.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    data: &'a Data,
    /// Restarts so far.
    restarts: usize,
    /// The bits up to the next restart.
    bits: Bits<'a>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(data: &'a Data) -> Self {
        let part = data.part(0).unwrap_or_default();
        Self { data, restarts: 0, bits: Bits { data: part, at: 0, next: 0, count: 0, missing: 0 } }
    }

    /// How far a file was read whose data begins at an offset.
    pub(super) fn offset(&self, file: &[u8], data_at: usize) -> usize {
        self.data.offset(file, data_at, (self.restarts, self.bits.at))
    }

    /// Whether more was read than there is.
    pub(super) fn is_past_end(&self) -> bool {
        self.bits.missing > self.bits.count
    }

    /// Reads a block's values to their places, all of which are 0 before. Gives the difference of the first value from that
    /// of the last block, and the number of values in front of the zeros at the end.
    pub(super) fn read_block(
        &mut self,
        codes: (&Codes, &Codes),
        places: &Places,
        values: &mut Values,
    ) -> Result<(i16, usize), Broken> {
        // A copy, so that the loop has it in registers.
        let mut bits = self.bits;
        let first = bits.first(codes.0)?;
        let mut at = 0;
        while at < VALUES - 1 {
            let step = bits.step(codes.1)?;
            at += step.ahead();
            // A run that leaves the block ends up in a place behind it.
            let place = places[usize::from(at as u8)];
            values[usize::from(place) % values.len()] = bits.value(step);
            bits.drop(step.bits());
        }
        self.bits = bits;
        end_of(at).map(|count| (first, count))
    }

    /// Goes over a block, and gives its first value's difference.
    pub(super) fn skip_block(&mut self, codes: (&Codes, &Codes)) -> Result<i16, Broken> {
        let mut bits = self.bits;
        let first = bits.first(codes.0)?;
        let mut at = 0;
        while at < VALUES - 1 {
            let step = bits.step(codes.1)?;
            at += step.ahead();
            bits.drop(step.bits());
        }
        self.bits = bits;
        end_of(at).map(|_| first)
    }

    /// Goes on behind the marker of a restart.
    pub(super) fn restart(&mut self) -> Result<(), Broken> {
        let Bits { data, at, count, missing, .. } = self.bits;
        // What is left are the bits that fill the last byte.
        if 8 * (data.len() - at) + (count.saturating_sub(missing) as usize) >= 8 {
            return Err(Broken);
        }
        self.restarts += 1;
        let data = self.data.part(self.restarts).ok_or(Broken)?;
        self.bits = Bits { data, at: 0, next: 0, count: 0, missing: 0 };
        Ok(())
    }
}

/// The number of values in front of a block's end.
fn end_of(at: usize) -> Result<usize, Broken> {
    match at {
        END.. => Ok(at - END + 1),
        63 => Ok(VALUES),
        _ => Err(Broken),
    }
}

/// Where the values go in a block that is stored column by column.
pub(super) const COLUMN_WISE: Places = {
    let mut places = [VALUES as u8; 256];
    let (mut row, mut column, mut at) = (0_u8, 0_u8, 0);
    while at < VALUES {
        places[at] = 8 * column + row;
        // In a zigzag along the diagonals, to the right first.
        let is_upward = (row + column) % 2 == 0;
        match (is_upward, row, column) {
            (true, _, 7) | (false, 0..7, 0) => row += 1,
            (true, 0, _) | (false, 7, _) => column += 1,
            (true, ..) => (row, column) = (row - 1, column + 1),
            (false, ..) => (row, column) = (row + 1, column - 1),
        }
        at += 1;
    }
    places
};
