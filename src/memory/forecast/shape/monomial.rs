//! Products of powers of the axes: what the terms of a size are made of.

use super::{MAX_AXES, Shape};

/// The highest power of the first axis, the batch: no operation of training pairs samples with samples.
const BATCH_DEGREE: u8 = 1;
/// The highest power of every other axis: attention pairs tokens with tokens, an image has two sides.
const OTHER_DEGREE: u8 = 2;

/// A product of powers, such as `B·T²`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Monomial {
    exponents: [u8; MAX_AXES],
}

impl Monomial {
    /// What a constant is a multiple of.
    pub const ONE: Self = Self { exponents: [0; MAX_AXES] };

    /// The value at a shape; `None` where it is beyond an `i128`.
    pub fn at(self, shape: &Shape) -> Option<i128> {
        let powers = shape.values().iter().zip(self.exponents);
        powers.into_iter().try_fold(1_i128, |product, (value, exponent)| {
            product.checked_mul(i128::from(*value).checked_pow(u32::from(exponent))?)
        })
    }

    /// The power of each axis.
    pub fn exponents(self) -> [u8; MAX_AXES] {
        self.exponents
    }

    /// The sum of the powers.
    pub fn degree(self) -> u32 {
        self.exponents.iter().map(|exponent| u32::from(*exponent)).sum()
    }
}

/// All monomials over so many axes, those of low degree first.
pub fn monomials(axes: usize) -> Vec<Monomial> {
    let mut all = vec![Monomial::ONE];
    for axis in 0..axes.min(MAX_AXES) {
        let highest = if axis == 0 { BATCH_DEGREE } else { OTHER_DEGREE };
        let raised = |monomial: &Monomial, exponent: u8| {
            let mut exponents = monomial.exponents;
            if let Some(place) = exponents.get_mut(axis) {
                *place = exponent;
            }
            Monomial { exponents }
        };
        all = (0..=highest).flat_map(|exponent| all.iter().map(move |monomial| raised(monomial, exponent))).collect();
    }
    all.sort_by_key(|monomial| monomial.degree());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_axes_have_the_six_products_of_a_transformer() {
        let shape = Shape::new(&[3, 5]).unwrap();
        let mut values: Vec<i128> = monomials(2).iter().map(|monomial| monomial.at(&shape).unwrap()).collect();
        assert_eq!(values[0], 1);
        values.sort_unstable();
        assert_eq!(values, [1, 3, 5, 15, 25, 75], "1, B, T, BT, T², BT²");
    }

    #[test]
    fn a_value_beyond_the_numbers_is_none() {
        let shape = Shape::new(&[u64::MAX, u64::MAX, u64::MAX]).unwrap();
        assert!(monomials(3).iter().any(|monomial| monomial.at(&shape).is_none()));
    }
}
