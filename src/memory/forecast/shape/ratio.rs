//! Exact fractions, for systems of a few equations.

use std::cmp::Ordering;

/// A fraction in lowest terms, its denominator positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ratio {
    numerator: i128,
    denominator: i128,
}

impl Ratio {
    pub(super) const ZERO: Self = Self { numerator: 0, denominator: 1 };

    pub(super) fn whole(number: i128) -> Self {
        Self { numerator: number, denominator: 1 }
    }

    fn new(numerator: i128, denominator: i128) -> Option<Self> {
        if denominator == 0 {
            return None;
        }
        let divisor = greatest_common_divisor(numerator.unsigned_abs(), denominator.unsigned_abs());
        let divisor = i128::try_from(divisor).ok()?;
        let sign = denominator.signum();
        Some(Self {
            numerator: numerator.checked_div(divisor)?.checked_mul(sign)?,
            denominator: denominator.checked_div(divisor)?.checked_mul(sign)?,
        })
    }

    pub(super) fn is_zero(self) -> bool {
        self.numerator == 0
    }

    pub(super) fn parts(self) -> (i128, i128) {
        (self.numerator, self.denominator)
    }

    pub(super) fn minus(self, other: Self) -> Option<Self> {
        let left = self.numerator.checked_mul(other.denominator)?;
        let right = other.numerator.checked_mul(self.denominator)?;
        Self::new(left.checked_sub(right)?, self.denominator.checked_mul(other.denominator)?)
    }

    pub(super) fn times(self, other: Self) -> Option<Self> {
        // Across first, so that what cancels does not overflow.
        let left = Self::new(self.numerator, other.denominator)?;
        let right = Self::new(other.numerator, self.denominator)?;
        Self::new(left.numerator.checked_mul(right.numerator)?, left.denominator.checked_mul(right.denominator)?)
    }

    pub(super) fn over(self, other: Self) -> Option<Self> {
        self.times(Self::new(other.denominator, other.numerator)?)
    }
}

fn greatest_common_divisor(mut left: u128, mut right: u128) -> u128 {
    while right.cmp(&0) == Ordering::Greater {
        (left, right) = (right, left % right);
    }
    left.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_exact_and_in_lowest_terms() {
        let third = Ratio::new(2, -6).unwrap();
        assert_eq!(third.parts(), (-1, 3));
        assert_eq!(third.times(Ratio::whole(3)).unwrap(), Ratio::whole(-1));
        assert_eq!(Ratio::whole(1).over(Ratio::whole(4)).unwrap().minus(third).unwrap().parts(), (7, 12));
        assert_eq!(Ratio::whole(1).over(Ratio::ZERO), None);
        assert_eq!(Ratio::whole(i128::MAX).times(Ratio::whole(2)), None);
        assert_eq!(Ratio::new(0, 5).unwrap(), Ratio::ZERO);
    }
}
