//! Steps and updates over a workload.
//!
//! The trainer brackets each part of a step in a phase of the device session, which records the memory of that part
//! and waits until the device has done it; so the times are those of finished work. It knows nothing of trials: how
//! many steps make an update, when to sample, and what a loss that is not finite means is its caller's business.

use std::path::Path;
use std::time::{Duration, Instant};

use candle_core::{DType, Tensor};

use super::TrainSpec;
use super::checkpoint::{self, CheckpointError};
use super::gradients::Gradients;
use super::optimizer::{self, Optimizer};
use crate::data::Batch;
use crate::device::{DeviceSession, StepError};
use crate::memory::Phase;
use crate::model::Workload;
use crate::text::with_causes;

/// What one micro-batch gave.
#[derive(Clone, Copy, Debug)]
pub struct MicroBatch {
    /// Mean loss.
    pub loss: f64,
    /// Time of the forward pass and the loss, device synchronised.
    pub forward: Duration,
    /// Time of the backward pass and the accumulation of gradients, device synchronised.
    pub backward: Duration,
}

/// A workload with its optimizer.
pub struct Trainer {
    workload: Box<dyn Workload>,
    optimizer: Box<dyn Optimizer>,
    gradients: Gradients,
    /// `None` before the first step.
    unreached: Option<Vec<String>>,
}

impl Trainer {
    /// Builds the optimizer state for every parameter, in name order.
    pub fn new(workload: Box<dyn Workload>, spec: &TrainSpec) -> candle_core::Result<Self> {
        let optimizer = optimizer::build(workload.parameters(), spec)?;
        Ok(Self { workload, optimizer, gradients: Gradients::default(), unreached: None })
    }

    /// The workload.
    pub fn workload(&self) -> &dyn Workload {
        self.workload.as_ref()
    }

    /// One step: forward, loss, backward; the gradients are added to those since the last update.
    pub fn step(&mut self, batch: &Batch, session: &mut dyn DeviceSession) -> Result<MicroBatch, StepError> {
        let (forward, (loss, value)) = in_phase(session, Phase::Forward, || {
            let loss = self.workload.loss(batch)?; // []
            let value = scalar(&loss)?; // []
            Ok((loss, value))
        })?;
        let parameters = self.workload.parameters();
        let gradients = &mut self.gradients;
        let (backward, ()) = in_phase(session, Phase::Backward, || {
            let store = loss.backward()?;
            // The graph goes before the gradients are summed: nobody needs its activations any more.
            drop(loss);
            gradients.add(parameters, store)
        })?;
        if self.unreached.is_none() {
            self.unreached = Some(self.gradients.unreached(self.workload.parameters()));
        }
        Ok(MicroBatch { loss: read(&value, session)?, forward, backward })
    }

    /// The optimizer step over the mean of the accumulated gradients; drops them. Without any it does nothing.
    pub fn update(&mut self, session: &mut dyn DeviceSession) -> Result<Duration, StepError> {
        if self.gradients.micro_batches() == 0 {
            return Ok(Duration::ZERO);
        }
        let (optimizer, gradients) = (&mut self.optimizer, &mut self.gradients);
        let (time, ()) = in_phase(session, Phase::Optimizer, || {
            optimizer.step(gradients)?;
            gradients.clear();
            Ok(())
        })?;
        Ok(time)
    }

    /// The loss of held-out data, without a graph where the workload can do without one.
    pub fn evaluate(&self, batch: &Batch, session: &mut dyn DeviceSession) -> Result<f64, StepError> {
        let (_, value) = in_phase(session, Phase::Evaluation, || scalar(&self.workload.evaluate(batch)?))?;
        read(&value, session)
    }

    /// Names of the parameters that got no gradient in the first step; empty before it.
    pub fn unreached(&self) -> &[String] {
        self.unreached.as_deref().unwrap_or_default()
    }

    /// Writes parameters and optimizer state as safetensors; returns the bytes written.
    pub fn checkpoint(&self, path: &Path, session: &mut dyn DeviceSession) -> Result<u64, StepError> {
        session.begin_phase(Phase::Checkpoint);
        let written = checkpoint::write(path, self.workload.parameters(), self.optimizer.as_ref());
        let ended = session.end_phase();
        if let Err(error @ StepError::OutOfMemory(_)) = ended {
            return Err(error);
        }
        let bytes = written.map_err(|error| match error {
            CheckpointError::Candle(error) => session.classify(&error),
            CheckpointError::Write { .. } => StepError::Workload(with_causes(&error)),
        })?;
        ended.map(|()| bytes)
    }
}

/// Runs `work` as a phase. A request that did not fit is the cause of whatever failed after it, and the end of the phase
/// knows its size; any other error of the work itself comes before one that the end of the phase reports.
fn in_phase<T>(
    session: &mut dyn DeviceSession,
    phase: Phase,
    work: impl FnOnce() -> candle_core::Result<T>,
) -> Result<(Duration, T), StepError> {
    let started = Instant::now();
    session.begin_phase(phase);
    let outcome = work();
    let ended = session.end_phase();
    let time = started.elapsed();
    if let Err(error @ StepError::OutOfMemory(_)) = ended {
        return Err(error);
    }
    let value = outcome.map_err(|error| session.classify(&error))?;
    ended.map(|()| (time, value))
}

/// The loss as an f32 without its graph. A workload of somebody's own may return anything.
fn scalar(loss: &Tensor) -> candle_core::Result<Tensor> {
    if loss.rank() != 0 {
        candle_core::bail!("the loss has shape {:?} and must be a scalar (hint: `mean_all`)", loss.shape());
    }
    loss.detach().to_dtype(DType::F32) // []
}

fn read(value: &Tensor, session: &dyn DeviceSession) -> Result<f64, StepError> {
    value.to_scalar::<f32>().map(f64::from).map_err(|error| session.classify(&error))
}

#[cfg(test)]
mod tests;
