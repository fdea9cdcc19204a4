//! The batches of a run, one after another.

use std::collections::VecDeque;

use super::{Batching, Lengths, Order, WINDOW_BATCHES};

/// A batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its samples.
    pub samples: u64,
    /// The length of its rows.
    pub length: u64,
    /// The tokens of its samples, without padding.
    pub tokens: u64,
}

/// The batches of a run, without an end. At most a window of samples is held.
pub struct Batches<'a> {
    batching: Batching,
    lengths: &'a dyn Lengths,
    longest: u64,
    next: u64,
    waiting: VecDeque<u64>,
}

impl<'a> Batches<'a> {
    /// From the first sample on.
    pub fn new(batching: Batching, lengths: &'a dyn Lengths) -> Self {
        Self { batching, lengths, longest: lengths.longest(), next: 0, waiting: VecDeque::new() }
    }

    /// Samples that were handed out.
    pub fn taken(&self) -> u64 {
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
            self.waiting.push_back(self.lengths.of(self.next).max(1));
            self.next += 1;
        }
        if self.batching.order == Order::ByLength && wanted > 0 {
            self.waiting.make_contiguous().sort_unstable_by(|one, other| other.cmp(one));
        }
    }
}

impl Iterator for Batches<'_> {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        self.fill();
        let first = self.waiting.pop_front()?;
        let (mut longest, mut batch) = (first, Batch { samples: 1, length: 0, tokens: first });
        while batch.samples < self.batching.samples
            && let Some(length) = self.waiting.front().copied()
        {
            let row = self.batching.row(longest.max(length), self.longest);
            let padded = row.saturating_mul(batch.samples + 1);
            if self.batching.token_budget.is_some_and(|budget| padded > budget) {
                break;
            }
            self.waiting.pop_front();
            longest = longest.max(length);
            batch.samples += 1;
            batch.tokens += length;
        }
        batch.length = self.batching.row(longest, self.longest);
        Some(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(batching: Batching, lengths: &[u64], count: usize) -> Vec<(u64, u64, u64)> {
        let lengths = lengths.to_vec();
        assert_eq!(batching.check(&lengths), Ok(()));
        Batches::new(batching, &lengths).take(count).map(|batch| (batch.samples, batch.length, batch.tokens)).collect()
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
            let mut batches = Batches::new(batching, &lengths);
            let (mut samples, mut tokens) = (0, 0);
            for batch in batches.by_ref().take(900) {
                assert!((2..=13).contains(&batch.samples) && batch.samples * batch.length <= 200, "{batch:?}");
                (samples, tokens) = (samples + batch.samples, tokens + batch.tokens);
            }
            assert_eq!(samples, batches.taken());
            let all: u64 = (0..batches.next).map(|sample| lengths.of(sample)).sum();
            assert_eq!(tokens + batches.waiting.iter().sum::<u64>(), all);
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
        assert_eq!(Batches::new(Batching::of(2), &Vec::new()).next(), Some(Batch { samples: 2, length: 1, tokens: 2 }));
    }
}
