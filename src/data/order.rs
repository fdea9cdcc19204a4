//! The order of samples: which indices make up batch `n`.
//!
//! Each epoch is a permutation of the dataset, seeded by (seed, epoch). It is computed and not stored: a Feistel
//! network over the smallest even number of bits that covers the dataset, walked until it lands inside ("cycle
//! walking": Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). So any batch of any epoch is found at
//! once, and a dataset of a billion samples costs no list of indices.

use super::LastBatch;

/// Rounds of the network; from four on its permutations look random (Luby and Rackoff, 1988).
const ROUNDS: u64 = 6;

/// Mixes two numbers into one that looks random (the finaliser of `SplitMix64`, Steele, Lea and Flood, 2014).
pub(super) fn mix(seed: u64, value: u64) -> u64 {
    let mut mixed = (seed ^ value.wrapping_mul(0xd1b5_4a32_d192_ed03)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A sample of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which sample of the dataset.
    pub index: usize,
    /// In which pass over it, counted from 0.
    pub epoch: u64,
}

/// One replica's part of every batch.
///
/// A batch of R replicas is one of R times as many samples, in the order that one device would see, cut into R parts in
/// a row. So the parts are disjoint, and training on all of them is training on the whole. What an epoch leaves over is
/// cut into parts of one size too, as all replicas must do the same steps: where it cannot be, the last ones begin again
/// at its first sample (as PyTorch's `DistributedSampler` pads).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Which replica, counted from 0.
    pub rank: usize,
    /// How many there are.
    pub world: usize,
}

impl Default for Shard {
    /// The whole.
    fn default() -> Self {
        Self { rank: 0, world: 1 }
    }
}

impl Shard {
    /// Its places in a batch of `count` places.
    fn places(self, count: u64) -> impl Iterator<Item = u64> {
        let part = count.div_ceil((self.world as u64).max(1));
        let first = part.saturating_mul(self.rank as u64);
        (0..part).map(move |place| first.wrapping_add(place).checked_rem(count).unwrap_or(0))
    }
}

/// Endless batches of samples.
///
/// What is left over at the end of an epoch is dropped or makes a smaller batch. A dataset smaller than one batch is
/// repeated within it either way, each time in a new order, so that every size can be tried on any data.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    samples: usize,
    batch_size: usize,
    seed: u64,
    last_batch: LastBatch,
    shard: Shard,
}

impl Order {
    /// The order over `samples` samples. Without samples, or with a batch size of 0, every batch is empty.
    pub fn new(samples: usize, batch_size: usize, seed: u64) -> Self {
        let batch_size = if samples == 0 { 0 } else { batch_size };
        Self { samples, batch_size, seed, last_batch: LastBatch::Drop, shard: Shard::default() }
    }

    /// The same with another rule for the end of an epoch.
    pub fn with_last_batch(self, last_batch: LastBatch) -> Self {
        Self { last_batch, ..self }
    }

    /// A replica's part of batches of so many samples on each.
    pub fn with_shard(self, shard: Shard) -> Self {
        Self { shard, ..self }
    }

    /// How many samples the smallest batch has.
    pub fn smallest_batch(&self) -> usize {
        self.partial_batch().unwrap_or(self.batch_size)
    }

    /// After how many batches their sizes come again.
    pub fn size_period(&self) -> usize {
        if self.partial_batch().is_some() { self.samples.div_ceil(self.whole_batch()) } else { 1 }
    }

    /// Samples of a batch on all replicas.
    fn whole_batch(&self) -> usize {
        self.batch_size.saturating_mul(self.shard.world)
    }

    /// The samples of an epoch's last batch where it is smaller.
    fn partial_batch(&self) -> Option<usize> {
        let whole = self.whole_batch();
        let rest = self.samples.checked_rem(whole)?;
        let is_kept = self.last_batch == LastBatch::Keep && rest > 0 && self.samples > whole;
        is_kept.then_some(rest.div_ceil(self.shard.world.max(1))).filter(|share| *share < self.batch_size)
    }

    /// The samples of batch `number`, counted from 0.
    pub fn batch(&self, number: u64) -> Vec<Place> {
        let (samples, size) = (self.samples as u64, self.whole_batch() as u64);
        let Some(batches) = samples.checked_div(size) else { return Vec::new() };
        if batches == 0 {
            let first = number.wrapping_mul(size);
            return self.shard.places(size).map(|place| self.at(first.wrapping_add(place))).collect();
        }
        let batches = match self.last_batch {
            LastBatch::Drop => batches,
            LastBatch::Keep => samples.div_ceil(size),
        };
        let (epoch, first) = (number / batches, number % batches * size);
        let end = first.saturating_add(size).min(samples);
        self.shard.places(end - first).map(|place| self.in_epoch(epoch, first + place)).collect()
    }

    /// The sample that this replica takes as its `number`th, counted from 0; `None` without any. What batch it is in follows
    /// from the batch size where no batch is smaller, so that is what this is asked of.
    pub fn sample(&self, number: u64) -> Option<Place> {
        let (samples, size) = (self.samples as u64, self.whole_batch() as u64);
        let (batch, place) = (number.checked_div(self.batch_size as u64)?, number.checked_rem(self.batch_size as u64)?);
        let place = place + (self.batch_size as u64).saturating_mul(self.shard.rank as u64);
        Some(match samples.checked_div(size)? {
            0 => self.at(batch.wrapping_mul(size).wrapping_add(place)),
            batches => self.in_epoch(batch / batches, batch % batches * size + place),
        })
    }

    /// Batches of an epoch, on each replica.
    pub fn batches_of_an_epoch(&self) -> u64 {
        let (samples, size) = (self.samples as u64, (self.whole_batch() as u64).max(1));
        let batches = match self.last_batch {
            LastBatch::Drop => samples / size,
            LastBatch::Keep => samples.div_ceil(size),
        };
        batches.max(1)
    }

    /// The sample at a place in the row of all epochs.
    fn at(&self, place: u64) -> Place {
        let samples = self.samples as u64;
        self.in_epoch(place.checked_div(samples).unwrap_or(0), place.checked_rem(samples).unwrap_or(0))
    }

    fn in_epoch(&self, epoch: u64, place: u64) -> Place {
        Place { index: permute(place, self.samples as u64, mix(self.seed, epoch)) as usize, epoch }
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

    fn indices(order: Order, number: u64) -> Vec<usize> {
        order.batch(number).into_iter().map(|place| place.index).collect()
    }

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
        let epochs: BTreeSet<Vec<usize>> = (0..10).map(|epoch| indices(order, epoch)).collect();
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
            let seen: BTreeSet<usize> = (0..2).flat_map(|batch| indices(order, 2 * epoch + batch)).collect();
            assert_eq!(seen.len(), 8, "no sample comes twice in an epoch");
        }
    }

    #[test]
    fn the_last_partial_batch_is_kept_where_it_is_asked_for() {
        let order = Order::new(10, 4, 1).with_last_batch(LastBatch::Keep);
        for epoch in 0..5 {
            let sizes: Vec<usize> = (0..3).map(|batch| order.batch(3 * epoch + batch).len()).collect();
            assert_eq!(sizes, [4, 4, 2]);
            let places: Vec<Place> = (0..3).flat_map(|batch| order.batch(3 * epoch + batch)).collect();
            assert!(places.iter().all(|place| place.epoch == epoch));
            let seen: BTreeSet<usize> = places.iter().map(|place| place.index).collect();
            assert_eq!(seen.len(), 10);
        }
        assert_eq!(Order::new(8, 4, 1).with_last_batch(LastBatch::Keep).batch(2).len(), 4);
        let smallest = |samples| Order::new(samples, 4, 1).with_last_batch(LastBatch::Keep).smallest_batch();
        assert_eq!([10, 8, 3, 0].map(smallest), [2, 4, 4, 0]);
        let period = |samples| Order::new(samples, 4, 1).with_last_batch(LastBatch::Keep).size_period();
        assert_eq!([10, 8, 3, 0].map(period), [3, 1, 1, 1]);
        assert_eq!((Order::new(10, 4, 1).smallest_batch(), Order::new(10, 4, 1).size_period()), (4, 1));
        assert_eq!(Order::new(3, 8, 1).with_last_batch(LastBatch::Keep).batch(0).len(), 8);
    }

    #[test]
    fn a_small_dataset_is_repeated_within_the_batch() {
        let order = Order::new(3, 8, 1);
        let stream: Vec<usize> = (0..3).flat_map(|batch| indices(order, batch)).collect();
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
        assert_eq!(indices(Order::new(1, 3, 1), u64::MAX), [0, 0, 0]);
    }

    #[test]
    fn replicas_share_every_batch_of_one_device_and_no_sample_twice() {
        for (samples, size, world) in [(100, 3, 4), (96, 4, 2), (7, 5, 3), (1000, 1, 8)] {
            for last_batch in [LastBatch::Drop, LastBatch::Keep] {
                let whole = Order::new(samples, size * world, 5).with_last_batch(last_batch);
                let part =
                    |rank| Order::new(samples, size, 5).with_last_batch(last_batch).with_shard(Shard { rank, world });
                for number in 0..40 {
                    let expected = whole.batch(number);
                    let parts: Vec<_> = (0..world).map(|rank| part(rank).batch(number)).collect();
                    assert!(parts.iter().all(|part| part.len() == parts[0].len() && !part.is_empty()));
                    let together = parts.concat();
                    assert_eq!(together[..expected.len()], expected[..], "{samples} {size} {world} {number}");
                    assert!(together.len() - expected.len() < world, "padding alone is seen twice");
                }
            }
        }
    }
    #[test]
    fn samples_one_by_one_are_those_of_the_batches() {
        for (samples, size, world) in [(100, 3, 4), (96, 4, 2), (7, 5, 3), (26, 4, 1), (0, 4, 1)] {
            for rank in 0..world {
                let order = Order::new(samples, size, 5).with_shard(Shard { rank, world });
                let batches: Vec<Place> = (0..40).flat_map(|number| order.batch(number)).collect();
                let one_by_one: Vec<Place> = (0..40 * size as u64).filter_map(|number| order.sample(number)).collect();
                assert_eq!(one_by_one, batches, "{samples} {size} {rank} of {world}");
            }
        }
        assert_eq!(Order::new(4, 0, 1).sample(3), None);
        let kept = Order::new(10, 4, 1).with_last_batch(LastBatch::Keep);
        assert_eq!(
            [Order::new(10, 4, 1), kept, Order::new(3, 8, 1)].map(|order| order.batches_of_an_epoch()),
            [2, 3, 1]
        );
    }
}
