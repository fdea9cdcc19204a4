//! Where the shapes of a run come from.
//!
//! A run of a million steps need not be held as a list: a loader's order is a function of its seed, so the shape of any
//! step can be computed when it comes. A list serves as well.

use super::Shape;

/// The shapes of a run's micro-batches.
///
/// A step is asked for once or a few times, mostly in rising order, and gets the same answer each time.
pub trait RunShapes: std::fmt::Debug + Sync {
    /// Micro-batches in the run.
    fn len(&self) -> usize;

    /// The shape of a micro-batch, counted from 0.
    fn shape(&self, step: usize) -> Shape;

    /// After how many micro-batches all shapes come again, from the first one on; `None` where they do not, or nobody
    /// knows.
    fn period(&self) -> Option<usize> {
        None
    }

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl RunShapes for [Shape] {
    fn len(&self) -> usize {
        <[Shape]>::len(self)
    }

    /// A list that has ended goes on with its last shape.
    fn shape(&self, step: usize) -> Shape {
        self.get(step).or(self.last()).copied().unwrap_or(Shape::of([1]))
    }

    fn period(&self) -> Option<usize> {
        period_of(self)
    }
}

impl RunShapes for &[Shape] {
    fn len(&self) -> usize {
        <[Shape]>::len(self)
    }

    fn shape(&self, step: usize) -> Shape {
        <[Shape] as RunShapes>::shape(self, step)
    }

    fn period(&self) -> Option<usize> {
        period_of(self)
    }
}

impl RunShapes for Vec<Shape> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn shape(&self, step: usize) -> Shape {
        <[Shape] as RunShapes>::shape(self, step)
    }

    fn period(&self) -> Option<usize> {
        period_of(self)
    }
}

/// The shortest period of a list that holds it at least twice.
///
/// By the failure function of Knuth, Morris, and Pratt (1977): the longest proper prefix that is also a suffix.
fn period_of(shapes: &[Shape]) -> Option<usize> {
    let mut borders = vec![0_usize; shapes.len()];
    let mut border = 0;
    for place in 1..shapes.len() {
        while border > 0 && shapes.get(border) != shapes.get(place) {
            border = borders.get(border - 1).copied()?;
        }
        border += usize::from(shapes.get(border) == shapes.get(place));
        *borders.get_mut(place)? = border;
    }
    let period = shapes.len() - borders.last().copied()?;
    (2 * period <= shapes.len()).then_some(period)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(values: &[u64]) -> Vec<Shape> {
        values.iter().map(|value| Shape::of([2, *value])).collect()
    }

    #[test]
    fn the_period_of_a_list_is_the_shortest_that_it_shows_twice() {
        assert_eq!(list(&[7, 7, 7]).period(), Some(1));
        assert_eq!(list(&[1, 2, 1, 2, 1]).period(), Some(2));
        assert_eq!(list(&[1, 1, 2, 1, 1, 2]).period(), Some(3));
        for none in [&[][..], &[1], &[1, 2], &[1, 2, 1], &[1, 1, 2]] {
            assert_eq!(list(none).period(), None, "{none:?}");
        }
    }

    #[test]
    fn a_list_that_has_ended_goes_on_with_its_last_shape() {
        let shapes = list(&[1, 2]);
        assert_eq!((RunShapes::shape(&shapes, 1), RunShapes::shape(&shapes, 9)), (shapes[1], shapes[1]));
        assert!(!RunShapes::is_empty(&shapes) && RunShapes::is_empty(&list(&[])));
    }
}
