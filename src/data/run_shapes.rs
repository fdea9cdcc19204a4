//! The shapes of the batches of a coming run, step by step, without its data.
//!
//! Which samples make up batch `n` depends on the seed alone ([`order`](super::order)), and so does how long each of them is
//! ([`lengths`](super::lengths)), or of which side the images of a batch are ([`sides`](super::sides)). So the very
//! sequence of shapes that a run will have is known before it starts: epochs, the smaller batch at their end, lengths and
//! padding, sides. A forecast of the run is made from it. Nothing is stored, since any step is computed at once.
//!
//! Trials put the longest batch, or the largest images, in now and then ([`Longest`](super::lengths::Longest)); a run has it when it comes.

use super::lengths::Lengths;
use super::order::{Order, Shard};
use super::sides::Sides;
use super::{DataSpec, LastBatch, SampleSize};

/// What a batch is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchShape {
    /// Its samples.
    pub samples: usize,
    /// How large all of them are; `None` where they are so in all batches.
    pub sample_size: Option<SampleSize>,
}

/// The shapes of a run's batches.
#[derive(Clone, Copy, Debug)]
pub struct RunShapes {
    order: Order,
    lengths: Option<Lengths>,
    sides: Option<Sides>,
    batch_size: usize,
}

impl RunShapes {
    /// Those of a run over so many training samples in batches of one size.
    pub fn new(spec: &DataSpec, samples: usize, batch_size: usize, seed: u64) -> Self {
        let order = Order::new(samples, batch_size, seed).with_last_batch(spec.last_batch);
        Self { order, lengths: Lengths::of(spec, seed), sides: Sides::of(spec, seed), batch_size }
    }

    /// Those of one replica's part of the batches, so many samples on each.
    #[must_use]
    pub fn with_shard(self, shard: Shard) -> Self {
        Self { order: self.order.with_shard(shard), ..self }
    }

    /// Its samples one by one; `None` where they have no lengths of their own. A smaller batch at the end of an epoch is not among them.
    pub fn samples(&self) -> Option<RunSamples> {
        Some(RunSamples { order: self.order.with_last_batch(LastBatch::Drop), lengths: self.lengths? })
    }

    /// Batches of an epoch.
    pub fn steps_of_an_epoch(&self) -> u64 {
        self.order.batches_of_an_epoch()
    }

    /// The batch of a step, counted from 0.
    pub fn at(&self, step: u64) -> BatchShape {
        let places = self.order.batch(step);
        let tokens = self.lengths.map(|lengths| {
            let longest = places.iter().map(|place| lengths.of_sample(*place)).max();
            SampleSize::Tokens(lengths.of_rows(longest.unwrap_or(0)))
        });
        let sample_size = tokens.or_else(|| Some(SampleSize::Side(self.sides?.of_batch(step))));
        BatchShape { samples: places.len(), sample_size }
    }

    /// The samples of the smallest batch.
    pub fn smallest_samples(&self) -> usize {
        self.order.smallest_batch()
    }

    /// After how many steps the numbers of samples come again.
    pub fn sample_period(&self) -> usize {
        self.order.size_period()
    }

    /// A full batch whose samples are as large as any can be.
    pub fn largest(&self) -> BatchShape {
        let tokens = self.lengths.map(|lengths| SampleSize::Tokens(lengths.longest()));
        let sample_size = tokens.or_else(|| Some(SampleSize::Side(self.sides?.largest())));
        BatchShape { samples: self.batch_size, sample_size }
    }
}

/// The samples of a run by their lengths.
#[derive(Clone, Copy, Debug)]
pub struct RunSamples {
    order: Order,
    lengths: Lengths,
}

impl RunSamples {
    /// The tokens of the run's `number`th sample, counted from 0; 0 without any.
    pub fn length(&self, number: u64) -> usize {
        self.order.sample(number).map_or(0, |place| self.lengths.of_sample(place))
    }

    /// The most tokens that any has.
    pub fn longest(&self) -> usize {
        self.lengths.longest()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::data::loader::{Loader, LoaderConfig};
    use crate::data::rules::BatchRules;
    use crate::data::synthetic::Synthetic;
    use crate::data::{
        DataError, Dataset, HostValues, ImageSizeSpec, InputSpec, LastBatch, LengthDistribution, LengthSpec, Padding,
        Sample,
    };

    const TOKENS: usize = 40;

    struct Texts(usize);

    impl Dataset for Texts {
        fn len(&self) -> usize {
            self.0
        }
        fn sample(&self, _index: usize) -> Result<Sample, DataError> {
            let values = HostValues::U32(vec![1; TOKENS]);
            Ok(Sample { input: values.clone(), target: values })
        }
        fn input_shape(&self) -> Vec<usize> {
            vec![TOKENS]
        }
        fn target_shape(&self) -> Vec<usize> {
            vec![TOKENS]
        }
    }

    fn varying() -> DataSpec {
        let (min, max, distribution) = (5, TOKENS, LengthDistribution::Uniform);
        DataSpec { sequence_length: Some(LengthSpec::Range { min, max, distribution }), ..DataSpec::default() }
    }

    /// What the loader hands out over some epochs, and what is foretold of it.
    fn both(spec: &DataSpec, samples: usize, batch_size: usize, shard: Shard) -> (Vec<BatchShape>, Vec<BatchShape>) {
        let (seed, varies) = (7, Lengths::of(spec, 7).is_some());
        let rules = BatchRules { shard, ..BatchRules::of(spec, seed) };
        let config = LoaderConfig { batch_size, workers: 2, prefetch_depth: 2, seed };
        let mut loader = Loader::with_rules(Arc::new(Texts(samples)), config, rules);
        let handed_out = (0..40).map(|_| {
            let batch = loader.next_batch().unwrap();
            let sample_size = varies.then(|| SampleSize::Tokens(batch.input_shape[1]));
            BatchShape { samples: batch.samples, sample_size }
        });
        let foretold = RunShapes::new(spec, samples, batch_size, seed).with_shard(shard);
        (handed_out.collect(), (0..40).map(|step| foretold.at(step)).collect())
    }

    #[test]
    fn the_shapes_are_those_of_the_loader_through_epochs_lengths_and_padding() {
        let keep = DataSpec { last_batch: LastBatch::Keep, ..varying() };
        let specs = [
            DataSpec::default(),
            DataSpec { last_batch: LastBatch::Keep, ..DataSpec::default() },
            varying(),
            DataSpec { padding: Padding::Maximum, ..varying() },
            DataSpec { pad_to_multiple_of: Some(16), ..keep.clone() },
            keep,
        ];
        for spec in specs {
            // Whole batches, a smaller last one, and fewer samples than a batch has.
            for (samples, batch_size) in [(24, 4), (26, 4), (3, 8)] {
                for shard in [Shard::default(), Shard { rank: 0, world: 3 }, Shard { rank: 2, world: 3 }] {
                    let (handed_out, foretold) = both(&spec, samples, batch_size, shard);
                    assert_eq!(handed_out, foretold, "{spec:?}, {samples} samples, {shard:?}");
                }
            }
        }
    }

    #[test]
    fn the_sides_are_those_of_the_loader_and_all_replicas_have_the_same_at_the_same_step() {
        let range = ImageSizeSpec::Range { min: 2, max: 12, multiple_of: 2, every: 3 };
        let spec = DataSpec { image_size: Some(range), ..DataSpec::default() };
        let images = InputSpec::Features { shape: vec![3, 12, 12], classes: 2 };
        let sides = |shard| {
            let rules = BatchRules { shard, ..BatchRules::of(&spec, 7) };
            let config = LoaderConfig { batch_size: 4, workers: 2, prefetch_depth: 2, seed: 7 };
            let mut loader = Loader::with_rules(Arc::new(Synthetic::new(&images, 1).unwrap()), config, rules);
            let shapes = RunShapes::new(&spec, 1 << 16, 4, 7).with_shard(shard);
            let side = |step: u64| {
                let shape = loader.next_batch().unwrap().input_shape;
                assert_eq!(shape, [4, 3, shape[3], shape[3]]);
                let foretold = BatchShape { samples: 4, sample_size: Some(SampleSize::Side(shape[3])) };
                assert_eq!(shapes.at(step), foretold);
                shape[3]
            };
            (0..60).map(side).collect::<Vec<usize>>()
        };
        let alone = sides(Shard::default());
        assert!(alone.chunks(3).all(|chunk| chunk.iter().all(|side| *side == chunk[0])), "{alone:?}");
        assert!(alone.iter().collect::<std::collections::BTreeSet<_>>().len() > 3, "{alone:?}");
        assert!((0..2).all(|rank| sides(Shard { rank, world: 2 }) == alone));
        let shapes = RunShapes::new(&spec, 1 << 16, 4, 7);
        assert_eq!(shapes.largest().sample_size, Some(SampleSize::Side(12)));
        assert!(shapes.samples().is_none(), "an image has no length");
    }

    #[test]
    fn rows_of_a_multiple_end_at_the_longest_length() {
        let spec = DataSpec { pad_to_multiple_of: Some(16), ..varying() };
        let shapes = RunShapes::new(&spec, 1000, 1, 3);
        let lengths: std::collections::BTreeSet<usize> =
            (0..500).filter_map(|step| shapes.at(step).sample_size).map(SampleSize::value).collect();
        assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [16, 32, 40]);
        assert_eq!(shapes.largest(), BatchShape { samples: 1, sample_size: Some(SampleSize::Tokens(40)) });
    }

    #[test]
    fn no_samples_and_the_last_step_of_all_do_no_harm() {
        let nothing = BatchShape { samples: 0, sample_size: Some(SampleSize::Tokens(0)) };
        assert_eq!(RunShapes::new(&varying(), 0, 4, 1).at(3), nothing);
        assert_eq!(RunShapes::new(&DataSpec::default(), 9, 4, 1).at(u64::MAX).samples, 4);
    }
    #[test]
    fn the_samples_of_a_run_make_up_its_batches() {
        for shard in [Shard::default(), Shard { rank: 1, world: 2 }] {
            let shapes = RunShapes::new(&varying(), 30, 4, 3).with_shard(shard);
            let samples = shapes.samples().unwrap();
            for step in 0..40_u64 {
                let longest = (0..4).map(|place| samples.length(4 * step + place)).max();
                assert_eq!(shapes.at(step).sample_size, longest.map(SampleSize::Tokens), "step {step} of {shard:?}");
            }
            assert_eq!((samples.longest(), shapes.steps_of_an_epoch()), (TOKENS, 30 / (4 * shard.world as u64)));
        }
        assert!(RunShapes::new(&DataSpec::default(), 30, 4, 3).samples().is_none());
    }
}
