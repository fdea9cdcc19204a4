//! The free blocks of a pool, ordered by (size, address).
//!
//! Best fit asks for the smallest block of at least a size, the lowest address among equals. A search tree answers
//! that; this is faster by not searching. Blocks are sorted into bins by size, 64 to each power of two (as in TLSF,
//! Masmano et al. 2004), and two levels of bit maps lead to the next bin that holds any. A bin holds a handful of blocks
//! in order, so unlike TLSF's answer this one is exact.

use std::collections::BTreeSet;

use super::heap::Index;

/// A block's size, address, and place in the arena.
pub(super) type Key = (u64, u64, Index);

/// Bins to a power of two, as a power of two.
const BIN_BITS: u32 = 6;
/// Bins to a power of two.
const BINS: usize = 1 << BIN_BITS;
/// The most blocks that a bin keeps in a vector, where insertion moves all that follow.
const MAX_VECTOR: usize = 256;

/// Free blocks in order.
#[derive(Debug, Default)]
pub(super) struct FreeList {
    /// One for each power of two, made when it is first needed.
    rows: Vec<Option<Box<Row>>>,
    /// The rows that hold any block.
    occupied: u64,
}

/// The bins of one power of two.
#[derive(Debug)]
struct Row {
    bins: [Bin; BINS],
    /// The bins that hold any block.
    occupied: u64,
}

/// Blocks of nearly one size.
#[derive(Debug)]
enum Bin {
    Vector(Vec<Key>),
    /// Many: a checkerboard of equal holes.
    Tree(BTreeSet<Key>),
}

/// The row and bin of a size. Larger sizes are in later ones.
fn place(bytes: u64) -> (usize, usize) {
    let row = bytes.max(1).ilog2();
    let bin = if row >= BIN_BITS { bytes >> (row - BIN_BITS) } else { bytes << (BIN_BITS - row) };
    (row as usize, bin as usize % BINS)
}

/// The lowest set bit of a map from `start` on.
fn next_bit(map: u64, start: usize) -> Option<usize> {
    let rest = if start < 64 { map & (u64::MAX << start) } else { 0 };
    (rest != 0).then(|| rest.trailing_zeros() as usize)
}

/// The highest set bit of a map.
fn last_bit(map: u64) -> Option<usize> {
    map.checked_ilog2().map(|bit| bit as usize)
}

impl FreeList {
    /// Adds a block.
    pub(super) fn insert(&mut self, key: Key) {
        let (row, bin) = place(key.0);
        if self.rows.len() <= row {
            self.rows.resize_with(row + 1, || None);
        }
        let line = self.rows[row].get_or_insert_with(|| Box::new(Row::new()));
        line.bins[bin].insert(key);
        line.occupied |= 1 << bin;
        self.occupied |= 1 << row;
    }

    /// Removes a block that is in the list.
    pub(super) fn remove(&mut self, key: Key) {
        let (row, bin) = place(key.0);
        let Some(line) = self.rows.get_mut(row).and_then(Option::as_mut) else { return };
        if line.bins[bin].remove(key) {
            line.occupied &= !(1 << bin);
            if line.occupied == 0 {
                self.occupied &= !(1 << row);
            }
        }
    }

    /// The smallest block of at least `bytes`, at the lowest address.
    pub(super) fn best_fit(&self, bytes: u64) -> Option<Key> {
        let (row, bin) = place(bytes);
        if let Some(line) = self.row(row) {
            if let Some(key) = line.bins[bin].first_from((bytes, 0, 0)) {
                return Some(key);
            }
            if let Some(later) = next_bit(line.occupied, bin + 1) {
                return line.bins[later].first_from((0, 0, 0));
            }
        }
        let line = self.row(next_bit(self.occupied, row + 1)?)?;
        line.bins[next_bit(line.occupied, 0)?].first_from((0, 0, 0))
    }

    /// The block of this size at this address.
    pub(super) fn find(&self, bytes: u64, address: u64) -> Option<Key> {
        let (row, bin) = place(bytes);
        let found = self.row(row)?.bins[bin].first_from((bytes, address, 0))?;
        ((found.0, found.1) == (bytes, address)).then_some(found)
    }

    /// The block behind one that is in the list.
    pub(super) fn after(&self, key: Key) -> Option<Key> {
        let (row, bin) = place(key.0);
        let next = self.row(row).and_then(|line| line.bins[bin].first_from((key.0, key.1, key.2 + 1)));
        next.or_else(|| self.best_fit(Self::first_size_behind(row, bin)?))
    }

    /// The smallest size that belongs behind a bin.
    fn first_size_behind(row: usize, bin: usize) -> Option<u64> {
        let (row, bin) = if bin + 1 < BINS { (row, bin + 1) } else { (row + 1, 0) };
        if row >= 64 {
            return None;
        }
        let (row_bits, bin) = (row as u32, (BINS + bin) as u64);
        // In the lowest rows several bins share a size, and the ones between are empty.
        Some(if row_bits >= BIN_BITS { bin << (row_bits - BIN_BITS) } else { bin.div_ceil(1 << (BIN_BITS - row_bits)) })
    }

    /// The largest block.
    pub(super) fn last(&self) -> Option<Key> {
        let line = self.row(last_bit(self.occupied)?)?;
        line.bins[last_bit(line.occupied)?].iter().next_back()
    }

    /// All blocks in order.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = Key> {
        self.rows.iter().flatten().flat_map(|line| line.bins.iter()).flat_map(Bin::iter)
    }

    fn row(&self, row: usize) -> Option<&Row> {
        self.rows.get(row)?.as_deref()
    }
}

impl Row {
    fn new() -> Self {
        Self { bins: [const { Bin::Vector(Vec::new()) }; BINS], occupied: 0 }
    }
}

impl Bin {
    fn insert(&mut self, key: Key) {
        match self {
            Self::Vector(keys) if keys.len() < MAX_VECTOR => {
                let place = keys.partition_point(|other| *other < key);
                keys.insert(place, key);
            }
            Self::Vector(keys) => {
                let mut tree: BTreeSet<Key> = keys.drain(..).collect();
                tree.insert(key);
                *self = Self::Tree(tree);
            }
            Self::Tree(tree) => {
                tree.insert(key);
            }
        }
    }

    /// Removes a block; whether the bin is empty then.
    fn remove(&mut self, key: Key) -> bool {
        match self {
            Self::Vector(keys) => {
                if let Some(place) = keys.iter().position(|other| other.2 == key.2) {
                    keys.remove(place);
                }
                keys.is_empty()
            }
            Self::Tree(tree) => {
                tree.remove(&key);
                tree.is_empty()
            }
        }
    }

    fn first_from(&self, key: Key) -> Option<Key> {
        match self {
            Self::Vector(keys) => keys.iter().find(|other| **other >= key).copied(),
            Self::Tree(tree) => tree.range(key..).next().copied(),
        }
    }

    fn iter(&self) -> Box<dyn DoubleEndedIterator<Item = Key> + '_> {
        match self {
            Self::Vector(keys) => Box::new(keys.iter().copied()),
            Self::Tree(tree) => Box::new(tree.iter().copied()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sizes() -> impl Strategy<Value = u64> {
        prop_oneof![0..200_u64, (0..64_u32).prop_map(|bit| 1 << bit), (0..300_u64).prop_map(|n| n * 512), any::<u64>()]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_answers_as_an_ordered_set_does(
            calls in proptest::collection::vec((any::<bool>(), sizes(), 0..4_u64), 0..400),
            wanted in proptest::collection::vec(sizes(), 0..20),
        ) {
            let (mut list, mut set) = (FreeList::default(), BTreeSet::new());
            for (index, (inserts, bytes, address)) in calls.into_iter().enumerate() {
                if inserts || set.is_empty() {
                    let key = (bytes, address, index as Index);
                    list.insert(key);
                    set.insert(key);
                } else {
                    let key = *set.iter().nth(bytes as usize % set.len()).unwrap();
                    list.remove(key);
                    set.remove(&key);
                }
            }
            prop_assert_eq!(list.iter().collect::<Vec<_>>(), set.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(list.last(), set.last().copied());
            for bytes in wanted {
                let expected = set.range((bytes, 0, 0)..).next().copied();
                prop_assert_eq!(list.best_fit(bytes), expected);
                if let Some(key) = expected {
                    let next = set.range((std::ops::Bound::Excluded(key), std::ops::Bound::Unbounded)).next().copied();
                    prop_assert_eq!(list.after(key), next);
                }
            }
        }
    }

    #[test]
    fn a_checkerboard_of_equal_holes_stays_in_order() {
        let mut list = FreeList::default();
        for address in (0..2000_u64).rev() {
            list.insert((512, address, address as Index));
        }
        for address in 0..2000_u64 {
            assert_eq!(list.best_fit(512), Some((512, address, address as Index)));
            list.remove((512, address, address as Index));
        }
        assert_eq!((list.best_fit(0), list.last()), (None, None));
    }
}
