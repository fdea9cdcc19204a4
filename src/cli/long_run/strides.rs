//! Values of a run that recordings say nothing of, although they are between theirs.
//!
//! A convolution of stride 2 makes `⌈H / 2⌉` rows of `H`. Recordings at even heights alone show `H / 2`, which no further
//! even height refutes, and an odd one is off by half a row. So where all recordings leave the same remainder and the run's
//! values do not, it is said. Lengths of tokens are not strided.

use super::samples::{Column, Values};
use crate::memory::forecast::shape::{Axes, LENGTH, Shape};

/// A sentence for each axis on which the run has remainders that no recording has.
pub(super) fn notes(axes: &Axes, probes: &[Shape], columns: &[Column], pad_to: u64) -> Vec<String> {
    let named = axes.names().zip(0..).skip(1).zip(columns).filter(|((name, _), _)| *name != LENGTH);
    let note = |((name, place), column): ((&str, usize), &Column)| {
        let class = Class::of(probes.iter().filter_map(|shape| shape.values().get(place).copied()))?;
        (!class.holds_all(column, pad_to)).then(|| class.note(name))
    };
    named.filter_map(note).collect()
}

/// All numbers that leave one remainder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    divisor: u64,
    remainder: u64,
}

impl Class {
    /// The smallest that has these numbers. `None` where that is all numbers, or where there is one number alone.
    fn of(mut numbers: impl Iterator<Item = u64>) -> Option<Self> {
        let first = numbers.next()?;
        let divisor = numbers.fold(0, |divisor, number| greatest_common_divisor(divisor, number.abs_diff(first)));
        (divisor > 1).then(|| Self { divisor, remainder: first % divisor })
    }

    fn holds(self, number: u64) -> bool {
        number % self.divisor == self.remainder
    }

    /// Whether the rows of a run stay within it.
    fn holds_all(self, column: &Column, pad_to: u64) -> bool {
        if self.remainder == 0 && pad_to.is_multiple_of(self.divisor) {
            // Rows are filled up to a multiple, or to the largest of all.
            return self.holds(column.values.max());
        }
        match &column.values {
            Values::Drawn(bounds) => {
                self.holds(bounds.min) && (bounds.min == bounds.max || bounds.step.is_multiple_of(self.divisor))
            }
            Values::Listed { values, .. } => values.iter().all(|value| self.holds(*value)),
        }
    }

    fn note(self, name: &str) -> String {
        let Self { divisor, remainder } = self;
        let have = match remainder {
            0 => format!("a multiple of {divisor}"),
            _ => format!("{remainder} more than a multiple of {divisor}"),
        };
        format!(
            "the `{name}` of every recording is {have}, and that of the run is not always: a net that divides it by a stride \
             rounds, which these recordings do not show (hint: record others too, or leave them out of the run)"
        )
    }
}

fn greatest_common_divisor(mut left: u64, mut right: u64) -> u64 {
    while right > 0 {
        (left, right) = (right, left % right);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_of_numbers_is_the_smallest_that_has_them_all() {
        let class = |numbers: &[u64]| Class::of(numbers.iter().copied());
        assert_eq!(class(&[64, 96, 160]), Some(Class { divisor: 32, remainder: 0 }));
        assert_eq!(class(&[65, 97, 161]), Some(Class { divisor: 32, remainder: 1 }));
        assert_eq!(class(&[64, 97]), Some(Class { divisor: 33, remainder: 31 }));
        for all in [&[64, 96, 97][..], &[64], &[]] {
            assert_eq!(class(all), None);
        }
    }

    #[test]
    fn a_run_whose_sides_leave_other_remainders_is_told_so() {
        let axes = Axes::of(["batch", "side", "length"]).unwrap();
        let probes: Vec<Shape> = [64, 96, 160].map(|side| Shape::of([2, side, side])).to_vec();
        let told = |bounds: &str, pad_to: u64| {
            let column = |name: &str| Column::new(name, Values::Drawn(bounds.parse().unwrap()));
            notes(&axes, &probes, &[column("side"), column("length")], pad_to)
        };
        for within in ["160:320:32", "224", "150:330:64"] {
            assert_eq!(told(within, 1), [""; 0], "{within}");
        }
        assert_eq!(told("160:320", 32), [""; 0], "filled up to multiples");
        assert_eq!(told("160:319", 32).len(), 1, "and to the largest, which is none");
        let [note] = told("160:320:16", 1).try_into().unwrap();
        assert!(
            note.starts_with("the `side` of every recording is a multiple of 32, and that of the run is not always: ")
        );
    }
}
