//! The polynomial of an allocation's sizes, solved in fractions.
//!
//! The samples of one allocation are its sizes in all probes. Of all sets of monomials, those of few terms first and
//! among them those of low degree, the first one is taken whose exact solution gives every sample. A set has at least
//! one term less than there are samples, so each fit was checked at a probe that did not determine it; sizes that any
//! numbers would fit are refused. Whole coefficients are not asked for (an upper triangle is `(T² + T) / 2`), whole sizes
//! are.
//!
//! The sizes of a real model are few: 28 polynomials describe 4,878 allocations of a GPT (`shared/research/measured.md`),
//! so a fit is made once for each distinct column of samples.

use super::Shape;
use super::monomial::{Monomial, monomials};
use super::ratio::Ratio;

/// The most terms of a polynomial. A tensor's size is a product, so it has one; joined buffers have two or three.
const MAX_TERMS: usize = 4;

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
    fn exactly_at(&self, shape: &Shape) -> Option<i128> {
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

/// No allocation is larger: what a fit gives beyond it (or below 0) is no size.
const MOST_BYTES: u64 = 1 << 50;

/// How an allocation's samples fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SizeFit {
    /// Every sample is on the polynomial, and one at least did not determine it.
    Exact(Polynomial),
    /// None fits. The one that misses least stands in, raised by the most that it fell short.
    Bounded {
        /// The stand-in.
        polynomial: Polynomial,
        /// The most that a sample was above it, in thousandths of the stand-in, rounded up.
        above_permille: u64,
        /// The most that a sample was off it either way, likewise.
        off_permille: u64,
    },
    /// Nothing can be said: fewer than two different shapes.
    Unknown,
}

impl SizeFit {
    /// Whether there is a size at a shape.
    pub fn has_size_at(&self, shape: &Shape) -> bool {
        self.at(shape) <= MOST_BYTES
    }

    /// The bytes at a shape. Where there is [no size](Self::has_size_at) they are more than anything can hold.
    pub fn at(&self, shape: &Shape) -> u64 {
        match self {
            Self::Exact(polynomial) => polynomial.at(shape).unwrap_or(u64::MAX),
            Self::Bounded { polynomial, above_permille, .. } => {
                let bytes = u128::from(polynomial.at(shape).unwrap_or(u64::MAX));
                let raised = bytes.saturating_add((bytes * u128::from(*above_permille)).div_ceil(1000));
                u64::try_from(raised).unwrap_or(u64::MAX)
            }
            Self::Unknown => u64::MAX,
        }
    }
}

/// Fits the sizes of one allocation, one for each probe.
pub fn fit(shapes: &[Shape], sizes: &[u64]) -> SizeFit {
    let Some(first) = shapes.first() else { return SizeFit::Unknown };
    if shapes.len() != sizes.len() || shapes.len() < 2 {
        return SizeFit::Unknown;
    }
    let candidates = monomials(first.axes());
    let most = MAX_TERMS.min(shapes.len() - 1).min(candidates.len());
    let mut nearest: Option<(u64, u64, Polynomial)> = None;
    for terms in 1..=most {
        for chosen in subsets(&candidates, terms) {
            let Some(polynomial) = solve(&chosen, shapes, sizes) else { continue };
            if is_exact(&polynomial, shapes, sizes) {
                return SizeFit::Exact(polynomial);
            }
            let Some((above, off)) = misses(&polynomial, shapes, sizes) else { continue };
            if nearest.as_ref().is_none_or(|(_, least, _)| off < *least) {
                nearest = Some((above, off, polynomial));
            }
        }
    }
    match nearest {
        Some((above_permille, off_permille, polynomial)) => {
            SizeFit::Bounded { polynomial, above_permille, off_permille }
        }
        None => SizeFit::Unknown,
    }
}

/// All subsets of so many candidates, in the candidates' order, those of low degree first.
fn subsets(candidates: &[Monomial], count: usize) -> Vec<Vec<Monomial>> {
    let mut found = Vec::new();
    let mut chosen = Vec::with_capacity(count);
    choose(candidates, count, &mut chosen, &mut found);
    found.sort_by_key(|subset| subset.iter().map(|monomial| monomial.degree()).sum::<u32>());
    found
}

fn choose(rest: &[Monomial], count: usize, chosen: &mut Vec<Monomial>, found: &mut Vec<Vec<Monomial>>) {
    if count == 0 {
        found.push(chosen.clone());
        return;
    }
    for (place, monomial) in rest.iter().enumerate() {
        chosen.push(*monomial);
        choose(rest.get(place + 1..).unwrap_or_default(), count - 1, chosen, found);
        chosen.pop();
    }
}

fn is_exact(polynomial: &Polynomial, shapes: &[Shape], sizes: &[u64]) -> bool {
    shapes.iter().zip(sizes).all(|(shape, bytes)| polynomial.exactly_at(shape) == Some(i128::from(*bytes)))
}

/// The most that samples are above a polynomial, and off it, in thousandths of it. `None` where it has no value.
fn misses(polynomial: &Polynomial, shapes: &[Shape], sizes: &[u64]) -> Option<(u64, u64)> {
    let (mut above, mut off) = (0, 0);
    for (shape, bytes) in shapes.iter().zip(sizes) {
        let expected = polynomial.at(shape).filter(|expected| *expected > 0)?;
        let permille = |difference: u64| {
            u64::try_from((u128::from(difference) * 1000).div_ceil(u128::from(expected))).unwrap_or(u64::MAX)
        };
        above = above.max(permille(bytes.saturating_sub(expected)));
        off = off.max(permille(bytes.abs_diff(expected)));
    }
    Some((above, off))
}

/// The exact solution over as many probes as there are terms, taken from the first ones that determine it. `None` where
/// none do.
fn solve(chosen: &[Monomial], shapes: &[Shape], sizes: &[u64]) -> Option<Polynomial> {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shapes(values: &[[u64; 2]]) -> Vec<Shape> {
        values.iter().map(|values| Shape::new(values).unwrap()).collect()
    }

    /// The seven probes of `shared/research/measured.md`.
    fn probes() -> Vec<Shape> {
        shapes(&[[2, 64], [3, 64], [2, 96], [3, 96], [2, 160], [4, 128], [3, 200]])
    }

    /// Probes that vary every axis, two axes together too.
    fn varied(axes: usize) -> Vec<Shape> {
        let values =
            [[2, 64, 5], [3, 64, 5], [2, 96, 7], [3, 97, 11], [5, 160, 13], [4, 128, 21], [7, 200, 34], [3, 33, 55]];
        values.iter().map(|values| Shape::new(&values[..axes]).unwrap()).collect()
    }

    fn fitted(size: impl Fn(u64, u64) -> u64) -> SizeFit {
        let probes = probes();
        let sizes: Vec<u64> = probes.iter().map(|shape| size(shape.values()[0], shape.values()[1])).collect();
        fit(&probes, &sizes)
    }

    fn exact(fitted: &SizeFit) -> &Polynomial {
        match fitted {
            SizeFit::Exact(polynomial) => polynomial,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_sizes_of_a_transformer_are_recovered() {
        let size: [fn(u64, u64) -> u64; 6] = [
            |_, _| 4 * 512 * 512,
            |b, t| 4 * 512 * b * t,
            |b, t| 4 * 8 * b * t * t,
            |_, t| 4 * t * t,
            |b, t| 4 * (b * t + b),
            |_, t| 2 * (t * t + t),
        ];
        for (number, size) in size.into_iter().enumerate() {
            let fitted = fitted(size);
            let polynomial = exact(&fitted);
            assert!(polynomial.terms() <= 2, "{number}: {polynomial:?}");
            for (b, t) in [(8, 512), (1, 1), (64, 1000)] {
                assert_eq!(polynomial.at(&Shape::new(&[b, t]).unwrap()), Some(size(b, t)), "{number} at {b}, {t}");
            }
        }
    }

    #[test]
    fn nothing_is_a_polynomial_too() {
        assert_eq!(exact(&fitted(|_, _| 0)).at(&Shape::new(&[5, 5]).unwrap()), Some(0));
    }

    #[test]
    fn padding_to_a_multiple_is_bounded_and_not_exact() {
        let padded = |b: u64, t: u64| 4 * b * t.div_ceil(48) * 48;
        let fitted = fitted(padded);
        let SizeFit::Bounded { off_permille, .. } = fitted else { panic!("{fitted:?}") };
        assert!((1..500).contains(&off_permille));
        for shape in probes() {
            assert!(fitted.at(&shape) >= padded(shape.values()[0], shape.values()[1]), "a bound of its samples");
        }
    }

    #[test]
    fn far_from_the_probes_a_polynomial_may_have_no_size() {
        let (shrinking, growing) = (fitted(|b, t| (256 - t) * b * 1024), fitted(|b, t| b * t * (1 << 32)));
        let has_size = |fit: &SizeFit, t: u64| fit.has_size_at(&Shape::of([8, t]));
        assert!(has_size(&shrinking, 256) && !has_size(&shrinking, 257));
        assert!(has_size(&growing, 1 << 15) && !has_size(&growing, (1 << 15) + 1));
        assert!(!SizeFit::Unknown.has_size_at(&Shape::of([2, 64])));
    }

    #[test]
    fn two_probes_tell_what_one_term_can_and_one_nothing() {
        let two = shapes(&[[2, 64], [3, 96]]);
        assert!(matches!(fit(&two, &[512, 512]), SizeFit::Exact(_)));
        assert!(matches!(fit(&two[..1], &[512]), SizeFit::Unknown));
        assert!(matches!(fit(&[], &[]), SizeFit::Unknown));
    }

    proptest! {
        #[test]
        fn a_polynomial_with_up_to_three_terms_is_recovered(
            coefficients in proptest::collection::vec(1_u64..1_000_000, 1..=3),
            places in proptest::sample::subsequence((0..6).collect::<Vec<usize>>(), 3),
            b in 1_u64..512,
            t in 1_u64..4096,
        ) {
            let terms = monomials(2);
            let size = |shape: &Shape| -> u64 {
                let parts = coefficients.iter().zip(&places);
                parts.map(|(c, place)| c * u64::try_from(terms[*place].at(shape).unwrap()).unwrap()).sum()
            };
            let probes = probes();
            let sizes: Vec<u64> = probes.iter().map(size).collect();
            let there = Shape::new(&[b, t]).unwrap();
            prop_assert_eq!(fit(&probes, &sizes).at(&there), size(&there));
        }

        #[test]
        fn noise_is_never_exact_silently(noise in proptest::collection::vec(1_u64..1_000, 7)) {
            let probes = probes();
            let sizes: Vec<u64> = probes
                .iter()
                .zip(&noise)
                .map(|(shape, noise)| 4096 * shape.values()[0] * shape.values()[1] + noise * noise)
                .collect();
            if let SizeFit::Exact(polynomial) = fit(&probes, &sizes) {
                // Then it is one: every sample is on it.
                prop_assert!(is_exact(&polynomial, &probes, &sizes));
            }
        }

        #[test]
        fn a_polynomial_of_one_to_three_axes_is_recovered_with_all_its_terms(
            axes in 1_usize..=3,
            coefficients in proptest::collection::vec(1_u64..100_000, 1..=2),
            seed in any::<u64>(),
            there in proptest::collection::vec(2_u64..300, 3),
        ) {
            let terms = monomials(axes);
            let chosen: Vec<Monomial> =
                (0..coefficients.len() as u64).map(|n| terms[(seed.wrapping_add(n * 7) % terms.len() as u64) as usize]).collect();
            let size = |shape: &Shape| -> u64 {
                let parts = coefficients.iter().zip(&chosen);
                parts.map(|(c, term)| c * u64::try_from(term.at(shape).unwrap()).unwrap()).sum()
            };
            let probes: Vec<Shape> = varied(axes);
            let sizes: Vec<u64> = probes.iter().map(size).collect();
            let there = Shape::new(&there[..axes]).unwrap();
            let fitted = fit(&probes, &sizes);
            prop_assert!(matches!(fitted, SizeFit::Exact(_)), "{:?}", fitted);
            prop_assert_eq!(fitted.at(&there), size(&there));
        }

        #[test]
        fn what_a_held_out_probe_refutes_is_never_exact_with_it(
            padding in 3_u64..64,
            held_out in 0_usize..7,
            there in 64_u64..200,
        ) {
            // Rows padded to a multiple: a polynomial only where all lengths are multiples.
            let size = |shape: &Shape| 4 * shape.values()[0] * shape.values()[1].next_multiple_of(padding);
            let mut probes = probes();
            let known = fit(&probes, &probes.iter().map(size).collect::<Vec<_>>());
            let is_padded = probes.iter().any(|shape| !shape.values()[1].is_multiple_of(padding));
            prop_assert!(!is_padded || !matches!(known, SizeFit::Exact(_)), "{:?}", known);
            let out = probes.remove(held_out);
            if let SizeFit::Exact(polynomial) = fit(&probes, &probes.iter().map(size).collect::<Vec<_>>()) {
                let right = polynomial.at(&out) == Some(size(&out));
                prop_assert!(right || is_padded);
            }
            // What stands in is off by no more than the padding and its own margin, within the range of the probes.
            let there = Shape::of([3, there]);
            prop_assert!(known.at(&there) >= 4 * 3 * there.values()[1]);
        }

        #[test]
        fn samples_from_strangers_end_in_some_answer(sizes in proptest::collection::vec(any::<u64>(), 7)) {
            let probes = probes();
            let _ = fit(&probes, &sizes).at(&Shape::new(&[u64::MAX, u64::MAX]).unwrap());
        }
    }
}
