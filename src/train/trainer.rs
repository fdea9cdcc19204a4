//! Steps and updates over a workload (to come).

use std::path::Path;
use std::time::Duration;

use super::TrainSpec;
use crate::data::Batch;
use crate::device::{DeviceSession, StepError};
use crate::model::Workload;

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
}

impl Trainer {
    /// Builds the optimizer state for every parameter, in name order.
    pub fn new(workload: Box<dyn Workload>, _spec: &TrainSpec) -> candle_core::Result<Self> {
        Ok(Self { workload })
    }

    /// One step: forward, loss, backward; the gradients are added to those since the last update.
    pub fn step(&mut self, _batch: &Batch, _session: &mut dyn DeviceSession) -> Result<MicroBatch, StepError> {
        unimplemented!()
    }

    /// The optimizer step over the mean of the accumulated gradients; drops them.
    pub fn update(&mut self, _session: &mut dyn DeviceSession) -> Result<Duration, StepError> {
        unimplemented!()
    }

    /// The loss without a graph.
    pub fn evaluate(&self, _batch: &Batch, _session: &mut dyn DeviceSession) -> Result<f64, StepError> {
        unimplemented!()
    }

    /// Names of the parameters that got no gradient in the first step; empty before it.
    pub fn unreached(&self) -> &[String] {
        &[]
    }

    /// Writes parameters and optimizer state as safetensors; returns the bytes written.
    pub fn checkpoint(&self, _path: &Path, _session: &mut dyn DeviceSession) -> Result<u64, StepError> {
        let _ = &self.workload;
        unimplemented!()
    }
}
