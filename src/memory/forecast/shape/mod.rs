//! Sizes as functions of a shape: a batch, a length, the side of an image.
//!
//! [`size`](super::size) follows one number, the batch. A real run varies more: each batch is padded to its own longest
//! sample, so every step has another shape. Sizes are still exact, because a tensor's bytes are a product of its
//! dimensions and each dimension is one of the axes or a constant. So a size is a polynomial of the axes with whole
//! numbers, of one power in the batch and of two in the others (attention's scores are `T²`), and a handful of tiny probes
//! determine it: see [`fit`](SizeFitter). Axes have [names](Axes), so that it can be said which of them tells too little.
//!
//! Two axes take seven probes that vary both; three take eight with three different values of each side, so that `H` can be
//! told from `H²`, and each apart from the others, so that `H²` can be told from `H·W`.
//!
//! What is no such polynomial (padding to a multiple, a workspace that an algorithm asks for) is bounded from its samples
//! and makes the forecast `affine`. So does a side that the strides of a convolution do not divide: `⌈H / 2⌉` follows `H / 2`
//! at even sides alone, so probes are to have the remainders that the run's sides have.

mod axes;
mod error;
mod fit;
mod fitted;
mod forecaster;
mod monomial;
mod polynomial;
mod ratio;
mod sieve;
mod source;

#[cfg(test)]
mod tests;

pub use axes::{Axes, AxesError, BATCH, LENGTH, NamedMonomial, NamedShape, SIDE};
pub use error::{Misalignment, Percent, ShapeError, Told};
pub use fit::{SizeFit, SizeFitter};
pub use forecaster::{LongRun, ShapeForecaster, ShapeProbe};
pub use monomial::{Monomial, monomials};
pub use polynomial::Polynomial;
pub use source::RunShapes;

/// The most axes that a shape has.
pub const MAX_AXES: usize = 4;

/// Values of the axes, in the order of their [names](Axes). The first is the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    values: [u64; MAX_AXES],
    axes: usize,
}

impl Shape {
    /// A shape of these values. `None` where there are none or more than [`MAX_AXES`].
    pub fn new(values: &[u64]) -> Option<Self> {
        if values.is_empty() || values.len() > MAX_AXES {
            return None;
        }
        let mut padded = [1; MAX_AXES];
        for (place, value) in padded.iter_mut().zip(values) {
            *place = *value;
        }
        Some(Self { values: padded, axes: values.len() })
    }

    /// The same of a known number of axes.
    pub fn of<const N: usize>(values: [u64; N]) -> Self {
        const { assert!(0 < N && N <= MAX_AXES) };
        let mut padded = [1; MAX_AXES];
        for (place, value) in padded.iter_mut().zip(values) {
            *place = value;
        }
        Self { values: padded, axes: N }
    }

    /// The values.
    pub fn values(&self) -> &[u64] {
        self.values.get(..self.axes).unwrap_or_default()
    }

    /// How many axes there are.
    pub fn axes(&self) -> usize {
        self.axes
    }
}

impl std::fmt::Display for Shape {
    /// `8 × 512`, in the order of the axes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let values: Vec<String> = self.values().iter().map(u64::to_string).collect();
        f.pad(&values.join(" × "))
    }
}
