//! The Huffman codes of a JPEG (ITU-T T.81, annex C and F.2.2).
//!
//! Most codes are short enough for one look into a table: for every next [`LOOK_BITS`] bits it says how far to go in the
//! block, and how many bits the code and the value behind it take. Longer ones take the standard's way by their length.

/// Bits that are looked up at once.
const LOOK_BITS: u32 = 10;
/// The longest code.
const CODE_BITS: usize = 16;
/// How far the end of a block goes, so that it can be told from a run that leaves the block.
pub(super) const END: usize = 128;

/// What a code says, in one word for the table.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Step(u32);

impl Step {
    /// A symbol is a run of zeros and the number of the bits of the value after it.
    fn of(symbol: u8, code_bits: u32) -> Self {
        let ahead = match (symbol >> 4, symbol & 15) {
            (0..15, 0) => END as u32,
            (zeros, _) => u32::from(zeros) + 1,
        };
        let value_bits = u32::from(symbol & 15);
        Self(ahead << 24 | value_bits << 16 | code_bits << 8 | (code_bits + value_bits))
    }

    /// Whether the code is too long for the table.
    fn is_unknown(self) -> bool {
        self.0 == 0
    }

    /// How far to go in the block.
    pub(super) fn ahead(self) -> usize {
        (self.0 >> 24) as usize
    }

    /// Bits of the value.
    pub(super) fn value_bits(self) -> u32 {
        self.0 >> 16 & 31
    }

    /// Bits of the code.
    pub(super) fn code_bits(self) -> u32 {
        self.0 >> 8 & 31
    }

    /// Bits of the code and the value.
    pub(super) fn bits(self) -> u32 {
        self.0 & 63
    }
}

/// The codes of a table.
#[derive(Clone, Debug)]
pub(super) struct Codes {
    fast: Box<[Step; 1 << LOOK_BITS]>,
    /// For each length, the end of its codes, moved to the left end of sixteen bits.
    ends: [u32; CODE_BITS + 1],
    /// For each length, what leads from a code to its symbol.
    offsets: [usize; CODE_BITS + 1],
    symbols: Box<[u8]>,
}

impl Codes {
    /// From the number of codes of each length and their symbols; `None` where there are more than fit.
    pub(super) fn new(counts: &[u8; CODE_BITS], symbols: &[u8]) -> Option<Self> {
        let mut codes = Self {
            fast: Box::new([Step::default(); 1 << LOOK_BITS]),
            ends: [0; CODE_BITS + 1],
            offsets: [0; CODE_BITS + 1],
            symbols: symbols.into(),
        };
        let (mut code, mut place) = (0_u32, 0_usize);
        for (bits, count) in (1_u32..).zip(counts) {
            codes.offsets[bits as usize] = place.wrapping_sub(code as usize);
            for _ in 0..*count {
                let step = Step::of(*symbols.get(place)?, bits);
                if code >= 1 << bits {
                    return None;
                }
                if let Some(spare) = LOOK_BITS.checked_sub(bits) {
                    let first = (code << spare) as usize;
                    codes.fast.get_mut(first..first + (1 << spare))?.fill(step);
                }
                (code, place) = (code + 1, place + 1);
            }
            codes.ends[bits as usize] = code << (CODE_BITS as u32 - bits);
            code <<= 1;
        }
        Some(codes)
    }

    /// What the next bits say; `None` where there is no such code.
    #[inline]
    pub(super) fn look_up(&self, next: u64) -> Option<Step> {
        let step = self.fast[(next >> (u64::BITS - LOOK_BITS)) as usize];
        if step.is_unknown() { self.long(next) } else { Some(step) }
    }

    /// What a code says that is too long to be looked up.
    #[cold]
    fn long(&self, next: u64) -> Option<Step> {
        let next = (next >> (u64::BITS as usize - CODE_BITS)) as u32;
        let bits = (LOOK_BITS as usize + 1..=CODE_BITS).find(|bits| next < self.ends[*bits])?;
        let place = ((next >> (CODE_BITS - bits)) as usize).wrapping_add(self.offsets[bits]);
        Some(Step::of(*self.symbols.get(place)?, bits as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_found_whatever_its_length() {
        // One code of each length, as deep as codes go.
        let symbols: Vec<u8> = (1..=16).map(|symbol| symbol << 4 | 3).collect();
        let codes = Codes::new(&[1; 16], &symbols).unwrap();
        for (bits, symbol) in (1..=16_u32).zip(&symbols) {
            // Ones, and a 0 at the end.
            let next = !(u64::MAX >> (bits - 1)) | 1;
            let step = codes.look_up(next).unwrap();
            let ahead = usize::from(symbol >> 4) + 1;
            assert_eq!((step.ahead(), step.code_bits(), step.value_bits(), step.bits()), (ahead, bits, 3, bits + 3));
        }
        assert!(codes.look_up(u64::MAX).is_none());
    }

    #[test]
    fn an_end_and_a_run_without_a_value_go_on_without_one() {
        let codes = Codes::new(&[0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[0x00, 0xf0, 0x30]).unwrap();
        let ahead = [0, 1, 2].map(|code: u64| codes.look_up(code << 62).map(|step| (step.ahead(), step.bits())));
        assert_eq!(ahead, [Some((END, 2)), Some((16, 2)), Some((END, 2))]);
    }

    #[test]
    fn more_codes_than_fit_are_refused() {
        let counts = |count: u8, longer: u8| [count, longer, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(Codes::new(&counts(2, 0), &[1, 2]).is_some());
        assert!(Codes::new(&counts(3, 0), &[1, 2, 3]).is_none());
        assert!(Codes::new(&counts(2, 1), &[1, 2, 3]).is_none());
        assert!(Codes::new(&counts(2, 0), &[1]).is_none());
    }
}
