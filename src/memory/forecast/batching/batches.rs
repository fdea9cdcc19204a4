//! The batches of a run, one after another.
//!
//! They are made for the number of axes that samples have: a run of lengths carries no others along.

use std::array;
use std::collections::VecDeque;

use super::{Batching, Extents, Layout, Order, Samples, WINDOW_BATCHES};

/// A batch of samples with `N` axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch<const N: usize> {
    /// Its samples.
    pub(super) samples: u64,
    /// How far its rows go.
    pub(super) row: [u64; N],
    /// The tokens of its samples, without padding.
    pub(super) tokens: u64,
    /// The same with padding.
    pub(super) padded_tokens: u64,
}

/// The batches of a run, without an end. At most a window of samples is held.
pub(super) struct Batches<'a, const N: usize> {
    batching: Batching,
    samples: &'a dyn Samples,
    layout: Layout,
    largest: [u64; N],
    /// Samples that were asked for.
    next: u64,
    /// Batches that were made.
    made: u64,
    waiting: VecDeque<[u64; N]>,
}

impl<'a, const N: usize> Batches<'a, N> {
    /// From the first sample on.
    pub(super) fn new(batching: Batching, samples: &'a dyn Samples) -> Self {
        let (layout, largest) = (samples.layout(), first(samples.largest()));
        Self { batching, samples, layout, largest, next: 0, made: 0, waiting: VecDeque::new() }
    }

    /// Samples that were handed out.
    pub(super) fn taken(&self) -> u64 {
        self.next - self.waiting.len() as u64
    }

    /// Makes sure that a batch is there, of more than one sample.
    fn fill(&mut self) {
        let samples = self.batching.samples.max(1);
        if self.waiting.len() as u64 >= samples {
            return;
        }
        let wanted = match self.batching.order {
            Order::AsTheyCome => samples - self.waiting.len() as u64,
            // What is left of a window, of which a budget may leave a few, goes into the next one.
            Order::ByLength if self.waiting.len() < 2 => samples.saturating_mul(WINDOW_BATCHES),
            Order::ByLength => 0,
        };
        for _ in 0..wanted {
            self.waiting.push_back(first(self.samples.extents(self.next)));
            self.next += 1;
        }
        if self.batching.order == Order::ByLength && wanted > 0 {
            let (layout, window) = (self.layout, self.waiting.make_contiguous());
            // Along one axis what is longer has more tokens.
            if N == 1 {
                window.sort_unstable_by(|one, other| other.cmp(one));
            } else {
                window.sort_by_cached_key(|extents| std::cmp::Reverse((layout.positions(extents), *extents)));
            }
        }
    }

    /// How far the rows of a batch go whose samples have `extents` at most.
    fn row(&self, extents: [u64; N]) -> [u64; N] {
        array::from_fn(|axis| self.batching.row(extents[axis], self.largest[axis]))
    }
}

impl<const N: usize> Iterator for Batches<'_, N> {
    type Item = Batch<N>;

    fn next(&mut self) -> Option<Batch<N>> {
        self.fill();
        let of_batch = first(self.samples.extents_of_batch(self.made));
        self.made += 1;
        let mut largest = joined(self.waiting.pop_front()?, of_batch);
        let (mut samples, mut tokens) = (1, self.layout.positions(&largest));
        while samples < self.batching.samples
            && let Some(waiting) = self.waiting.front()
        {
            let next = joined(*waiting, of_batch);
            let with_it = joined(largest, next);
            if let Some(budget) = self.batching.token_budget
                && self.layout.positions(&self.row(with_it)).saturating_mul(samples + 1) > budget
            {
                break;
            }
            self.waiting.pop_front();
            largest = with_it;
            samples += 1;
            tokens = tokens.saturating_add(self.layout.positions(&next));
        }
        let row = self.row(largest);
        let padded_tokens = self.layout.positions(&row).saturating_mul(samples);
        Some(Batch { samples, row, tokens, padded_tokens })
    }
}

/// The first values of extents.
fn first<const N: usize>(extents: Extents) -> [u64; N] {
    array::from_fn(|axis| extents.values().get(axis).copied().unwrap_or(1))
}

/// What holds both.
pub(super) fn joined<const N: usize>(one: [u64; N], other: [u64; N]) -> [u64; N] {
    array::from_fn(|axis| one[axis].max(other[axis]))
}

#[cfg(test)]
mod tests {
    use super::super::Lengths;
    use super::*;
    use crate::memory::forecast::shape::Axes;

    /// Images of two sides, and of one that is drawn for each batch.
    struct Images {
        sides: Vec<[u64; 2]>,
        of_batches: Vec<u64>,
    }

    impl Samples for Images {
        fn extents(&self, sample: u64) -> Extents {
            let [height, width] = self.sides[sample as usize % self.sides.len()];
            Extents::of(&[height, width, 1])
        }

        fn extents_of_batch(&self, batch: u64) -> Extents {
            Extents::of(&[1, 1, self.of_batches[batch as usize % self.of_batches.len()]])
        }

        fn largest(&self) -> Extents {
            Extents::of(&[100, 100, 9])
        }

        fn layout(&self) -> Layout {
            Layout::of(&Axes::of(["batch", "height", "width", "frames"]).unwrap(), |name| name == "frames")
        }
    }

    fn images() -> Images {
        Images { sides: vec![[10, 40], [30, 20], [50, 50], [10, 10]], of_batches: vec![3, 1, 9] }
    }

    fn shapes(batching: Batching, count: usize) -> Vec<(u64, Vec<u64>, u64, u64)> {
        let images = images();
        assert_eq!(batching.check(&images), Ok(()));
        let batches = Batches::<3>::new(batching, &images).take(count);
        batches.map(|batch| (batch.samples, batch.row.to_vec(), batch.tokens, batch.padded_tokens)).collect()
    }

    #[test]
    fn a_batch_is_as_large_as_the_largest_of_its_samples_on_each_axis_and_as_it_was_drawn_on_the_others() {
        let found = shapes(Batching::of(2), 3);
        assert_eq!(found[0], (2, vec![30, 40, 3], 3 * (400 + 600), 2 * 30 * 40 * 3));
        assert_eq!(found[1], (2, vec![50, 50, 1], 2500 + 100, 2 * 2500));
        assert_eq!(found[2].1, [30, 40, 9]);
        let padded = shapes(Batching { pad_to: 32, ..Batching::of(2) }, 2);
        assert_eq!((&padded[0].1, &padded[1].1), (&vec![32, 64, 9], &vec![64, 64, 9]), "no further than the largest");
    }

    #[test]
    fn windows_of_images_are_sorted_by_their_pixels() {
        let grouped = Batching { order: Order::ByLength, ..Batching::of(2) };
        let found = shapes(grouped, 100);
        // 25 of each kind in a window of 100.
        assert_eq!((&found[0].1[..2], &found[12].1[..2]), (&[50, 50][..], &[50, 50][..]));
        assert_eq!((&found[13].1[..2], &found[24].1[..2]), (&[30, 20][..], &[30, 20][..]));
        assert_eq!(found[49].1[..2], [10, 10]);
    }

    #[test]
    fn a_budget_counts_the_product_of_the_axes() {
        let budget = Batching { token_budget: Some(180_000), ..Batching::of(100) };
        for (samples, row, tokens, padded) in shapes(budget, 300) {
            assert_eq!(padded, samples * row.iter().product::<u64>());
            assert!((2..=100).contains(&samples) && padded <= 180_000 && tokens <= padded);
        }
        let small = Batching { token_budget: Some(179_999), ..budget };
        let refused = small.check(&images()).unwrap_err().to_string();
        assert!(refused.contains("`179999` positions does not hold two samples of `90000`"), "{refused}");
    }

    fn batches(batching: Batching, lengths: &[u64], count: usize) -> Vec<(u64, u64, u64)> {
        let lengths = lengths.to_vec();
        assert_eq!(batching.check(&lengths), Ok(()));
        let of_length = |batch: Batch<1>| (batch.samples, batch.row[0], batch.tokens);
        Batches::new(batching, &lengths).take(count).map(of_length).collect()
    }

    #[test]
    fn a_batch_is_as_long_as_its_longest_sample() {
        assert_eq!(batches(Batching::of(2), &[5, 7, 3], 4), [(2, 7, 12), (2, 5, 8), (2, 7, 10), (2, 7, 12)]);
    }

    #[test]
    fn rows_are_filled_up_to_a_multiple_and_no_further_than_the_longest() {
        let padded = Batching { pad_to: 4, ..Batching::of(2) };
        assert_eq!(batches(padded, &[5, 3, 9, 1, 2, 4], 3), [(2, 8, 8), (2, 9, 10), (2, 4, 6)]);
    }

    #[test]
    fn a_window_is_sorted_with_its_longest_first() {
        let grouped = Batching { order: Order::ByLength, ..Batching::of(2) };
        let lengths: Vec<u64> = (1..=100).collect();
        let found = batches(grouped, &lengths, 51);
        assert_eq!((found[0], found[49], found[50]), ((2, 100, 199), (2, 2, 3), (2, 100, 199)));
    }

    #[test]
    fn a_budget_is_kept_and_used() {
        let budget = Batching { token_budget: Some(20), ..Batching::of(100) };
        let found = batches(budget, &[10, 3, 3, 3, 4, 9], 4);
        assert_eq!(found, [(2, 10, 13), (3, 4, 10), (2, 10, 19), (4, 4, 13)]);
    }

    #[test]
    fn no_sample_is_lost_and_no_batch_has_one_alone() {
        let lengths: Vec<u64> = (0..5000).map(|place| 1 + place * 7919 % 97).collect();
        let orders = [Order::AsTheyCome, Order::ByLength];
        for (order, pad_to) in orders.into_iter().flat_map(|order| [1, 16].map(|pad_to| (order, pad_to))) {
            let batching = Batching { samples: 13, pad_to, order, token_budget: Some(200) };
            let mut batches = Batches::<1>::new(batching, &lengths);
            let (mut samples, mut tokens) = (0, 0);
            for batch in batches.by_ref().take(900) {
                assert!((2..=13).contains(&batch.samples) && batch.padded_tokens <= 200, "{batch:?}");
                (samples, tokens) = (samples + batch.samples, tokens + batch.tokens);
            }
            assert_eq!(samples, batches.taken());
            let all: u64 = (0..batches.next).map(|sample| lengths.of(sample)).sum();
            assert_eq!(tokens + batches.waiting.iter().flatten().sum::<u64>(), all);
        }
    }

    #[test]
    fn what_cannot_be_forecast_is_refused() {
        let lengths = vec![5, 80];
        let error = |batching: Batching| batching.check(&lengths).unwrap_err().to_string();
        assert!(error(Batching::of(1)).starts_with("batches of `1` cannot be forecast"));
        let budget = Batching { token_budget: Some(159), ..Batching::of(8) };
        assert!(error(budget).contains("two samples of `80` (hint: `160` or more"));
        assert_eq!(Batching { token_budget: Some(160), ..budget }.check(&lengths), Ok(()));
        let nothing = Batches::new(Batching::of(2), &Vec::new()).next().unwrap();
        assert_eq!((nothing.samples, nothing.row, nothing.tokens), (2, [1], 2));
    }
}
