//! The batches of a run counted: what they hold, and their shapes for the forecast.

use std::collections::HashSet;

use serde::Serialize;

use super::batches::{Batches, joined};
use super::{BatchedRun, Batching, Extents, Layout, MAX_EXTENTS, Samples};
use crate::memory::forecast::shape::{RunShapes, Shape};
use crate::memory::policy::FastHash;

/// The steps of a run in figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outline {
    /// Steps.
    pub steps: u64,
    /// Samples in them.
    pub samples: u64,
    /// Their tokens: what they have of every axis, multiplied.
    pub tokens: u64,
    /// The same with padding.
    pub padded_tokens: u64,
    /// Different shapes.
    pub shapes: u64,
    /// The most samples of a batch.
    pub largest_batch: u64,
    /// The longest rows: the most tokens of one.
    pub longest_row: u64,
    /// The most tokens of a batch, with padding.
    pub most_tokens: u64,
    /// The most of each axis, the batch first.
    pub largest: Vec<u64>,
    /// The axes of the samples.
    #[serde(skip)]
    pub layout: Layout,
    /// The samples of each step, and how far their rows go.
    #[serde(skip)]
    pub batches: Vec<(u32, [u32; MAX_EXTENTS])>,
}

impl Outline {
    /// The first `steps` batches.
    pub fn of_steps(batching: Batching, samples: &dyn Samples, steps: u64) -> Self {
        Self::of(batching, samples, |outline, _| outline.steps < steps)
    }

    /// As many batches as it takes for `count` samples.
    pub fn of_samples(batching: Batching, samples: &dyn Samples, count: u64) -> Self {
        Self::of(batching, samples, |_, taken| taken < count)
    }

    fn of(batching: Batching, samples: &dyn Samples, goes_on: impl Fn(&Self, u64) -> bool) -> Self {
        let layout = samples.layout();
        match layout.axes() {
            0 | 1 => Self::collect(Batches::<1>::new(batching, samples), layout, goes_on),
            2 => Self::collect(Batches::<2>::new(batching, samples), layout, goes_on),
            _ => Self::collect(Batches::<MAX_EXTENTS>::new(batching, samples), layout, goes_on),
        }
    }

    fn collect<const N: usize>(
        mut batches: Batches<'_, N>,
        layout: Layout,
        goes_on: impl Fn(&Self, u64) -> bool,
    ) -> Self {
        let (mut outline, mut largest) = (Self { layout, ..Self::default() }, [1; N]);
        let mut shapes = HashSet::<(u64, u64), FastHash>::default();
        while goes_on(&outline, batches.taken())
            && let Some(batch) = batches.next()
        {
            // None is ever above 2^32: there are bounds for all.
            let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
            let mut row = [1; MAX_EXTENTS];
            row.iter_mut().zip(batch.row).for_each(|(place, extent)| *place = narrow(extent));
            let samples = narrow(batch.samples);
            outline.steps += 1;
            outline.samples += batch.samples;
            outline.tokens = outline.tokens.saturating_add(batch.tokens);
            outline.padded_tokens = outline.padded_tokens.saturating_add(batch.padded_tokens);
            outline.largest_batch = outline.largest_batch.max(batch.samples);
            outline.longest_row = outline.longest_row.max(layout.positions(&batch.row));
            outline.most_tokens = outline.most_tokens.max(batch.padded_tokens);
            outline.batches.push((samples, row));
            largest = joined(largest, batch.row);
            let [one, two, three] = row.map(u64::from);
            shapes.insert((u64::from(samples) << 32 | one, two << 32 | three));
        }
        outline.shapes = shapes.len() as u64;
        outline.largest = layout.shape(outline.largest_batch, &Extents::of(&largest)).values().to_vec();
        outline
    }

    /// The share of all tokens that is padding.
    pub fn padding_share(&self) -> Option<f64> {
        (self.padded_tokens > 0).then(|| 1.0 - self.tokens as f64 / self.padded_tokens as f64)
    }

    /// What can be counted of a run: all but its memory.
    pub fn counted(&self) -> BatchedRun {
        BatchedRun {
            padding_share: self.padding_share(),
            shapes: self.shapes,
            largest_batch: self.largest_batch,
            most_tokens: self.most_tokens,
            steps: self.steps,
            ..BatchedRun::default()
        }
    }

    /// The steps of an epoch of so many samples.
    pub fn steps_of(&self, samples: u64) -> u64 {
        if self.samples == 0 {
            return 0;
        }
        let steps = u128::from(samples) * u128::from(self.steps);
        u64::try_from(steps.div_ceil(u128::from(self.samples))).unwrap_or(u64::MAX)
    }
}

/// The batches as the axes of a forecast: samples first, then those of a sample.
impl RunShapes for Outline {
    fn len(&self) -> usize {
        self.batches.len()
    }

    /// A run that is rounded up to whole updates goes on with its last batch.
    fn shape(&self, step: usize) -> Shape {
        let (samples, row) = self.batches.get(step).or(self.batches.last()).copied().unwrap_or((1, [1; MAX_EXTENTS]));
        self.layout.shape(u64::from(samples), &Extents::of(&row.map(u64::from)))
    }

    fn period(&self) -> Option<usize> {
        (self.shapes == 1).then_some(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_shapes_and_steps_are_counted() {
        let lengths = vec![5, 7, 3, 3];
        let outline = Outline::of_steps(Batching::of(2), &lengths, 5);
        assert_eq!((outline.steps, outline.samples, outline.tokens, outline.padded_tokens), (5, 10, 48, 54));
        assert_eq!((outline.shapes, outline.largest_batch, outline.longest_row), (2, 2, 7));
        assert!((outline.padding_share().unwrap() - 1.0 / 9.0).abs() < 1e-12);
        assert_eq!(outline.steps_of(1001), 501);
        assert_eq!(Outline::of_samples(Batching::of(2), &lengths, 9).steps, 5);
        assert_eq!(Outline::of_steps(Batching::of(2), &lengths, 0).padding_share(), None);
    }
}
