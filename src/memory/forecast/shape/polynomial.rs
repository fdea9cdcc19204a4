//! Sums of monomials with exact coefficients, and the one through given samples.

use super::Shape;
use super::monomial::Monomial;
use super::ratio::Ratio;

/// A sum of monomials with exact coefficients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Polynomial {
    /// Numerators over the common denominator.
    terms: Vec<(i128, Monomial)>,
    denominator: i128,
}

impl Polynomial {
    /// The bytes at a shape, rounded up; `None` where they are negative, or beyond an `i128`.
    pub fn at(&self, shape: &Shape) -> Option<u64> {
        let (sum, whole) = self.sum_at(shape)?;
        let rounded = whole.checked_add(i128::from(sum.rem_euclid(self.denominator) != 0))?;
        u64::try_from(rounded).ok()
    }

    /// The value if it is whole.
    pub(super) fn exactly_at(&self, shape: &Shape) -> Option<i128> {
        let (sum, whole) = self.sum_at(shape)?;
        (sum.rem_euclid(self.denominator) == 0).then_some(whole)
    }

    /// The sum over the common denominator, and the value rounded down.
    fn sum_at(&self, shape: &Shape) -> Option<(i128, i128)> {
        let sum = self.terms.iter().try_fold(0_i128, |sum, (coefficient, monomial)| {
            sum.checked_add(coefficient.checked_mul(monomial.at(shape)?)?)
        })?;
        Some((sum, sum.div_euclid(self.denominator)))
    }

    /// How many terms it has; 0 is the size of nothing.
    pub fn terms(&self) -> usize {
        self.terms.len()
    }

    /// The polynomial of nothing.
    pub(super) fn zero() -> Self {
        Self { terms: Vec::new(), denominator: 1 }
    }

    /// What it is a sum of.
    pub(super) fn monomials(&self) -> impl Iterator<Item = Monomial> {
        self.terms.iter().map(|(_, monomial)| *monomial)
    }

    /// The sum of the degrees of its terms.
    pub(super) fn degree(&self) -> u32 {
        self.monomials().map(Monomial::degree).sum()
    }

    /// Whether it gives every sample.
    pub(super) fn is_exact(&self, shapes: &[Shape], sizes: &[u64]) -> bool {
        shapes.iter().zip(sizes).all(|(shape, bytes)| self.exactly_at(shape) == Some(i128::from(*bytes)))
    }

    fn of(solution: &[(Ratio, Monomial)]) -> Option<Self> {
        let denominator = solution.iter().try_fold(1_i128, |common, (coefficient, _)| {
            let (_, denominator) = coefficient.parts();
            common.checked_mul(Ratio::whole(denominator).over(Ratio::whole(common))?.parts().0)
        })?;
        let term = |(coefficient, monomial): &(Ratio, Monomial)| {
            Some((coefficient.times(Ratio::whole(denominator))?.parts().0, *monomial))
        };
        Some(Self { terms: solution.iter().map(term).collect::<Option<_>>()?, denominator })
    }
}

/// The exact solution over as many probes as there are terms, taken from the first ones that determine it. `None` where
/// none do.
pub(super) fn solve(chosen: &[Monomial], shapes: &[Shape], sizes: &[u64]) -> Option<Polynomial> {
    let mut rows: Vec<Vec<Ratio>> = Vec::with_capacity(chosen.len());
    for (shape, bytes) in shapes.iter().zip(sizes) {
        let mut row: Vec<Ratio> =
            chosen.iter().map(|monomial| monomial.at(shape).map(Ratio::whole)).collect::<Option<_>>()?;
        row.push(Ratio::whole(i128::from(*bytes)));
        if let Some(reduced) = reduce(row, &rows)? {
            rows.push(reduced);
        }
        if rows.len() == chosen.len() {
            break;
        }
    }
    if rows.len() < chosen.len() {
        return None;
    }
    let values = substitute(&rows, chosen.len())?;
    let solution: Vec<(Ratio, Monomial)> = values
        .into_iter()
        .zip(chosen)
        .filter(|(value, _)| !value.is_zero())
        .map(|(value, term)| (value, *term))
        .collect();
    // A term that is not needed makes it another, smaller set, which was looked at before.
    if solution.len() < chosen.len() && chosen.len() > 1 {
        return None;
    }
    Polynomial::of(&solution)
}

/// Takes the leading terms of earlier rows out of a row, and scales it so that its own is 1. The inner `None` is a row
/// that says nothing new about the terms; the outer one is beyond the numbers.
#[expect(clippy::option_option, reason = "beyond the numbers, and nothing new, are two things")]
fn reduce(mut row: Vec<Ratio>, earlier: &[Vec<Ratio>]) -> Option<Option<Vec<Ratio>>> {
    for other in earlier {
        let lead = leading(other)?;
        let factor = *row.get(lead)?;
        for (value, known) in row.iter_mut().zip(other) {
            *value = value.minus(factor.times(*known)?)?;
        }
    }
    let Some(lead) = leading(&row) else { return Some(None) };
    let scale = *row.get(lead)?;
    for value in &mut row {
        *value = value.over(scale)?;
    }
    Some(Some(row))
}

/// The first term of a row that is not zero; the last place is the right-hand side.
fn leading(row: &[Ratio]) -> Option<usize> {
    let (_, terms) = row.split_last()?;
    terms.iter().position(|value| !value.is_zero())
}

/// The values of the terms, from the row that was reduced last to the first.
fn substitute(rows: &[Vec<Ratio>], terms: usize) -> Option<Vec<Ratio>> {
    let mut values = vec![Ratio::ZERO; terms];
    // A row's terms before its leading one belong to rows that came earlier, and are zero in it; those after it may
    // belong to any other. Sorted by the leading term, the last row has one term only.
    let mut sorted: Vec<(usize, &Vec<Ratio>)> =
        rows.iter().map(|row| Some((leading(row)?, row))).collect::<Option<_>>()?;
    sorted.sort_by_key(|(lead, _)| *lead);
    for (lead, row) in sorted.iter().rev() {
        let (right, left) = row.split_last()?;
        let mut value = *right;
        for (place, factor) in left.iter().enumerate().skip(lead + 1) {
            value = value.minus(factor.times(*values.get(place)?)?)?;
        }
        *values.get_mut(*lead)? = value;
    }
    Some(values)
}
