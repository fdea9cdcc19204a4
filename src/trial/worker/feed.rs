//! Batches on their way from the loader to the step: page-locked or not, and staged on the device ahead of the step.
//!
//! A device with a [`Stager`] copies beside the steps; one without (the virtual device) copies in the step and keeps
//! what is staged in a queue, which takes the same memory and hides nothing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::open::Supplies;
use super::phases::Phases;
use super::trial::{Halt, Trial, failed};
use crate::data::loader::Batches;
use crate::data::pinned::{Fields, PinnedBatches, PinnedBy};
use crate::data::rules::Skipped;
use crate::data::{Batch, DataError};
use crate::device::staging::{Stager, Wait};
use crate::device::{DeviceSession, StepError};
use crate::memory::Phase;
use crate::text::with_causes;
use crate::train::trainer::in_phase;
use crate::trial::spec::Point;

/// Batches on their way to the step.
pub(super) enum Feed {
    /// Copied in the step.
    Queue { batches: Box<dyn Batches>, staged: VecDeque<Batch> },
    /// Copied beside the steps.
    Stream {
        source: Source,
        stager: Box<dyn Stager>,
        /// Samples of the batches that are staged.
        staged: VecDeque<usize>,
    },
}

/// Where the batches of a stream come from.
pub(super) enum Source {
    Pageable(Box<dyn Batches>),
    PageLocked(PinnedBatches),
}

impl Feed {
    /// Starts the loader of a point.
    pub(super) fn start(
        point: &Point,
        supplies: &dyn Supplies,
        session: &mut dyn DeviceSession,
    ) -> Result<Self, StepError> {
        let batches = supplies.training_batches(point);
        let Some(stager) = session.stager()? else { return Ok(Self::Queue { batches, staged: VecDeque::new() }) };
        let source = if point.pin_memory {
            let by = if point.loader_workers == 0 { PinnedBy::Caller } else { PinnedBy::Thread };
            let slots = point.pinned_batches();
            let pinned = PinnedBatches::start(batches, stager.page_locker(), slots, by);
            Source::PageLocked(pinned.map_err(|error| StepError::Workload(with_causes(&error)))?)
        } else {
            Source::Pageable(batches)
        };
        Ok(Self::Stream { source, stager, staged: VecDeque::new() })
    }

    /// What was skipped for the batches so far.
    pub(super) fn skipped(&self) -> Skipped {
        match self {
            Self::Queue { batches, .. } | Self::Stream { source: Source::Pageable(batches), .. } => batches.skipped(),
            Self::Stream { source: Source::PageLocked(pinned), .. } => pinned.skipped().clone(),
        }
    }
}

impl Source {
    fn next_batch(&mut self) -> Result<Fields, DataError> {
        match self {
            Self::Pageable(batches) => batches.next_batch().map(Fields::from),
            Self::PageLocked(pinned) => pinned.next_batch(),
        }
    }

    /// Takes back what was copied by now; where every buffer of a ring is out, the first one once it is.
    fn reclaim(&mut self, stager: &mut dyn Stager) -> candle_core::Result<()> {
        loop {
            let is_exhausted = matches!(self, Self::PageLocked(pinned) if pinned.is_exhausted());
            let wait = if is_exhausted { Wait::UntilDone } else { Wait::No };
            let Some(slot) = stager.reclaim(wait)? else { return Ok(()) };
            if let Self::PageLocked(pinned) = self {
                pinned.give_back(slot);
            }
        }
    }
}

/// A batch of a step, and what it took to get it.
pub(super) struct Fed {
    pub(super) batch: Batch,
    /// Blocked on the loader.
    pub(super) data_wait: Duration,
    /// Copying to the device, or beginning to.
    pub(super) load: Duration,
}

impl Trial<'_> {
    /// The batch of this step. Batches that the point stages ahead are staged as well, so that they lie on the device, or
    /// are on their way there, during the step.
    pub(super) fn next_batch(&mut self, feed: &mut Feed) -> Result<Fed, Halt> {
        let (mut data_wait, mut load) = (Duration::ZERO, Duration::ZERO);
        loop {
            let staged = match feed {
                Feed::Queue { batches, staged } => {
                    let asked = Instant::now();
                    let host = batches.next_batch().map_err(|error| failed(with_causes(&error)))?;
                    data_wait += asked.elapsed();
                    let copied = Instant::now();
                    let batch = self.load(&host)?;
                    load += copied.elapsed();
                    staged.push_back(batch);
                    if staged.len() > self.ahead() { staged.pop_front() } else { None }
                }
                Feed::Stream { source, stager, staged } => {
                    let reclaimed = Instant::now();
                    let result = source.reclaim(stager.as_mut()).map_err(|error| self.session.classify(&error));
                    self.judge(result)?;
                    load += reclaimed.elapsed();
                    let asked = Instant::now();
                    let fields = source.next_batch().map_err(|error| failed(with_causes(&error)))?;
                    data_wait += asked.elapsed();
                    let copied = Instant::now();
                    staged.push_back(fields.samples);
                    let samples = if staged.len() > self.ahead() { staged.pop_front() } else { None };
                    let result = stage(&mut self.session, stager.as_mut(), fields, samples);
                    let batch = self.judge(result)?;
                    load += copied.elapsed();
                    batch
                }
            };
            if let Some(batch) = staged {
                return Ok(Fed { batch, data_wait, load });
            }
        }
    }

    /// Batches on the device ahead of the step.
    fn ahead(&self) -> usize {
        self.spec.point.device_prefetch
    }
}

/// Begins to copy a batch and, where it has `samples`, takes the one that was staged first. A phase waits for what candle's
/// stream was given, so it waits for the copy of a batch that is taken and for no other.
fn stage(
    session: &mut Phases<'_>,
    stager: &mut dyn Stager,
    fields: Fields,
    samples: Option<usize>,
) -> Result<Option<Batch>, StepError> {
    let (_, taken) = in_phase(session, Phase::Load, || {
        stager.stage(fields.fields)?;
        let Some(samples) = samples else { return Ok(None) };
        Ok(stager.take()?.and_then(|tensors| batch_of(tensors, samples)))
    })?;
    Ok(taken)
}

fn batch_of(tensors: Vec<candle_core::Tensor>, samples: usize) -> Option<Batch> {
    let [input, target] = <[candle_core::Tensor; 2]>::try_from(tensors).ok()?;
    Some(Batch { input, target, samples })
}
