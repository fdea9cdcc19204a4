//! Why a long run is not forecast.

use std::path::PathBuf;

use super::MAX_STEPS;
use super::bounds::MAX_EXTENT;
use crate::cli::input::InputError;
use crate::memory::forecast::ForecastError;
use crate::memory::forecast::batching::BatchingError;
use crate::memory::forecast::shape::{Axes, AxesError, ShapeError};

/// Why a long run is not forecast.
#[derive(Debug, thiserror::Error)]
pub enum LongRunError {
    /// The recordings' lengths are not known.
    #[error(
        "a whole run needs the length of each recording (hint: `--lengths 64,64,96,…`, one for each file; `--axis \
         side=64,64,96,…` where something else varies)"
    )]
    LengthsMissing,
    /// A length for every recording.
    #[error("{files} recordings and {lengths} lengths (hint: `--lengths` has one for each file, in their order)")]
    Unpaired {
        /// Files.
        files: usize,
        /// Lengths.
        lengths: usize,
    },
    /// A value for every recording.
    #[error(
        "{files} recordings and {values} values of `{name}` (hint: `--axis {name}=…` has one for each file, in their order)"
    )]
    UnpairedAxis {
        /// The axis.
        name: String,
        /// Files.
        files: usize,
        /// Its values.
        values: usize,
    },
    /// Names that are no axes.
    #[error(transparent)]
    Axes(#[from] AxesError),
    /// What the run's samples have on an axis is not known.
    #[error(
        "a whole run needs the `{name}` of the run's samples (hint: `--run-axis {name}=160:320`, or a column of `--run-shapes`)"
    )]
    RunAxisMissing {
        /// The axis.
        name: String,
    },
    /// The run has an axis that the recordings have not.
    #[error(
        "the run has a `{name}`, and the axes of the recordings are {axes} (hint: `--axis {name}=…` gives that of each)"
    )]
    RunAxisUnknown {
        /// What the run has.
        name: String,
        /// What the recordings have.
        axes: Axes,
    },
    /// An axis of the run is asked for in two ways.
    #[error("the `{name}` of the run's samples is there twice")]
    RunAxisTwice {
        /// The axis.
        name: String,
    },
    /// No axis that is drawn.
    #[error("`--per-batch {name}`: no such axis is drawn (hint: `--run-axis {name}=160:320:32`)")]
    PerBatch {
        /// What was asked for.
        name: String,
    },
    /// Two lists of samples.
    #[error(
        "`{}` and `{}` both list the run's samples (hint: `--run-shapes` with a column for the length)",
        lengths.display(),
        shapes.display()
    )]
    TwoFiles {
        /// That of lengths.
        lengths: PathBuf,
        /// That of shapes.
        shapes: PathBuf,
    },
    /// How long the run's samples are is not known.
    #[error("a whole run needs the lengths of the run's samples (hint: `--run-lengths 64:512`, or a file of them)")]
    RunLengthsMissing,
    /// Settings for an allocator that has none.
    #[error("`--backend cuda_malloc_async` is the driver's pool, which has no settings (hint: leave `--conf` out)")]
    ConfOfDriverPool,
    /// A run without an end.
    #[error("`--steps`: `{steps}` is over {MAX_STEPS} (hint: memory repeats itself long before)")]
    TooManySteps {
        /// How many were asked for.
        steps: usize,
    },
    /// A line of the file of lengths.
    #[error("{}:{line}: expected the length of a sample, from 1 to {MAX_EXTENT}", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
    },
    /// A file without lengths.
    #[error("`{}` has no lengths", path.display())]
    NoLengths {
        /// The file.
        path: PathBuf,
    },
    /// The first line of a file of shapes.
    #[error("{}:{line}: expected the names of the samples' axes with commas between them: {source}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// What is wrong with them.
        source: AxesError,
    },
    /// Another line of it.
    #[error(
        "{}:{line}: expected {}, from 1 to {MAX_EXTENT}, with commas between them",
        path.display(),
        names.join(" and ")
    )]
    SampleShape {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The axes that its first line names.
        names: Vec<String>,
    },
    /// A file without shapes.
    #[error("`{}` has no shapes (hint: the names of the axes in the first line, then a sample a line)", path.display())]
    NoShapes {
        /// The file.
        path: PathBuf,
    },
    /// A file of lengths or shapes cannot be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// Samples cannot be batched so.
    #[error(transparent)]
    Batching(#[from] BatchingError),
    /// The recordings did different things at different sides.
    #[error(
        "{0} (hint: where the strides of a net do not divide a side it may take another path; record sides that leave the \
         same remainder, such as multiples of 32)"
    )]
    Strides(ShapeError),
    /// The recordings say too little.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The run cannot be put together.
    #[error(transparent)]
    Forecast(#[from] ForecastError),
}
