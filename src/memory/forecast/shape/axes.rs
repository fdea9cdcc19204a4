//! The names of a shape's axes.
//!
//! A fit knows axes by their place alone. People do not: that all probes have one height, or that no size is known at
//! `batch 8, height 640, width 96`, is said by name.

use std::borrow::Cow;
use std::fmt;

use super::{MAX_AXES, Monomial, Shape};

/// The first axis: all samples of a micro-batch.
pub const BATCH: &str = "batch";
/// The axis of sequences.
pub const LENGTH: &str = "length";
/// The axis of square images: both of their sides.
pub const SIDE: &str = "side";
/// The most characters of a name.
const MAX_NAME: usize = 32;

/// Names in the order of a shape's values: the batch, and up to three more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Axes {
    names: Vec<Cow<'static, str>>,
}

/// Why names are not those of axes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AxesError {
    /// Something else than the batch comes first.
    #[error("the first axis is `{first}` (hint: `{BATCH}` comes first)")]
    NotBatchFirst {
        /// What comes first; empty where nothing does.
        first: String,
    },
    /// More than a fit can tell apart.
    #[error("{count} axes (hint: `{BATCH}` and up to {} more)", MAX_AXES - 1)]
    TooMany {
        /// How many.
        count: usize,
    },
    /// One name for two axes.
    #[error("the axis `{name}` is there twice")]
    Twice {
        /// The name.
        name: String,
    },
    /// What no axis is called.
    #[error(
        "`{name}` is no name of an axis (hint: a letter first, then letters, digits, `_` and `-`, {MAX_NAME} at most)"
    )]
    Name {
        /// What was written, its beginning.
        name: String,
    },
}

impl Axes {
    /// The batch alone.
    pub fn batch() -> Self {
        Self { names: vec![Cow::Borrowed(BATCH)] }
    }

    /// The batch and the length of its sequences.
    pub fn batch_and_length() -> Self {
        Self { names: vec![Cow::Borrowed(BATCH), Cow::Borrowed(LENGTH)] }
    }

    /// Axes of these names, the batch first.
    pub fn of<N: Into<Cow<'static, str>>>(names: impl IntoIterator<Item = N>) -> Result<Self, AxesError> {
        let mut names = names.into_iter().map(Into::into);
        let first = names.next().unwrap_or_default();
        if first != BATCH {
            return Err(AxesError::NotBatchFirst { first: shortened(&first) });
        }
        names.try_fold(Self::batch(), Self::and)
    }

    /// These and one more.
    pub fn and(mut self, name: impl Into<Cow<'static, str>>) -> Result<Self, AxesError> {
        let name = name.into();
        if !is_name(&name) {
            return Err(AxesError::Name { name: shortened(&name) });
        }
        if self.place(&name).is_some() {
            return Err(AxesError::Twice { name: name.into_owned() });
        }
        self.names.push(name);
        let count = self.names.len();
        if count > MAX_AXES { Err(AxesError::TooMany { count }) } else { Ok(self) }
    }

    /// The names, the batch first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(AsRef::as_ref)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.names.len()
    }

    /// Where a name stands; the batch is 0.
    pub fn place(&self, name: &str) -> Option<usize> {
        self.names().position(|known| known == name)
    }

    /// A shape with its names.
    pub fn named(&self, shape: Shape) -> NamedShape {
        NamedShape { axes: self.clone(), shape }
    }

    /// A monomial with its names.
    pub fn named_term(&self, monomial: Monomial) -> NamedMonomial {
        NamedMonomial { axes: self.clone(), monomial }
    }
}

fn is_name(name: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    name.len() <= MAX_NAME && name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(is_inner)
}

/// As much of a name as an error has room for, without what would drive a terminal.
fn shortened(name: &str) -> String {
    name.chars().take(MAX_NAME).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

impl fmt::Display for Axes {
    /// `batch, height, width`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.names.join(", "))
    }
}

/// A shape and what its values are of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedShape {
    axes: Axes,
    shape: Shape,
}

impl fmt::Display for NamedShape {
    /// `batch 2, height 64, width 96`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.axes.names().zip(self.shape.values()).map(|(name, value)| format!("{name} {value}"));
        f.pad(&values.collect::<Vec<_>>().join(", "))
    }
}

/// A monomial and what its powers are of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedMonomial {
    axes: Axes,
    monomial: Monomial,
}

impl fmt::Display for NamedMonomial {
    /// `batch·length²`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let powers = self.axes.names().zip(self.monomial.exponents()).filter_map(|(name, exponent)| match exponent {
            0 => None,
            1 => Some(name.to_owned()),
            2 => Some(format!("{name}²")),
            more => Some(format!("{name}^{more}")),
        });
        let powers: Vec<String> = powers.collect();
        f.pad(&if powers.is_empty() { "a constant".to_owned() } else { powers.join("·") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_told_with_the_names_of_its_axes() {
        let axes = Axes::of(["batch", "height", "width"]).unwrap();
        assert_eq!(axes.named(Shape::of([2, 64, 96])).to_string(), "batch 2, height 64, width 96");
        assert_eq!((axes.count(), axes.place("width"), axes.place("side")), (3, Some(2), None));
        assert_eq!(Axes::of(["batch", "length"]), Ok(Axes::batch_and_length()));
        let terms: Vec<String> = super::super::monomials(2)
            .into_iter()
            .map(|term| Axes::batch_and_length().named_term(term).to_string())
            .collect();
        assert_eq!(terms[0], "a constant");
        assert!(
            ["batch", "length", "batch·length", "length²", "batch·length²"]
                .iter()
                .all(|name| terms.iter().any(|term| term == name))
        );
    }

    #[test]
    fn names_that_no_axes_have_are_refused() {
        let error = |names: &[&'static str]| Axes::of(names.iter().copied()).unwrap_err();
        assert_eq!(error(&["length", "batch"]), AxesError::NotBatchFirst { first: "length".to_owned() });
        assert_eq!(error(&[]), AxesError::NotBatchFirst { first: String::new() });
        assert_eq!(error(&["batch", "side", "side"]), AxesError::Twice { name: "side".to_owned() });
        assert_eq!(error(&["batch", "batch"]), AxesError::Twice { name: "batch".to_owned() });
        assert_eq!(error(&["batch", "a", "b", "c", "d"]), AxesError::TooMany { count: 5 });
        for name in ["", "2d", "a b", "größe", "a=b", "\u{1b}[2J", "an-axis-of-far-too-many-letters-in-it"] {
            assert!(matches!(error(&["batch", name]), AxesError::Name { .. }), "{name}");
        }
        assert!(!error(&["batch", "\u{1b}[2J"]).to_string().contains('\u{1b}'));
    }
}
