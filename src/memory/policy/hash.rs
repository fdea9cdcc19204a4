//! A fast hash for addresses and ordinals, which every event looks up.

use std::hash::{BuildHasherDefault, Hasher};

/// A hasher for integers that an adversary gains nothing by colliding more than a slow replay of his own file.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct IntegerHasher(u64);

/// Builds [`IntegerHasher`]s.
pub(crate) type FastHash = BuildHasherDefault<IntegerHasher>;

impl Hasher for IntegerHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        // A multiplication by an odd constant (2^64 / golden ratio) and a fold, so that low and high bits both count.
        let product = u128::from(self.0 ^ value) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}
