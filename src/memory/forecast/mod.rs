//! Forecast: what a run takes at any batch size, from probes at two tiny ones.
//!
//! Training does the same things whatever the batch; only sizes change, and each size is `a + b·B` with whole numbers.
//! So two probes that [`align`] event by event give every size by a [fit](size) in integers, and a
//! [run](run::RunEvents) at any `B ≥ 2` can be made event by event and [replayed](mod@replay) under any allocator
//! policy and limit, with partial last batches, evaluation passes and any number of steps, without running it.
//!
//! A forecast always says by which [`Method`] it was made and why:
//!
//! | method | when | error |
//! |---|---|---|
//! | `exact` | the probes align, every size fits | 0 if a third probe agrees, `null` if there is none |
//! | `affine` | they align but for a few sizes, which are continued by a line; or they do not, and the [`peaks`] are | at a third probe, `null` if there is none |
//! | `none` | fewer than two probes at 2 or more samples | |
//!
//! It is not a measurement: what allocates outside the recorded device (the context, cuBLAS workspaces) is not in it,
//! nor is a size that jumps only at larger batches than were probed. The verifying run decides.
//!
//! ```
//! use batchtune::memory::{Event, Ordinal, Stream, policy::native::Native};
//! use batchtune::memory::forecast::{Conditions, Forecaster, Method, Probe, Request};
//!
//! // A weight of 1 MiB and an activation of 4 MiB a sample.
//! let step = |batch_size: u64| {
//!     let alloc = |ordinal, bytes| Event::Alloc { ordinal: Ordinal(ordinal), bytes, stream: Stream(0) };
//!     [alloc(0, 1 << 20), alloc(1, batch_size << 22), Event::Free { ordinal: Ordinal(1) }]
//! };
//! let (two, three) = (step(2), step(3));
//! let forecaster = Forecaster::new(&[Probe { batch_size: 2, events: &two }, Probe { batch_size: 3, events: &three }]);
//! assert_eq!(forecaster.method(), Method::Exact);
//!
//! let conditions = Conditions { limit_bytes: 1 << 30, make_policy: &|limit| Box::new(Native::new(limit)) };
//! let report = forecaster.report(&Request::of(&[8, 512]), &conditions)?;
//! assert_eq!(report.points[0].peak_allocated_bytes, 33 << 20);
//! assert!(report.points[0].fits && !report.points[1].fits);
//! assert_eq!(report.largest_batch_size, Some(255));
//! # Ok::<(), batchtune::memory::forecast::ForecastError>(())
//! ```

pub mod align;
mod basis;
pub mod batching;
pub mod curve;
mod forecaster;
mod largest;
pub mod long_run;
mod peaks;
pub mod recording;
pub mod replay;
pub mod report;
pub mod run;
pub mod shape;
pub mod size;
pub mod tuning;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use align::Difference;
pub use basis::Reason;
pub use forecaster::Forecaster;
pub use largest::MAX_BATCH_SIZE;
pub use recording::{Part, PartKind, Recording};
pub use replay::{Replay, WindowFigures};
pub use report::{ForecastPoint, Method, Report};
pub use run::{MIN_BATCH_SIZE, Releases, RunEvents, RunShape, Window};

use super::event::Event;
use super::policy::Policy;

/// Makes a fresh policy with a limit in bytes; `u64::MAX` is none.
pub type MakePolicy<'a> = &'a (dyn Fn(u64) -> Box<dyn Policy> + Sync);

/// A recording at one batch size.
#[derive(Clone, Copy, Debug)]
pub struct Probe<'a> {
    /// Samples in a micro-batch.
    pub batch_size: usize,
    /// Everything the device saw, in order.
    pub events: &'a [Event],
}

/// A probe in canonical form.
#[derive(Clone, Debug)]
struct Probed {
    batch_size: usize,
    recording: Recording,
}

/// The allocator and the limit to forecast for.
#[derive(Clone, Copy)]
pub struct Conditions<'a> {
    /// C; `u64::MAX` is none.
    pub limit_bytes: u64,
    /// The allocator.
    pub make_policy: MakePolicy<'a>,
}

/// What to forecast.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The batch sizes, 2 or more each.
    pub batch_sizes: Vec<usize>,
    /// Updates in the run; `None` is as many as were recorded.
    pub updates: Option<usize>,
    /// The size of an epoch's last batch. It matters to batch sizes above it.
    pub partial_batch_size: Option<usize>,
}

impl Request {
    /// The recorded run at these batch sizes.
    pub fn of(batch_sizes: &[usize]) -> Self {
        Self { batch_sizes: batch_sizes.to_vec(), ..Self::default() }
    }

    fn shape(&self, batch_size: usize) -> RunShape {
        let partial_batch_size = self.partial_batch_size.filter(|partial| *partial < batch_size);
        RunShape { batch_size, updates: self.updates, partial_batch_size }
    }
}

/// Why something cannot be forecast.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForecastError {
    /// A batch of 1 has other events.
    #[error(
        "a batch of `{batch_size}` cannot be forecast (hint: batches below 2 take other shapes; measure them instead)"
    )]
    BatchTooSmall {
        /// The batch size.
        batch_size: usize,
    },
    /// The recording has no update that repeats.
    #[error(
        "the probes hold no steady step to repeat (hint: record at least three updates, before any evaluation pass)"
    )]
    NoSteadyStep,
    /// The recording never did this.
    #[error("the probes hold no {part} (hint: record one that does, or leave it out of the run)")]
    PartNotRecorded {
        /// What is missing.
        part: recording::PartKind,
    },
    /// No recorded micro-step can be repeated, or left out.
    #[error(
        "updates of `{wanted}` micro-steps cannot be made from recorded ones of `{recorded}` (hint: record three \
         micro-steps an update for more of them, or as many as the run has)"
    )]
    AccumulationNotRecorded {
        /// Micro-steps of a recorded update.
        recorded: usize,
        /// Micro-steps of an update of the run.
        wanted: usize,
    },
    /// A size that is none: far from the shapes that it was fitted to, a polynomial may go anywhere.
    #[error(
        "the sizes at `{shape}` cannot be forecast: one of them comes out below 0 or above 1 PiB (hint: record shapes nearer \
         to it)"
    )]
    NoSize {
        /// The shape of the batch.
        shape: shape::NamedShape,
    },
    /// A run whose shapes have other axes than the recordings'.
    #[error("the run has the shape `{shape}`, and the recordings the axes {axes}")]
    OtherAxes {
        /// The axes of the recordings.
        axes: shape::Axes,
        /// A shape of the run.
        shape: shape::Shape,
    },
    /// The run is too long.
    #[error("a run of `{updates}` updates is too long (hint: memory repeats itself long before {})", run::MAX_UPDATES)]
    TooManyUpdates {
        /// How many were asked for.
        updates: usize,
    },
}
