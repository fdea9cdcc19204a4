//! The order of samples: which indices make up batch `n`.
//!
//! Each epoch is a permutation of the dataset, seeded by (seed, epoch). It is computed and not stored: a Feistel
//! network over the smallest even number of bits that covers the dataset, walked until it lands inside ("cycle
//! walking": Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). So any batch of any epoch is found at
//! once, and a dataset of a billion samples costs no list of indices.

/// Rounds of the network; from four on its permutations look random (Luby and Rackoff, 1988).
const ROUNDS: u64 = 6;

/// Mixes two numbers into one that looks random (the finaliser of `SplitMix64`, Steele, Lea and Flood, 2014).
pub(super) fn mix(seed: u64, value: u64) -> u64 {
    let mut mixed = (seed ^ value.wrapping_mul(0xd1b5_4a32_d192_ed03)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Endless batches of indices.
///
/// The last partial batch of an epoch is dropped, as a training run with fixed shapes does. A dataset smaller than one
/// batch is repeated within it, each time in a new order, so that every size can be tried on any data.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    samples: usize,
    batch_size: usize,
    seed: u64,
}

impl Order {
    /// The order over `samples` samples. Without samples, or with a batch size of 0, every batch is empty.
    pub fn new(samples: usize, batch_size: usize, seed: u64) -> Self {
        Self { samples, batch_size: if samples == 0 { 0 } else { batch_size }, seed }
    }

    /// The indices of batch `number`, counted from 0.
    pub fn batch(&self, number: u64) -> Vec<usize> {
        (0..self.batch_size).map(|place| self.index(number, place)).collect()
    }

    fn index(&self, number: u64, place: usize) -> usize {
        let samples = self.samples as u64;
        let (epoch, place) = match samples.checked_div(self.batch_size as u64) {
            Some(batches) if batches > 0 => {
                (number / batches, number % batches * self.batch_size as u64 + place as u64)
            }
            _ => {
                let place = number.wrapping_mul(self.batch_size as u64).wrapping_add(place as u64);
                (place / samples, place % samples)
            }
        };
        permute(place, samples, mix(self.seed, epoch)) as usize
    }
}

/// Where `index` goes in the permutation of `0..count` that belongs to `key`.
fn permute(index: u64, count: u64, key: u64) -> u64 {
    if count < 2 {
        return index;
    }
    let half_bits = (u64::BITS - (count - 1).leading_zeros()).div_ceil(2);
    let mask = (1_u64 << half_bits) - 1;
    let mut place = index;
    loop {
        let (mut left, mut right) = (place >> half_bits, place & mask);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ (mix(key.wrapping_add(round), right) & mask));
        }
        place = left << half_bits | right;
        // The network permutes at most four times as many numbers as there are: the walk is short and always returns.
        if place < count {
            return place;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_epoch_is_a_permutation() {
        for count in [1, 2, 3, 5, 16, 17, 100, 257, 1000] {
            for key in 0..20 {
                let places: BTreeSet<u64> = (0..count).map(|index| permute(index, count, mix(7, key))).collect();
                assert_eq!(places, (0..count).collect(), "{count} samples, key {key}");
            }
        }
    }

    #[test]
    fn epochs_have_different_orders_and_none_is_the_files() {
        let order = Order::new(100, 100, 3);
        let epochs: BTreeSet<Vec<usize>> = (0..10).map(|epoch| order.batch(epoch)).collect();
        assert_eq!(epochs.len(), 10);
        assert!(!epochs.contains(&(0..100).collect::<Vec<_>>()));
    }

    #[test]
    fn each_place_gets_every_sample_about_equally_often() {
        let mut counts = [0_u32; 10];
        for epoch in 0..10_000 {
            counts[permute(3, 10, mix(1, epoch)) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_last_partial_batch_is_dropped() {
        let order = Order::new(10, 4, 1);
        for epoch in 0..5 {
            let seen: BTreeSet<usize> = (0..2).flat_map(|batch| order.batch(2 * epoch + batch)).collect();
            assert_eq!(seen.len(), 8, "no sample comes twice in an epoch");
        }
    }

    #[test]
    fn a_small_dataset_is_repeated_within_the_batch() {
        let order = Order::new(3, 8, 1);
        let stream: Vec<usize> = (0..3).flat_map(|batch| order.batch(batch)).collect();
        assert_eq!(stream.len(), 24);
        for epoch in stream.chunks(3) {
            assert_eq!(epoch.iter().collect::<BTreeSet<_>>().len(), 3, "{stream:?}");
        }
    }

    #[test]
    fn nothing_and_the_largest_numbers_do_no_harm() {
        assert!(Order::new(0, 4, 1).batch(0).is_empty());
        assert!(Order::new(4, 0, 1).batch(0).is_empty());
        assert_eq!(Order::new(usize::MAX, 2, 1).batch(u64::MAX).len(), 2);
        assert_eq!(Order::new(1, 3, 1).batch(u64::MAX), [0, 0, 0]);
    }
}
