//! Rotary position embeddings (Su et al., "RoFormer", 2021).
//!
//! The halves of a head are rotated against each other, as `transformers` has it, and not neighbouring values as in
//! Meta's own checkpoints. candle's ops for this have no backward, and its `rope_slow` makes the tables anew in each
//! call; here all layers share the views of a pass, since candle keeps a gradient for each tensor that was ever
//! multiplied with a tracked one.

use candle_core::{D, DType, Device, Result, Tensor};

/// Llama 3's frequencies for contexts longer than those of the pretraining (Dubey et al., 2024, and `transformers`'
/// `_compute_llama3_parameters`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Llama3Scaling {
    /// Slow frequencies are divided by this.
    pub factor: f64,
    /// A wave longer than the pretraining's context by this is slow.
    pub low_frequency_factor: f64,
    /// A wave shorter than the pretraining's context by this is kept.
    pub high_frequency_factor: f64,
    /// Tokens of the pretraining's context.
    pub original_length: usize,
}

impl Llama3Scaling {
    fn scaled(&self, frequency: f64) -> f64 {
        let wave = std::f64::consts::TAU / frequency;
        let original = self.original_length as f64;
        if wave < original / self.high_frequency_factor {
            return frequency;
        }
        if wave > original / self.low_frequency_factor {
            return frequency / self.factor;
        }
        let span = self.high_frequency_factor - self.low_frequency_factor;
        let kept = (original / wave - self.low_frequency_factor) / span;
        (1.0 - kept) * frequency / self.factor + kept * frequency
    }
}

/// What the rotations of a model depend on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RotaryDimensions {
    /// The most tokens.
    pub length: usize,
    /// K, which is even.
    pub size: usize,
    /// The slowest frequency is about one over this.
    pub theta: f64,
    /// Of the frequencies.
    pub scaling: Option<Llama3Scaling>,
}

/// The tables of cosines and sines, in f32.
#[derive(Clone, Debug)]
pub struct Rotary {
    cosines: Tensor,
    sines: Tensor,
}

impl Rotary {
    /// Computes the tables.
    pub fn new(dimensions: &RotaryDimensions, device: &Device) -> Result<Self> {
        let RotaryDimensions { length, size, theta, scaling } = *dimensions;
        let frequencies: Vec<f64> = (0..size / 2)
            .map(|index| theta.powf(-2.0 * index as f64 / size as f64))
            .map(|frequency| scaling.map_or(frequency, |scaling| scaling.scaled(frequency)))
            .collect();
        // Both halves of a head have the same angles.
        let table = |of: fn(f64) -> f64| {
            let values = (0..length).flat_map(|place| {
                frequencies.iter().chain(&frequencies).map(move |frequency| of(place as f64 * frequency) as f32)
            });
            Tensor::from_iter(values, device)?.reshape((length, size)) // [T, K]
        };
        Ok(Self { cosines: table(f64::cos)?, sines: table(f64::sin)? })
    }

    /// The rotation of `[B, heads, T, K]` in one pass, in the type of its activations.
    pub fn rotation(&self, shape: [usize; 4], dtype: DType) -> Result<Rotation> {
        let view = |table: &Tensor| table.narrow(0, 0, shape[2])?.to_dtype(dtype)?.broadcast_as(&shape[..]);
        Ok(Rotation { cosines: view(&self.cosines)?, sines: view(&self.sines)? })
    }
}

/// The rotation of one pass.
#[derive(Clone, Debug)]
pub struct Rotation {
    cosines: Tensor,
    sines: Tensor,
}

impl Rotation {
    /// Rotates every head of `x` by the place of its token.
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let half = x.dim(D::Minus1)? / 2;
        let (first, second) = (x.narrow(D::Minus1, 0, half)?, x.narrow(D::Minus1, half, half)?); // [B, H, T, K / 2]
        let turned = Tensor::cat(&[&second.neg()?, &first], D::Minus1)?; // [B, H, T, K]
        (x * &self.cosines)? + (turned * &self.sines)? // [B, H, T, K]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rotation(scaling: Option<Llama3Scaling>, shape: [usize; 4]) -> Rotation {
        let dimensions = RotaryDimensions { length: 16, size: shape[3], theta: 10_000.0, scaling };
        Rotary::new(&dimensions, &Device::Cpu).unwrap().rotation(shape, DType::F32).unwrap()
    }

    fn input(shape: [usize; 4]) -> Tensor {
        let values: Vec<f32> =
            (0..shape.iter().product::<usize>()).map(|at| (at * 37 % 23) as f32 / 11.0 - 1.0).collect();
        Tensor::from_vec(values, &shape[..], &Device::Cpu).unwrap()
    }

    #[test]
    fn a_rotation_is_that_of_candle_and_of_its_slow_form() {
        let shape = [2, 3, 5, 8];
        let dimensions = RotaryDimensions { length: 16, size: 8, theta: 10_000.0, scaling: None };
        let rotary = Rotary::new(&dimensions, &Device::Cpu).unwrap();
        let ours = rotation(None, shape).apply(&input(shape)).unwrap();
        let half = |table: &Tensor| table.narrow(1, 0, 4).unwrap().contiguous().unwrap();
        let theirs =
            candle_nn::rotary_emb::rope_slow(&input(shape), &half(&rotary.cosines), &half(&rotary.sines)).unwrap();
        let difference = (ours - theirs).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(difference < 1e-6, "{difference}");
    }

    #[test]
    fn a_rotation_keeps_lengths_and_the_first_token() {
        let shape = [1, 1, 16, 4];
        let (x, y) = (input(shape), rotation(None, shape).apply(&input(shape)).unwrap());
        let squares = |x: &Tensor| x.sqr().unwrap().sum(D::Minus1).unwrap().flatten_all().unwrap();
        let (before, after): (Vec<f32>, Vec<f32>) = (squares(&x).to_vec1().unwrap(), squares(&y).to_vec1().unwrap());
        assert!(before.iter().zip(&after).all(|(before, after)| (before - after).abs() < 1e-5));
        let first = |x: &Tensor| x.narrow(2, 0, 1).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(first(&x), first(&y));
        assert_ne!(
            x.flatten_all().unwrap().to_vec1::<f32>().unwrap(),
            y.flatten_all().unwrap().to_vec1::<f32>().unwrap()
        );
    }

    #[test]
    fn llama_3_slows_long_waves_alone() {
        let scaling = Llama3Scaling {
            factor: 32.0,
            low_frequency_factor: 1.0,
            high_frequency_factor: 4.0,
            original_length: 8192,
        };
        let wave = |length: f64| std::f64::consts::TAU / length;
        assert_eq!(scaling.scaled(wave(100.0)).to_bits(), wave(100.0).to_bits());
        assert_eq!(scaling.scaled(wave(10_000.0)).to_bits(), (wave(10_000.0) / 32.0).to_bits());
        let between = scaling.scaled(wave(4096.0));
        assert!(wave(4096.0) / 32.0 < between && between < wave(4096.0));
    }
}
