//! The sizes of all allocations of aligned recordings, fitted.

use std::collections::HashMap;
use std::fmt;

use super::error::Percent;
use super::{Axes, Monomial, Polynomial, Shape, ShapeError, SizeFit, SizeFitter};
use crate::memory::forecast::run::shaped::ShapeFits;
use crate::units::plural;

/// Sizes that fit no polynomial, or several, may be this share of all bytes; where more is off, the probes did not really do
/// the same, or do not tell enough.
const MAX_UNSURE_SHARE: f64 = 0.01;

/// Fitted sizes, and how sure they are.
#[derive(Clone, Debug, Default)]
pub(super) struct Fitted {
    /// The fits.
    pub(super) fits: ShapeFits,
    /// Allocations that follow no polynomial.
    misfits: usize,
    /// The most that a sample of these is off.
    worst_permille: u64,
    /// Allocations that follow several.
    ambiguous: usize,
}

/// Bytes of the allocations at the largest probe of each.
#[derive(Default)]
struct Tally {
    all: u128,
    misfit: u128,
    ambiguous: u128,
    /// The first that follow several.
    example: Option<[Polynomial; 2]>,
}

impl Fitted {
    /// Fits so many allocations, whose sizes in each probe are in a column.
    pub(super) fn of(
        axes: &Axes,
        shapes: &[Shape],
        allocations: usize,
        columns: &[Vec<u64>],
    ) -> Result<Self, ShapeError> {
        let fitter = SizeFitter::new(shapes);
        let mut known: HashMap<Vec<u64>, u32> = HashMap::new();
        let (mut found, mut tally) = (Self::default(), Tally::default());
        for ordinal in 0..allocations {
            let sizes: Vec<u64> = columns.iter().map(|column| column.get(ordinal).copied().unwrap_or(0)).collect();
            let largest = u128::from(sizes.iter().copied().max().unwrap_or(0));
            let ShapeFits { fits, of } = &mut found.fits;
            let new = u32::try_from(fits.len()).unwrap_or(u32::MAX);
            let place = *known.entry(sizes).or_insert_with_key(|sizes| {
                fits.push(fitter.fit(sizes));
                new
            });
            of.push(place);
            found.count(place, largest, &mut tally);
        }
        let is_much = |bytes: u128| bytes as f64 > MAX_UNSURE_SHARE * tally.all as f64;
        if is_much(tally.misfit) {
            let (count, percent) = (found.misfits, Percent::of(tally.misfit, tally.all));
            return Err(ShapeError::Misfits { count, percent, told: fitter.told() });
        }
        if let Some(example) = tally.example.as_ref().filter(|_| is_much(tally.ambiguous)) {
            return Err(ambiguous(axes, found.ambiguous, Percent::of(tally.ambiguous, tally.all), example));
        }
        Ok(found)
    }

    fn count(&mut self, place: u32, largest: u128, tally: &mut Tally) {
        tally.all += largest;
        match self.fits.fits.get(place as usize) {
            Some(SizeFit::Exact(_)) => {}
            Some(SizeFit::Ambiguous(both)) => {
                self.ambiguous += 1;
                tally.ambiguous += largest;
                tally.example.get_or_insert_with(|| both.clone());
            }
            Some(SizeFit::Bounded { off_permille, .. }) => {
                self.misfits += 1;
                self.worst_permille = self.worst_permille.max(*off_permille);
                tally.misfit += largest;
            }
            Some(SizeFit::Unknown) | None => {
                self.misfits += 1;
                self.worst_permille = 1000;
                // Nothing stands in for it, so no share of it is small.
                tally.misfit += tally.all;
            }
        }
    }

    /// Allocations whose sizes are not known exactly.
    pub(super) fn unsure(&self) -> usize {
        self.misfits + self.ambiguous
    }
}

impl fmt::Display for Fitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (allocations, misfits, ambiguous) = (self.fits.of.len(), self.misfits, self.ambiguous);
        if misfits > 0 {
            let (percent, tenths) = (self.worst_permille / 10, self.worst_permille % 10);
            write!(
                f,
                "{misfits} of {allocations} allocations follow no polynomial of the shape; they are small, were off by up to \
                 {percent}.{tenths} % in the probes and are taken as that much larger"
            )?;
        }
        if ambiguous > 0 {
            let between = if misfits > 0 { "; " } else { "" };
            write!(
                f,
                "{between}{ambiguous} of {allocations} allocations follow more than one polynomial of the shape; they are \
                 small, and taken as the larger one has them"
            )?;
        }
        if misfits + ambiguous == 0 {
            let (subject, verb) =
                (plural(allocations, "allocation"), if allocations == 1 { "follows" } else { "follow" });
            let polynomials = plural(self.fits.fits.len(), "polynomial");
            write!(f, "all {subject} {verb} {polynomials} of the shape")?;
        }
        Ok(())
    }
}

/// What the probes do not tell apart, by a term that only one of two polynomials has, and one that only the other has.
fn ambiguous(axes: &Axes, count: usize, percent: Percent, [one, other]: &[Polynomial; 2]) -> ShapeError {
    let own =
        |one: &Polynomial, other: &Polynomial| one.monomials().find(|term| other.monomials().all(|it| it != *term));
    // Both have as many terms and are not the same, so each has one of its own.
    let [one, other] = [own(one, other), own(other, one)].map(|term| term.unwrap_or(Monomial::ONE));
    let differ = one.exponents().into_iter().zip(other.exponents()).map(|(one, other)| one != other);
    ShapeError::Ambiguous {
        count,
        percent,
        axes: axes.names().zip(differ).filter(|(_, differs)| *differs).map(|(name, _)| name.to_owned()).collect(),
        one: axes.named_term(one),
        other: axes.named_term(other),
    }
}
