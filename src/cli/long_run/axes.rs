//! The axes of recordings and of a run, as they are asked for.

use std::str::FromStr;

use super::LongRunError;
use super::bounds::{Bounds, BoundsError, MAX_EXTENT};
use crate::cli::ForecastArgs;
use crate::memory::forecast::shape::{Axes, AxesError, LENGTH, Shape};

/// `side=64,96,128`: what each recording has on an axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct ProbeAxis {
    name: String,
    values: Vec<u64>,
}

/// `side=160:320:32`: what the samples of a run have on an axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct RunAxis {
    pub(super) name: String,
    pub(super) bounds: Bounds,
}

/// Why a text is no axis.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::cli) enum AxisError {
    /// The values of recordings.
    #[error("expected a name and numbers from 1 to {MAX_EXTENT}, such as side=64,96,128")]
    OfProbes,
    /// The bounds of a run.
    #[error(
        "expected a name and two bounds from 1 to {MAX_EXTENT}, such as side=160:320, or side=160:320:32 for multiples"
    )]
    OfRun,
    /// Bounds that bound nothing.
    #[error(transparent)]
    Bounds(BoundsError),
    /// The name is none.
    #[error(transparent)]
    Name(#[from] AxesError),
}

impl FromStr for ProbeAxis {
    type Err = AxisError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, values) = text.split_once('=').ok_or(AxisError::OfProbes)?;
        let number = |text: &str| text.parse().ok().filter(|number| (1..=MAX_EXTENT).contains(number));
        let values = values.split(',').map(number).collect::<Option<_>>().ok_or(AxisError::OfProbes)?;
        Ok(Self { name: checked(name)?, values })
    }
}

impl FromStr for RunAxis {
    type Err = AxisError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, bounds) = text.split_once('=').ok_or(AxisError::OfRun)?;
        let bounds = bounds.parse().map_err(|error| match error {
            BoundsError::Number => AxisError::OfRun,
            other => AxisError::Bounds(other),
        })?;
        Ok(Self { name: checked(name)?, bounds })
    }
}

fn checked(name: &str) -> Result<String, AxesError> {
    Axes::batch().and(name.to_owned()).map(|_| name.to_owned())
}

/// The axes of the recordings, and the shape of each, in the order of the files.
pub(super) fn of_probes(args: &ForecastArgs) -> Result<(Axes, Vec<Shape>), LongRunError> {
    let files = args.files.len();
    let (mut axes, mut columns) = (Axes::batch(), Vec::new());
    if !args.lengths.is_empty() {
        if args.lengths.len() != files {
            return Err(LongRunError::Unpaired { files, lengths: args.lengths.len() });
        }
        axes = axes.and(LENGTH)?;
        columns.push(&args.lengths);
    }
    for ProbeAxis { name, values } in &args.axes {
        if values.len() != files {
            return Err(LongRunError::UnpairedAxis { name: name.clone(), files, values: values.len() });
        }
        axes = axes.and(name.clone())?;
        columns.push(values);
    }
    if columns.is_empty() {
        return Err(LongRunError::LengthsMissing);
    }
    let shape = |(place, batch_size): (usize, &usize)| {
        let values = columns.iter().filter_map(|column| column.get(place).copied());
        let values: Vec<u64> = std::iter::once(*batch_size as u64).chain(values).collect();
        Shape::new(&values).ok_or_else(|| AxesError::TooMany { count: values.len() }.into())
    };
    let shapes = args.batches.iter().enumerate().map(shape).collect::<Result<_, LongRunError>>()?;
    Ok((axes, shapes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_of_recordings_has_a_value_for_each_and_one_of_a_run_has_bounds() {
        let probes: ProbeAxis = "side=64,96,128".parse().unwrap();
        assert_eq!(probes, ProbeAxis { name: "side".to_owned(), values: vec![64, 96, 128] });
        let run: RunAxis = "side=160:320:32".parse().unwrap();
        assert_eq!((run.name.as_str(), Ok(run.bounds)), ("side", "160:320:32".parse()));
    }

    #[test]
    fn what_is_no_axis_is_refused_with_an_example() {
        for text in ["", "side", "side=", "side=64,", "side=0", "side=64:96", "side=1.5"] {
            assert_eq!(text.parse::<ProbeAxis>(), Err(AxisError::OfProbes), "{text}");
        }
        for text in ["", "side", "side=", "side=64,96", "side=0:4", "side=a:b"] {
            assert_eq!(text.parse::<RunAxis>(), Err(AxisError::OfRun), "{text}");
        }
        assert!(matches!("side=9:5".parse::<RunAxis>(), Err(AxisError::Bounds(BoundsError::Reversed { .. }))));
        assert!(matches!("2d=9:50".parse::<RunAxis>(), Err(AxisError::Name(AxesError::Name { .. }))));
        assert!(matches!("batch=2,3".parse::<ProbeAxis>(), Err(AxisError::Name(AxesError::Twice { .. }))));
    }
}
