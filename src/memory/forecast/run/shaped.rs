//! Sizes of a run in which every step has a shape of its own.
//!
//! What a step allocates has the shape of its batch, except for the batch itself where batches are staged ahead: then a
//! step loads a later one's. So loads are counted by themselves: the n-th load of training has the n-th shape, whichever
//! step it is in. A load that comes after a step's forward pass belongs to the evaluation that follows.

use std::hash::BuildHasher;
use std::sync::Arc;

use crate::memory::event::Phase;
use crate::memory::forecast::recording::PartKind;
use crate::memory::forecast::shape::{RunShapes, Shape, SizeFit};
use crate::memory::policy::FastHash;

/// The fitted sizes of a recording's allocations.
#[derive(Clone, Debug, Default)]
pub(in crate::memory::forecast) struct ShapeFits {
    /// Each distinct one once.
    pub(in crate::memory::forecast) fits: Vec<SizeFit>,
    /// The place of an allocation's, by ordinal.
    pub(in crate::memory::forecast) of: Vec<u32>,
}

/// Sizes are kept for this many shapes, and for fewer where there are many sizes: 4 MiB at most.
const MOST_SHAPES: usize = 512;
const MOST_SIZES: usize = 1 << 19;

/// The sizes at the shapes that came last: runs of bucketed lengths have few. Each shape has one place, and the next one
/// that falls on it takes it.
#[derive(Clone, Debug)]
struct Known<'a> {
    fits: &'a ShapeFits,
    places: Vec<Option<(Shape, Arc<[u64]>)>>,
}

impl<'a> Known<'a> {
    fn new(fits: &'a ShapeFits) -> Self {
        let places = MOST_SHAPES.min(MOST_SIZES / fits.fits.len().max(1)).max(1);
        Self { fits, places: vec![None; places] }
    }

    fn at(&mut self, shape: &Shape) -> Arc<[u64]> {
        let compute = || self.fits.fits.iter().map(|fit| fit.at(shape)).collect::<Arc<[u64]>>();
        let number = FastHash::default().hash_one(shape) as usize % self.places.len().max(1);
        let Some(place) = self.places.get_mut(number) else { return compute() };
        match place {
            Some((known, sizes)) if known == shape => Arc::clone(sizes),
            _ => Arc::clone(&place.insert((*shape, compute())).1),
        }
    }
}

/// The shapes of a run.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory::forecast) struct Shapes<'a> {
    /// Of each training step; the last one stands for all that follow.
    pub steps: &'a dyn RunShapes,
    /// Of an evaluation pass, and of everything else.
    pub evaluation: Shape,
}

impl Shapes<'_> {
    fn step(&self, number: usize) -> Shape {
        self.steps.len().checked_sub(1).map_or(self.evaluation, |last| self.steps.shape(number.min(last)))
    }
}

/// Where a run is, and what its allocations take there.
#[derive(Clone, Debug)]
pub(in crate::memory::forecast) struct Shaped<'a> {
    known: Known<'a>,
    shapes: Shapes<'a>,
    steps: usize,
    loads: usize,
    kind: PartKind,
    is_past_forward: bool,
    is_loading: bool,
    computed: Arc<[u64]>,
    loaded: Arc<[u64]>,
}

impl<'a> Shaped<'a> {
    pub(in crate::memory::forecast) fn new(fits: &'a ShapeFits, shapes: Shapes<'a>) -> Self {
        let mut known = Known::new(fits);
        let computed = known.at(&shapes.evaluation);
        Self {
            known,
            shapes,
            steps: 0,
            loads: 0,
            kind: PartKind::Build,
            is_past_forward: false,
            is_loading: false,
            loaded: Arc::clone(&computed),
            computed,
        }
    }

    /// Steps after which the shapes come again; `None` where they do not, or nobody knows.
    pub(super) fn period_steps(&self) -> Option<usize> {
        self.shapes.steps.period().filter(|period| *period > 0)
    }

    /// Batches that were loaded for steps to come.
    pub(super) fn loads_ahead(&self) -> usize {
        self.loads.wrapping_sub(self.steps)
    }

    /// Steps after the one that has begun whose shapes, and those of the batches loaded in them, are all known.
    pub(super) fn steps_left(&self) -> usize {
        self.shapes.steps.len().saturating_sub(self.steps.max(self.loads).max(1))
    }

    /// Leaves out so many steps, after which the shapes come again.
    pub(super) fn leave_out(&mut self, steps: usize) {
        self.steps += steps;
        self.loads += steps;
    }

    /// A part of the run begins.
    pub(super) fn begin(&mut self, kind: PartKind) {
        self.kind = kind;
        self.is_loading = false;
        self.is_past_forward = false;
        self.computed = if kind == PartKind::Step {
            self.steps += 1;
            self.known.at(&self.shapes.step(self.steps - 1))
        } else {
            self.known.at(&self.shapes.evaluation)
        };
    }

    /// A phase begins.
    pub(super) fn enter(&mut self, phase: Phase) {
        self.is_loading = phase == Phase::Load;
        self.is_past_forward |= phase == Phase::Forward;
        if !self.is_loading {
            return;
        }
        let is_training = self.kind == PartKind::Step && !self.is_past_forward;
        let shape = if is_training { self.shapes.step(self.loads) } else { self.shapes.evaluation };
        self.loaded = self.known.at(&shape);
        self.loads += usize::from(is_training);
    }

    /// What an allocation takes now.
    pub(super) fn bytes(&self, ordinal: usize) -> Option<u64> {
        let place = *self.known.fits.of.get(ordinal)? as usize;
        if self.is_loading { self.loaded.get(place).copied() } else { self.computed.get(place).copied() }
    }

    /// Sizes that are held.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.known.places.iter().flatten().map(|(_, sizes)| sizes.len()).sum()
    }
}
