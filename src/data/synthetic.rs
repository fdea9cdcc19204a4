//! Seeded random samples of the right shape, made on the fly.
//!
//! They are not noise: a model can learn them, so a loss that does not fall on them means that something is wrong.
//! Token sequences walk through one short pattern, from a random place on, with a share of random tokens between.
//! Features are drawn around a mean of their class.
//!
//! To imitate a heavy pipeline, a sample may cost processor time and hold memory beside what its making needs. The time
//! is real work on the thread's own clock: under contention it takes longer, as decoding an image would.

use std::hint::black_box;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::order::mix;
use super::{DataError, Dataset, HostValues, InputSpec, Place, Sample};

/// Samples of one epoch.
const TRAINING_SAMPLES: usize = 1 << 16;
/// Samples that training never sees.
const HELD_OUT_SAMPLES: usize = 1 << 12;
/// Tokens of the pattern.
const PATTERN_LENGTH: usize = 16;
/// Share of tokens that are drawn from the whole vocabulary instead.
const NOISE: f64 = 0.1;
/// Distance of a class's mean from zero in each feature; the noise around it has deviation 1.
const CLASS_MEAN: f32 = 0.5;

/// Rounds of work between two looks at the clock, some microseconds.
const ROUNDS_PER_LOOK: u64 = 2000;

/// A dataset without files.
#[derive(Clone, Debug)]
pub struct Synthetic {
    kind: Kind,
    seed: u64,
    /// Processor time a sample.
    cost: Duration,
    /// Memory a sample holds beside its values.
    ballast_bytes: u64,
}

#[derive(Clone, Debug)]
enum Kind {
    Tokens { pattern: Vec<u32>, vocabulary_size: u32, length: usize },
    Features { shape: Vec<usize>, values: usize, classes: u32 },
}

impl Synthetic {
    /// Samples for a model that takes `input`.
    pub fn new(input: &InputSpec, seed: u64) -> Result<Self, DataError> {
        let invalid = |reason| DataError::InvalidInput { reason };
        let choices = |count: usize| u32::try_from(count).ok().filter(|count| *count > 0);
        let kind = match input {
            InputSpec::Tokens { vocabulary_size, sequence_length } => {
                let vocabulary_size =
                    choices(*vocabulary_size).ok_or(invalid("a vocabulary has between 1 and 4294967295 tokens"))?;
                if *sequence_length == 0 {
                    return Err(invalid("a sample has at least one token"));
                }
                let mut rng = StdRng::seed_from_u64(mix(seed, u64::MAX));
                let pattern = (0..PATTERN_LENGTH).map(|_| rng.random_range(0..vocabulary_size)).collect();
                Kind::Tokens { pattern, vocabulary_size, length: *sequence_length }
            }
            InputSpec::MaskedTokens { .. } => return Err(invalid("masked tokens are a view on others")),
            InputSpec::Features { shape, classes } => {
                let values = shape.iter().try_fold(1_usize, |count, size| count.checked_mul(*size));
                let values =
                    values.filter(|count| *count > 0).ok_or(invalid("a sample's shape is empty or too large"))?;
                let classes = choices(*classes).ok_or(invalid("there are between 1 and 4294967295 classes"))?;
                Kind::Features { shape: shape.clone(), values, classes }
            }
        };
        Ok(Self { kind, seed, cost: Duration::ZERO, ballast_bytes: 0 })
    }

    /// The same with processor time and memory of a heavier pipeline.
    pub fn with_load(self, cost: Duration, ballast_bytes: u64) -> Self {
        Self { cost, ballast_bytes, ..self }
    }

    /// Does the work of a sample, and gives what it is drawn from.
    fn begin(&self, index: usize) -> StdRng {
        work(self.cost);
        StdRng::seed_from_u64(mix(self.seed, index as u64))
    }

    /// So many features of a sample.
    fn features(&self, index: usize, values: usize, classes: u32) -> Sample {
        let mut rng = self.begin(index);
        let class = rng.random_range(0..classes);
        let mut means = StdRng::seed_from_u64(mix(self.seed, (1 << 63) | u64::from(class)));
        let features = (0..values).map(|_| {
            let mean = if means.random_bool(0.5) { CLASS_MEAN } else { -CLASS_MEAN };
            mean + standard_normal(&mut rng)
        });
        Sample { input: HostValues::F32(features.collect()), target: HostValues::U32(vec![class]) }
    }
}

impl Dataset for Synthetic {
    fn len(&self) -> usize {
        TRAINING_SAMPLES
    }

    fn held_out_len(&self) -> usize {
        HELD_OUT_SAMPLES
    }

    fn sample(&self, index: usize) -> Result<Sample, DataError> {
        Ok(match &self.kind {
            Kind::Tokens { pattern, vocabulary_size, length } => {
                let mut rng = self.begin(index);
                let start = rng.random_range(0..PATTERN_LENGTH);
                let walk = pattern.iter().cycle().skip(start);
                let mut tokens: Vec<u32> = walk
                    .take(length.saturating_add(1))
                    .map(|token| if rng.random_bool(NOISE) { rng.random_range(0..*vocabulary_size) } else { *token })
                    .collect();
                let target = tokens.iter().skip(1).copied().collect();
                tokens.truncate(*length);
                Sample { input: HostValues::U32(tokens), target: HostValues::U32(target) }
            }
            Kind::Features { values, classes, .. } => self.features(index, *values, *classes),
        })
    }

    fn sample_of_side(&self, place: Place, side: usize) -> Result<Sample, DataError> {
        match &self.kind {
            Kind::Features { shape, classes, .. } if shape.len() == 3 => {
                let values = self.side_shape(side).iter().fold(1, |count: usize, size| count.saturating_mul(*size));
                Ok(self.features(place.index, values, *classes))
            }
            Kind::Features { .. } | Kind::Tokens { .. } => Err(DataError::OneSide { side }),
        }
    }

    fn input_shape(&self) -> Vec<usize> {
        match &self.kind {
            Kind::Tokens { length, .. } => vec![*length],
            Kind::Features { shape, .. } => shape.clone(),
        }
    }

    fn target_shape(&self) -> Vec<usize> {
        match &self.kind {
            Kind::Tokens { length, .. } => vec![*length],
            Kind::Features { .. } => Vec::new(),
        }
    }

    fn ballast_bytes(&self) -> u64 {
        self.ballast_bytes
    }
}

/// Keeps the processor busy for so much of this thread's own time.
fn work(cost: Duration) {
    let Some(begun) = thread_time().filter(|_| !cost.is_zero()) else { return };
    let mut state = 0;
    while thread_time().is_some_and(|now| now.saturating_sub(begun) < cost) {
        for value in 0..ROUNDS_PER_LOOK {
            state = mix(black_box(state), value);
        }
    }
    black_box(state);
}

/// Processor time of this thread so far; every Linux has this clock.
fn thread_time() -> Option<Duration> {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).ok().map(Duration::from)
}

/// One draw by the Box-Muller transform.
fn standard_normal(rng: &mut StdRng) -> f32 {
    let radius = (-2.0 * (1.0 - rng.random::<f32>()).ln()).sqrt();
    radius * (std::f32::consts::TAU * rng.random::<f32>()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(seed: u64) -> Synthetic {
        Synthetic::new(&InputSpec::Tokens { vocabulary_size: 100, sequence_length: 400 }, seed).unwrap()
    }

    fn u32s(values: HostValues) -> Vec<u32> {
        match values {
            HostValues::U32(values) => values,
            HostValues::F32(values) => panic!("{values:?}"),
        }
    }

    #[test]
    fn a_sample_depends_on_seed_and_index_alone() {
        assert_eq!(tokens(1).sample(5).unwrap(), tokens(1).sample(5).unwrap());
        assert_ne!(tokens(1).sample(5).unwrap(), tokens(1).sample(6).unwrap());
        assert_ne!(tokens(1).sample(5).unwrap(), tokens(2).sample(5).unwrap());
    }

    #[test]
    fn targets_are_the_inputs_shifted_by_one() {
        let sample = tokens(1).sample(0).unwrap();
        let (input, target) = (u32s(sample.input), u32s(sample.target));
        assert_eq!((input.len(), target.len()), (400, 400));
        assert_eq!(input[1..], target[..399]);
        let one = Synthetic::new(&InputSpec::Tokens { vocabulary_size: 1, sequence_length: 1 }, 0).unwrap();
        assert_eq!(u32s(one.sample(0).unwrap().input), [0]);
    }

    #[test]
    fn most_tokens_repeat_with_the_period_of_the_pattern() {
        let input = u32s(tokens(1).sample(3).unwrap().input);
        let repeats = input.iter().zip(&input[PATTERN_LENGTH..]).filter(|(token, later)| token == later).count();
        let share = repeats as f64 / (input.len() - PATTERN_LENGTH) as f64;
        assert!((0.7..0.95).contains(&share), "{share}");
        assert!(input.iter().all(|token| *token < 100));
    }

    #[test]
    fn features_lie_around_the_mean_of_their_class() {
        let input = InputSpec::Features { shape: vec![3, 8, 8], classes: 2 };
        let dataset = Synthetic::new(&input, 4).unwrap();
        let samples: Vec<(Vec<f32>, u32)> = (0..40)
            .map(|index| {
                let sample = dataset.sample(index).unwrap();
                let HostValues::F32(features) = sample.input else { panic!("features are floats") };
                (features, u32s(sample.target)[0])
            })
            .collect();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>() / a.len() as f32;
        let (first, class) = &samples[0];
        let similarity = |same: bool| {
            let others = samples[1..].iter().filter(|(_, other)| (other == class) == same);
            let dots: Vec<f32> = others.map(|(other, _)| dot(first, other)).collect();
            dots.iter().sum::<f32>() / dots.len() as f32
        };
        assert_eq!(first.len(), 192);
        assert!(similarity(true) > similarity(false) + 0.1, "{} {}", similarity(true), similarity(false));
        assert!(dataset.target_shape().is_empty());
    }

    #[test]
    fn a_load_costs_processor_time_and_changes_no_sample() {
        let cost = Duration::from_millis(3);
        let loaded = tokens(1).with_load(cost, 1000);
        let before = thread_time().unwrap();
        let sample = loaded.sample(5).unwrap();
        assert!(thread_time().unwrap() >= before + cost);
        assert_eq!(sample, tokens(1).sample(5).unwrap());
        assert_eq!((loaded.ballast_bytes(), tokens(1).ballast_bytes()), (1000, 0));
    }

    #[test]
    fn a_shape_without_values_is_refused() {
        let refused = |input: InputSpec| Synthetic::new(&input, 0).unwrap_err().to_string();
        refused(InputSpec::Tokens { vocabulary_size: 0, sequence_length: 4 });
        refused(InputSpec::Tokens { vocabulary_size: 4, sequence_length: 0 });
        refused(InputSpec::Features { shape: vec![3, 0], classes: 2 });
        refused(InputSpec::Features { shape: vec![usize::MAX, 2], classes: 2 });
        refused(InputSpec::Features { shape: vec![3], classes: 0 });
    }
}
