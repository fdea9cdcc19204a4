//! The polynomial of an allocation's sizes.
//!
//! The samples of one allocation are its sizes in all probes. Of all sets of monomials, those of few terms first and
//! among them those of low degree, the first one is taken whose exact solution gives every sample. Whole coefficients are
//! not asked for (an upper triangle is `(T² + T) / 2`), whole sizes are.
//!
//! What makes it more than a curve through points:
//!
//! - A polynomial of `k` terms takes `2k` probes: `k` that determine it and as many that confirm it. Of 54 monomials some
//!   set of four comes close to anything, so one probe confirms nothing. Where the probes tell all monomials apart (seven of
//!   batch and length do), one more is enough for all.
//! - Another set of as many terms that gives the same samples is another answer elsewhere: square images do not tell `H²`
//!   from `H·W`, and two lengths do not tell `T` from `T²`. Then the size is [ambiguous](SizeFit::Ambiguous) and not known.
//!
//! The sizes of a real model are few: 28 polynomials describe 4,878 allocations of a GPT (`shared/research/measured.md`),
//! so a fit is made once for each distinct column of samples.

use super::monomial::{Monomial, monomials};
use super::polynomial::{Polynomial, solve};
use super::sieve::Sieve;
use super::{Shape, Told};

/// The most terms of a polynomial. A tensor's size is a product, so it has one; joined buffers have two or three, and an
/// image that is padded on both sides four.
const MAX_TERMS: usize = 4;
/// Sets of as many terms that fit alike and are looked at, to take those of low degree.
const MOST_ALIKE: usize = 16;
/// The most sets that are solved for the nearest one, where none fits.
const MOST_NEAR: usize = 2_000;
/// No allocation is larger: what a fit gives beyond it (or below 0) is no size.
const MOST_BYTES: u64 = 1 << 50;

/// How an allocation's samples fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SizeFit {
    /// Every sample is on the polynomial, no other as short has them all, and some did not determine it.
    Exact(Polynomial),
    /// Every sample is on two polynomials of as many terms. The larger value stands in.
    Ambiguous([Polynomial; 2]),
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
        let value = |polynomial: &Polynomial| polynomial.at(shape).unwrap_or(u64::MAX);
        match self {
            Self::Exact(polynomial) => value(polynomial),
            Self::Ambiguous([one, other]) => value(one).max(value(other)),
            Self::Bounded { polynomial, above_permille, .. } => {
                let bytes = u128::from(value(polynomial));
                let raised = bytes.saturating_add((bytes * u128::from(*above_permille)).div_ceil(1000));
                u64::try_from(raised).unwrap_or(u64::MAX)
            }
            Self::Unknown => u64::MAX,
        }
    }
}

/// Fits sizes at the shapes of some probes.
#[derive(Clone, Debug)]
pub struct SizeFitter<'a> {
    shapes: &'a [Shape],
    sieve: Sieve,
    most_terms: usize,
}

impl<'a> SizeFitter<'a> {
    /// For the probes of these shapes, which all have the same axes.
    pub fn new(shapes: &'a [Shape]) -> Self {
        let sieve = Sieve::new(monomials(shapes.first().map_or(1, Shape::axes)), shapes);
        let (probes, all) = (shapes.len(), sieve.monomials().len());
        let tells_all_apart = sieve.rank() == all && probes > all;
        let most_terms = if tells_all_apart { all } else { probes / 2 }.min(MAX_TERMS);
        Self { shapes, sieve, most_terms }
    }

    /// The largest polynomial that these probes can determine and confirm.
    pub fn told(&self) -> Told {
        let sought = MAX_TERMS.min(self.sieve.monomials().len());
        Told { probes: self.shapes.len(), terms: self.most_terms, sought }
    }

    /// Fits the sizes of one allocation, one for each probe.
    pub fn fit(&self, sizes: &[u64]) -> SizeFit {
        if self.shapes.len() != sizes.len() || self.shapes.len() < 2 {
            return SizeFit::Unknown;
        }
        if sizes.iter().all(|bytes| *bytes == 0) {
            return SizeFit::Exact(Polynomial::zero());
        }
        for terms in 1..=self.most_terms {
            let sets = self.sieve.sets(sizes, terms, MOST_ALIKE);
            let solved = sets.iter().filter_map(|set| solve(set, self.shapes, sizes));
            let mut exact: Vec<Polynomial> = solved.filter(|found| found.is_exact(self.shapes, sizes)).collect();
            exact.sort_by_key(Polynomial::degree);
            let mut exact = exact.into_iter();
            match (exact.next(), exact.next()) {
                (None, _) => {}
                (Some(only), None) => return SizeFit::Exact(only),
                (Some(one), Some(other)) => return SizeFit::Ambiguous([one, other]),
            }
        }
        self.nearest(sizes)
    }

    fn nearest(&self, sizes: &[u64]) -> SizeFit {
        let mut nearest: Option<(u64, u64, Polynomial)> = None;
        let mut tried = 0;
        for terms in 1..=self.most_terms {
            tried += sets_of(self.sieve.monomials().len(), terms);
            if tried > MOST_NEAR {
                break;
            }
            for chosen in subsets(self.sieve.monomials(), terms) {
                let Some(polynomial) = solve(&chosen, self.shapes, sizes) else { continue };
                let Some((above, off)) = misses(&polynomial, self.shapes, sizes) else { continue };
                if nearest.as_ref().is_none_or(|(_, least, _)| off < *least) {
                    nearest = Some((above, off, polynomial));
                }
            }
        }
        nearest.map_or(SizeFit::Unknown, |(above_permille, off_permille, polynomial)| SizeFit::Bounded {
            polynomial,
            above_permille,
            off_permille,
        })
    }
}

/// How many sets of so many there are.
fn sets_of(candidates: usize, count: usize) -> usize {
    (0..count).fold(1, |sets, taken| sets * candidates.saturating_sub(taken) / (taken + 1))
}

/// All sets of so many candidates, in the candidates' order, those of low degree first.
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
