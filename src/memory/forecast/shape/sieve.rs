//! Which sets of monomials could give the samples of an allocation.
//!
//! Four axes have 54 monomials, and 316,251 sets of four. To solve each in fractions would take seconds for every
//! allocation, so sets are sifted in numbers modulo a prime first, where a step of the elimination is two multiplications:
//! whatever fits exactly fits modulo a prime too. Sets that share their first monomials share the elimination of these, and
//! a last monomial is only looked at: it gives what is left of the samples if that is a multiple of it.
//!
//! Few sets come through, and those are solved exactly.

use super::Shape;
use super::monomial::Monomial;

/// 2⁶¹ − 1: a product is reduced by a shift and a sum.
const PRIME: u64 = (1 << 61) - 1;

/// The values of monomials at the probes, modulo a prime.
#[derive(Clone, Debug)]
pub(super) struct Sieve {
    monomials: Vec<Monomial>,
    probes: usize,
    /// A column for each monomial, one after another.
    columns: Vec<u64>,
}

impl Sieve {
    /// Of the monomials that have a value at every probe.
    pub(super) fn new(monomials: Vec<Monomial>, shapes: &[Shape]) -> Self {
        let mut sieve = Self { monomials: Vec::new(), probes: shapes.len(), columns: Vec::new() };
        for monomial in monomials {
            let values = shapes.iter().map(|shape| monomial.at(shape).map(|value| (value % i128::from(PRIME)) as u64));
            if let Some(values) = values.collect::<Option<Vec<u64>>>() {
                sieve.monomials.push(monomial);
                sieve.columns.extend(values);
            }
        }
        sieve
    }

    /// The monomials.
    pub(super) fn monomials(&self) -> &[Monomial] {
        &self.monomials
    }

    /// How many of the monomials the probes tell apart: the rank of their columns.
    pub(super) fn rank(&self) -> usize {
        let mut rest = self.rest(&[]);
        let mut rank = 0;
        while let Some(next) = (0..rest.count()).find_map(|place| rest.without(place)) {
            rest = next;
            rank += 1;
        }
        rank
    }

    /// Sets of so many monomials, at most `most` of them, that could give these samples where no smaller set does. Sets of
    /// low places come first.
    pub(super) fn sets(&self, sizes: &[u64], terms: usize, most: usize) -> Vec<Vec<Monomial>> {
        let mut found = Vec::new();
        if terms > 0 && terms < self.probes {
            let samples: Vec<u64> = sizes.iter().map(|bytes| bytes % PRIME).collect();
            sift(&self.rest(&samples), terms, most, &mut Vec::with_capacity(terms), &mut found);
        }
        let set =
            |places: Vec<usize>| places.into_iter().filter_map(|place| self.monomials.get(place).copied()).collect();
        found.into_iter().map(set).collect()
    }

    fn rest(&self, samples: &[u64]) -> Rest {
        Rest { first: 0, rows: self.probes, columns: self.columns.clone(), samples: samples.to_vec() }
    }
}

fn sift(rest: &Rest, terms: usize, most: usize, chosen: &mut Vec<usize>, found: &mut Vec<Vec<usize>>) {
    for place in 0..rest.count() {
        if found.len() >= most {
            return;
        }
        chosen.push(rest.first + place);
        if terms == 1 {
            if rest.is_multiple(place) {
                found.push(chosen.clone());
            }
        } else if let Some(next) = rest.without(place) {
            sift(&next, terms - 1, most, chosen, found);
        }
        chosen.pop();
    }
}

/// The columns from one on, and the samples, after some of the columns were taken out of them.
struct Rest {
    /// The place of the first column among all.
    first: usize,
    /// Values of a column: one less for each that was taken out.
    rows: usize,
    columns: Vec<u64>,
    samples: Vec<u64>,
}

impl Rest {
    fn count(&self) -> usize {
        self.columns.len().checked_div(self.rows).unwrap_or(0)
    }

    fn column(&self, place: usize) -> &[u64] {
        self.columns.get(place * self.rows..(place + 1) * self.rows).unwrap_or_default()
    }

    /// What is left of the later columns and of the samples without this column. `None` where it is a sum of those that
    /// were taken out before.
    fn without(&self, place: usize) -> Option<Self> {
        let column = self.column(place);
        let (row, lead) = column.iter().copied().enumerate().find(|(_, value)| *value != 0)?;
        let later = self.columns.get((place + 1) * self.rows..).unwrap_or_default();
        let mut columns = Vec::with_capacity(later.len());
        for other in later.chunks_exact(self.rows) {
            reduce(other, column, (row, lead), &mut columns);
        }
        let mut samples = Vec::with_capacity(self.rows);
        reduce(&self.samples, column, (row, lead), &mut samples);
        Some(Self { first: self.first + place + 1, rows: self.rows - 1, columns, samples })
    }

    /// Whether what is left of the samples is a multiple of a column, and not of 0.
    fn is_multiple(&self, place: usize) -> bool {
        let pairs = || self.column(place).iter().copied().zip(self.samples.iter().copied());
        let Some((lead, sample)) = pairs().find(|(value, _)| *value != 0) else { return false };
        sample != 0 && pairs().all(|(value, other)| times(other, lead) == times(sample, value))
    }
}

/// Takes a column out of another one, so that the row of its first value is gone.
fn reduce(other: &[u64], column: &[u64], (row, lead): (usize, u64), reduced: &mut Vec<u64>) {
    let factor = other.get(row).copied().unwrap_or(0);
    let rows = other.iter().zip(column).enumerate().filter(|(place, _)| *place != row);
    reduced.extend(rows.map(|(_, (value, known))| minus(times(*value, lead), times(factor, *known))));
}

fn times(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    let sum = (product as u64 & PRIME) + (product >> 61) as u64;
    if sum >= PRIME { sum - PRIME } else { sum }
}

fn minus(one: u64, other: u64) -> u64 {
    if one >= other { one - other } else { one + PRIME - other }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::monomial::monomials;
    use super::*;

    proptest! {
        #[test]
        fn numbers_modulo_the_prime_are_those_of_long_division(one in 0..PRIME, other in 0..PRIME) {
            let (long, prime) = (u128::from(one) * u128::from(other), u128::from(PRIME));
            prop_assert_eq!(u128::from(times(one, other)), long % prime);
            prop_assert_eq!(u128::from(minus(one, other)), (u128::from(one) + prime - u128::from(other)) % prime);
        }
    }

    #[test]
    fn values_at_the_ends_of_the_range_stay_in_it() {
        assert_eq!(times(PRIME - 1, PRIME - 1), 1);
        assert_eq!((minus(0, PRIME - 1), minus(5, 5)), (1, 0));
    }

    #[test]
    fn the_rank_is_what_the_probes_tell_apart() {
        let rank = |shapes: &[[u64; 2]]| {
            Sieve::new(monomials(2), &shapes.iter().copied().map(Shape::of).collect::<Vec<_>>()).rank()
        };
        assert_eq!(rank(&[[2, 64], [3, 64], [2, 96], [3, 96], [2, 160], [4, 128], [3, 200]]), 6);
        assert_eq!(rank(&[[2, 64], [3, 64], [2, 96], [3, 96], [4, 64], [5, 96]]), 4, "two lengths tell no square");
        assert_eq!(rank(&[]), 0);
    }
}
