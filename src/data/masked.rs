//! Tokens to be guessed: the masked language model of BERT (Devlin et al., 2018).
//!
//! Of each sample's tokens 15 % are chosen. Four fifths of them are replaced by the mask token, a tenth by a random
//! token, and a tenth stay; the model has to name what was there, and is asked about no other place. The choice
//! depends on the place (seed, epoch, index), so that every epoch asks about others and every run about the same.
//!
//! Every sample of one length has the same number of chosen tokens, as in `create_pretraining_data.py` of
//! `google-research/bert`. `transformers`' `DataCollatorForLanguageModeling` throws a die for each token, and then
//! micro-batches have other numbers of them, so that the mean of their losses is not the loss of the whole batch.
//!
//! This is not a source but a view on one: any dataset of tokens will do.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::order::mix;
use super::{DataError, Dataset, HostValues, Place, Sample};

/// The target of a place that the model is not asked about.
pub const IGNORED: u32 = u32::MAX;

/// Share of tokens that are chosen.
const CHOSEN: f64 = 0.15;
/// Share of the chosen that the mask replaces.
const MASKED: f64 = 0.8;
/// Share of the chosen that a random token replaces.
const RANDOM: f64 = 0.1;

/// Keeps the choice apart from everything else that the seed decides.
const MASKS: u64 = 0x006d_6173_6b73_2121;

/// What is hidden from a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskRules {
    /// Distinct tokens.
    pub vocabulary_size: usize,
    /// The token that stands for a hidden one.
    pub mask_token: u32,
    /// Among so many first tokens at least one is chosen: the shortest length that a sample may be cut to.
    pub shortest: usize,
}

/// A dataset of tokens, some of which are hidden.
pub struct Masked {
    whole: Arc<dyn Dataset>,
    rules: MaskRules,
    seed: u64,
}

impl Masked {
    /// Hides tokens of another dataset, whose own targets are dropped.
    pub fn new(whole: Arc<dyn Dataset>, rules: MaskRules, seed: u64) -> Self {
        Self { whole, rules, seed: mix(seed, MASKS) }
    }

    /// The target, and the tokens with some of them hidden.
    fn hide(&self, tokens: &mut [u32], place: Place) -> Vec<u32> {
        if tokens.is_empty() {
            return Vec::new();
        }
        let mut rng = StdRng::seed_from_u64(mix(mix(self.seed, place.epoch), place.index as u64));
        let count = (CHOSEN * tokens.len() as f64).round() as usize;
        let mut places = rand::seq::index::sample(&mut rng, tokens.len(), count.clamp(1, tokens.len())).into_vec();
        let sure = self.rules.shortest.clamp(1, tokens.len().max(1));
        if !places.iter().any(|place| *place < sure)
            && let Some(first) = places.first_mut()
        {
            *first = rng.random_range(0..sure);
        }
        let mut chosen = vec![false; tokens.len()];
        for place in places {
            if let Some(is_chosen) = chosen.get_mut(place) {
                *is_chosen = true;
            }
        }
        let vocabulary = u32::try_from(self.rules.vocabulary_size).unwrap_or(u32::MAX).max(1);
        let hidden = tokens.iter_mut().zip(chosen).map(|(token, is_chosen)| {
            if !is_chosen {
                return IGNORED;
            }
            let answer = *token;
            let lot = rng.random::<f64>();
            if lot < MASKED {
                *token = self.rules.mask_token;
            } else if lot < MASKED + RANDOM {
                *token = rng.random_range(0..vocabulary);
            }
            answer
        });
        hidden.collect()
    }
}

impl Dataset for Masked {
    fn len(&self) -> usize {
        self.whole.len()
    }

    fn held_out_len(&self) -> usize {
        self.whole.held_out_len()
    }

    fn sample(&self, index: usize) -> Result<Sample, DataError> {
        self.sample_at(Place { index, epoch: 0 })
    }

    fn sample_at(&self, place: Place) -> Result<Sample, DataError> {
        match self.whole.sample_at(place)?.input {
            HostValues::U32(mut tokens) => {
                let target = HostValues::U32(self.hide(&mut tokens, place));
                Ok(Sample { input: HostValues::U32(tokens), target })
            }
            HostValues::F32(_) => Err(DataError::SampleType { index: place.index }),
        }
    }

    fn input_shape(&self) -> Vec<usize> {
        self.whole.input_shape()
    }

    fn target_shape(&self) -> Vec<usize> {
        self.whole.input_shape()
    }

    fn target_padding(&self) -> u32 {
        IGNORED
    }

    fn ballast_bytes(&self) -> u64 {
        self.whole.ballast_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::InputSpec;
    use crate::data::synthetic::Synthetic;

    const MASK: u32 = 999;

    fn plain(length: usize) -> Synthetic {
        Synthetic::new(&InputSpec::Tokens { vocabulary_size: 900, sequence_length: length }, 7).unwrap()
    }

    fn masked(length: usize, shortest: usize) -> Masked {
        let rules = MaskRules { vocabulary_size: 900, mask_token: MASK, shortest };
        Masked::new(Arc::new(plain(length)), rules, 7)
    }

    fn tokens(values: HostValues) -> Vec<u32> {
        let HostValues::U32(values) = values else { panic!("{values:?}") };
        values
    }

    #[test]
    fn the_shares_are_those_of_the_paper() {
        let (dataset, plain) = (masked(512, 512), plain(512));
        let [mut all, mut chosen, mut hidden, mut kept] = [0.0_f64; 4];
        for index in 0..200 {
            let (sample, original) = (dataset.sample(index).unwrap(), tokens(plain.sample(index).unwrap().input));
            for ((shown, asked), was) in tokens(sample.input).into_iter().zip(tokens(sample.target)).zip(original) {
                all += 1.0;
                if asked == IGNORED {
                    assert_eq!(shown, was);
                    continue;
                }
                assert_eq!(asked, was);
                chosen += 1.0;
                hidden += f64::from(u8::from(shown == MASK));
                kept += f64::from(u8::from(shown == was));
            }
        }
        assert!((chosen / all - 0.15).abs() < 0.005, "{}", chosen / all);
        assert!((hidden / chosen - 0.8).abs() < 0.02, "{}", hidden / chosen);
        assert!((kept / chosen - 0.1).abs() < 0.02, "{}", kept / chosen);
    }

    #[test]
    fn the_choice_depends_on_the_place_alone() {
        let dataset = masked(64, 64);
        let at = |index, epoch| dataset.sample_at(Place { index, epoch }).unwrap();
        assert_eq!(at(3, 1), at(3, 1));
        assert_eq!(dataset.sample(3).unwrap(), at(3, 0));
        assert_ne!(at(3, 1), at(3, 2));
        assert_ne!(at(3, 1).target, at(4, 1).target);
    }

    #[test]
    fn every_sample_asks_about_something_even_when_it_is_cut() {
        let asked = |dataset: &Masked, index, kept: usize| {
            tokens(dataset.sample(index).unwrap().target)[..kept].iter().any(|target| *target != IGNORED)
        };
        let (short, long) = (masked(1, 1), masked(64, 3));
        assert!((0..200).all(|index| asked(&short, index, 1)));
        assert!((0..200).all(|index| asked(&long, index, 3)));
        let nothing = masked(4, 0);
        assert!((0..200).all(|index| asked(&nothing, index, 1)));
    }

    #[test]
    fn features_cannot_be_masked() {
        let features = Synthetic::new(&InputSpec::Features { shape: vec![2], classes: 2 }, 0).unwrap();
        let rules = MaskRules { vocabulary_size: 9, mask_token: 8, shortest: 1 };
        assert!(matches!(Masked::new(Arc::new(features), rules, 0).sample(1), Err(DataError::SampleType { index: 1 })));
    }
}
