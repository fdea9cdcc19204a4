//! Steps and updates over a workload.
//!
//! The trainer brackets each part of a step in a phase of the device session, which records the memory of that part
//! and waits until the device has done it; so the times are those of finished work. It knows nothing of trials: how
//! many steps make an update, when to sample, and what a loss that is not finite means is its caller's business.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::{DType, Tensor};

use super::checkpoint::{self, CheckpointError, Contents};
use super::gradients::Gradients;
use super::loss_scale::LossScale;
use super::optimizer::{self, Optimizer};
use super::recompute::{Follow, Recomputed};
use super::replicas::{Replicas, Turn};
use super::{GradientCheckpointing, TrainSpec};
use crate::data::Batch;
use crate::device::collective::Collective;
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
    checkpointing: GradientCheckpointing,
    /// `None` where gradients have the range of f32.
    loss_scale: Option<LossScale>,
    /// `None` before the first step.
    unreached: Option<Vec<String>>,
    /// `None` where this is the only replica.
    replicas: Option<Replicas>,
}

impl Trainer {
    /// Builds the optimizer state for every parameter, in name order.
    pub fn new(workload: Box<dyn Workload>, spec: &TrainSpec) -> candle_core::Result<Self> {
        let optimizer = optimizer::build(workload.parameters(), spec)?;
        let loss_scale = (spec.precision.compute_dtype() == DType::F16).then(LossScale::default);
        let mut gradients = Gradients::default();
        if let Some(loss_scale) = loss_scale {
            gradients.scale_losses_by(loss_scale.scale());
        }
        let checkpointing = spec.gradient_checkpointing;
        Ok(Self { workload, optimizer, gradients, checkpointing, loss_scale, unreached: None, replicas: None })
    }

    /// The same as one replica of a group, from the parameters of rank 0 on. What is averaged over the group are the
    /// gradients, in [`update`](Self::update).
    pub fn in_group(mut self, group: Arc<dyn Collective>) -> candle_core::Result<Self> {
        self.replicas = Some(Replicas::align(group, self.workload.as_ref())?);
        Ok(self)
    }

    /// The workload.
    pub fn workload(&self) -> &dyn Workload {
        self.workload.as_ref()
    }

    /// The gradients since the last update. Between [`last_step`](Self::last_step) and the update some may be on their way.
    pub fn gradients(&self) -> &Gradients {
        &self.gradients
    }

    #[cfg(test)]
    pub(super) fn gradients_mut(&mut self) -> &mut Gradients {
        &mut self.gradients
    }

    #[cfg(test)]
    pub(super) fn replicas_mut(&mut self) -> Option<&mut Replicas> {
        self.replicas.as_mut()
    }

    /// One step: forward, loss, backward; the gradients are added to those since the last update.
    pub fn step(&mut self, batch: &Batch, session: &mut dyn DeviceSession) -> Result<MicroBatch, StepError> {
        let result = self.micro_batch(batch, Turn::Earlier, session);
        self.or_lost(result)
    }

    /// The same for the last step of an update. Where segments are recomputed, replicas begin to exchange their gradients
    /// while its backward pass goes on.
    pub fn last_step(&mut self, batch: &Batch, session: &mut dyn DeviceSession) -> Result<MicroBatch, StepError> {
        let result = self.micro_batch(batch, Turn::Last, session);
        self.or_lost(result)
    }

    fn micro_batch(
        &mut self,
        batch: &Batch,
        turn: Turn,
        session: &mut dyn DeviceSession,
    ) -> Result<MicroBatch, StepError> {
        let (workload, gradients) = (self.workload.as_ref(), &mut self.gradients);
        let replicas = self.replicas.as_mut();
        let (forward, (pass, value)) = in_phase(session, Phase::Forward, || {
            let pass = Pass::forward(workload, batch, self.checkpointing)?;
            let value = scalar(pass.loss())?; // []
            Ok((pass, value))
        })?;
        let (backward, ()) = in_phase(session, Phase::Backward, || {
            let follow = || replicas.and_then(|replicas| replicas.follower(turn));
            pass.backward(workload, gradients, follow)
        })?;
        if self.unreached.is_none() {
            self.unreached = Some(self.gradients.unreached(self.workload.parameters()));
        }
        Ok(MicroBatch { loss: read(&value, session)?, forward, backward })
    }

    /// The optimizer step over the mean of the accumulated gradients, and of those of all replicas; drops them. Without any
    /// it does nothing. Where losses are scaled and a gradient is not finite, the step is skipped and the scale lowered.
    pub fn update(&mut self, session: &mut dyn DeviceSession) -> Result<Duration, StepError> {
        let micro_batches = self.gradients.micro_batches();
        if micro_batches == 0 {
            return Ok(Duration::ZERO);
        }
        let result = self.optimizer_step(session);
        let time = self.or_lost(result)?;
        if let Some(replicas) = &mut self.replicas {
            let compared = replicas.updated(micro_batches, self.workload.as_ref());
            self.or_lost(compared.map_err(|error| session.classify(&error)))?;
        }
        Ok(time)
    }

    fn optimizer_step(&mut self, session: &mut dyn DeviceSession) -> Result<Duration, StepError> {
        let (optimizer, gradients, loss_scale) = (&mut self.optimizer, &mut self.gradients, &mut self.loss_scale);
        let replicas = self.replicas.as_mut();
        let (time, ()) = in_phase(session, Phase::Optimizer, || {
            // A gradient that is not finite on one replica is so in the mean, so all of them skip the step or none does.
            if let Some(replicas) = replicas {
                replicas.average(gradients)?;
            }
            let is_good = loss_scale.is_none() || gradients.are_finite()?;
            if is_good {
                optimizer.step(gradients)?;
            }
            gradients.clear();
            if let Some(loss_scale) = loss_scale {
                loss_scale.tell(is_good);
                gradients.scale_losses_by(loss_scale.scale());
            }
            Ok(())
        })?;
        Ok(time)
    }

    /// Where the group has ended, that is what is told: whatever else failed did so because of it, a request that did not
    /// fit excepted. Some devices notice only after an operation that it seemed to succeed in.
    fn or_lost<T>(&self, result: Result<T, StepError>) -> Result<T, StepError> {
        match (self.replicas.as_ref().and_then(Replicas::failure), result) {
            (Some(failure), Ok(_)) => Err(failure.into()),
            (Some(failure), Err(error)) if !matches!(error, StepError::OutOfMemory(_)) => Err(failure.into()),
            (_, result) => result,
        }
    }

    /// Whether gradients are not finite at any scale of the loss, though the loss may be.
    pub fn has_diverged(&self) -> bool {
        self.loss_scale.is_some_and(LossScale::is_lost)
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

    /// Writes parameters, buffers and optimizer state as safetensors; returns the bytes written.
    pub fn checkpoint(&self, path: &Path, session: &mut dyn DeviceSession) -> Result<u64, StepError> {
        in_checkpoint(session, || checkpoint::write(path, &Contents::of(self.workload(), self.optimizer.as_ref())))
    }

    /// Does on the device what a checkpoint does there, and writes no file. Returns the bytes that one would have.
    pub fn rehearse_checkpoint(&self, session: &mut dyn DeviceSession) -> Result<u64, StepError> {
        in_checkpoint(session, || checkpoint::rehearse(&Contents::of(self.workload(), self.optimizer.as_ref())))
    }
}

fn in_checkpoint(
    session: &mut dyn DeviceSession,
    write: impl FnOnce() -> Result<u64, CheckpointError>,
) -> Result<u64, StepError> {
    session.begin_phase(Phase::Checkpoint);
    let written = write();
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

/// A forward pass that waits for its backward pass.
enum Pass<'a> {
    /// The loss with the whole graph.
    Whole(Tensor),
    /// With that of the last segment.
    Recomputed(Recomputed<'a>),
}

impl<'a> Pass<'a> {
    fn forward(
        workload: &'a dyn Workload,
        batch: &'a Batch,
        checkpointing: GradientCheckpointing,
    ) -> candle_core::Result<Self> {
        match checkpointing {
            GradientCheckpointing::Blocks => Recomputed::forward(workload, batch).map(Self::Recomputed),
            // What is still to be decided is not decided here.
            GradientCheckpointing::None | GradientCheckpointing::Auto => workload.loss(batch).map(Self::Whole),
        }
    }

    fn loss(&self) -> &Tensor {
        match self {
            Self::Whole(loss) => loss,
            Self::Recomputed(pass) => pass.loss(),
        }
    }

    /// The backward pass, and who is to follow it where it goes from segment to segment.
    fn backward<'f>(
        self,
        workload: &dyn Workload,
        gradients: &mut Gradients,
        follower: impl FnOnce() -> Option<Box<dyn Follow + 'f>>,
    ) -> candle_core::Result<()> {
        match self {
            Self::Whole(loss) => {
                let root = gradients.scaled(&loss)?; // []
                drop(loss);
                let store = root.backward()?;
                // The graph goes before the gradients are summed: nobody needs its activations any more.
                drop(root);
                gradients.add(workload.parameters(), store)
            }
            Self::Recomputed(pass) => match follower() {
                Some(mut follower) => pass.backward(gradients, Some(follower.as_mut())),
                None => pass.backward(gradients, None),
            },
        }
    }
}

/// Runs `work` as a phase. A request that did not fit is the cause of whatever failed after it, and the end of the phase
/// knows its size; any other error of the work itself comes before one that the end of the phase reports.
pub(crate) fn in_phase<T>(
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
