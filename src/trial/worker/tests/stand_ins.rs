//! A device whose memory is arithmetic, a trainer that follows a script, and batches that mean nothing.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use candle_core::Device;

use super::staging::FakeStager;
use crate::data::loader::Batches;
use crate::data::rules::Skipped;
use crate::data::{Batch, DataError, HostBatch, HostValues};
use crate::device::staging::Stager;
use crate::device::{DeviceFacts, DeviceSession, LargestRequest, StepError};
use crate::memory::{MemorySample, OutOfMemory, Phase, PoolState};
use crate::train::trainer::MicroBatch;
use crate::trial::spec::Point;
use crate::trial::worker::open::{Supplies, Training};

/// What the trainer and the device were asked to do, in order.
pub(super) type Calls = Rc<RefCell<Vec<String>>>;

/// A script: what goes wrong, and what there is to see.
#[derive(Clone, Debug, Default)]
pub(super) struct Script {
    /// An out-of-memory error at the end of this phase, counted over the trial.
    pub(super) out_of_memory: Option<(Phase, usize)>,
    /// A loss that is no number in this step.
    pub(super) no_number: Option<u32>,
    /// The update after which no scale of the loss helps.
    pub(super) lost_update: Option<u32>,
    /// A model with running statistics.
    pub(super) batch_norm: bool,
    /// The workload's own error in this step.
    pub(super) error: Option<u32>,
    /// A panic in this step.
    pub(super) panic: Option<u32>,
    /// A sticky device error in this step.
    pub(super) device_error: Option<u32>,
    /// Parameters without a gradient.
    pub(super) unreached: Vec<String>,
    /// Bytes that stay after the trial.
    pub(super) left_bytes: u64,
    /// Live bytes between steps.
    pub(super) live_bytes: u64,
    /// A checkpoint that cannot be written.
    pub(super) checkpoint_fails: bool,
    /// Every other update takes this long, so that its times never settle.
    pub(super) uneven: Duration,
    /// What the source of the batches takes for each.
    pub(super) slow_source: Duration,
    /// Samples that could not be read.
    pub(super) skipped: u64,
    /// The device copies batches beside the steps.
    pub(super) has_stager: bool,
    /// The run will write checkpoints.
    pub(super) has_checkpoints: bool,
}

pub(super) struct FakeSession {
    script: Script,
    facts: DeviceFacts,
    calls: Calls,
    phase: Option<Phase>,
    phases_ended: Vec<Phase>,
}

impl FakeSession {
    pub(super) fn new(script: &Script, calls: &Calls) -> Self {
        let (script, calls) = (script.clone(), Rc::clone(calls));
        Self { script, facts: facts(), calls, phase: None, phases_ended: Vec::new() }
    }

    fn note(&self, call: impl Into<String>) {
        self.calls.borrow_mut().push(call.into());
    }
}

impl DeviceSession for FakeSession {
    fn candle(&self) -> &Device {
        &Device::Cpu
    }
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }
    fn begin_trial(&mut self) -> Result<(), StepError> {
        self.phases_ended.clear();
        Ok(())
    }
    fn begin_probe(&mut self) -> Result<(), StepError> {
        self.note("begin without C");
        self.begin_trial()
    }
    fn begin_step(&mut self, step: u32) {
        self.note(format!("step {step}"));
    }
    fn begin_phase(&mut self, phase: Phase) {
        assert_eq!(self.phase, None, "a phase within a phase");
        self.phase = Some(phase);
    }
    fn end_phase(&mut self) -> Result<(), StepError> {
        let phase = self.phase.take().expect("a phase is open");
        self.note(format!("{phase:?}").to_lowercase());
        self.phases_ended.push(phase);
        let count = self.phases_ended.iter().filter(|ended| **ended == phase).count();
        if self.script.out_of_memory == Some((phase, count)) {
            return Err(StepError::OutOfMemory(OutOfMemory {
                requested_bytes: 5,
                allocated_bytes: 7,
                reserved_bytes: 8,
                limit_bytes: 10,
            }));
        }
        Ok(())
    }
    fn sample(&mut self, step: u32, largest: LargestRequest) -> MemorySample {
        self.note(format!("sample {step} {largest:?}"));
        MemorySample { step, peak_allocated_bytes: u64::from(step) + 1, ..MemorySample::default() }
    }
    fn state(&mut self) -> PoolState {
        PoolState { allocated_bytes: self.script.live_bytes, ..PoolState::default() }
    }
    fn trim(&mut self) {
        self.note("trim");
    }
    fn end_trial(&mut self) -> u64 {
        assert_eq!(self.phase, None, "the trial ended within a phase");
        self.note("end");
        self.script.left_bytes
    }
    fn set_event_sink(&mut self, sink: Option<crate::device::EventSink>) {
        self.note(if sink.is_some() { "sink" } else { "no sink" });
    }
    fn stager(&mut self) -> Result<Option<Box<dyn Stager>>, StepError> {
        let stager = || Box::new(FakeStager::new(Rc::clone(&self.calls))) as Box<dyn Stager>;
        Ok(self.script.has_stager.then(stager))
    }
    fn classify(&self, error: &candle_core::Error) -> StepError {
        StepError::Workload(error.to_string())
    }
}

fn facts() -> DeviceFacts {
    DeviceFacts {
        device: "cpu".to_owned(),
        name: "a stand-in".to_owned(),
        uuid: None,
        driver: None,
        total_bytes: 10,
        free_bytes: 10,
        external_bytes: 0,
        limit_bytes: 10,
        allocator: "native".to_owned(),
        alloc_conf: None,
        cpus: 1,
        hostname: "here".to_owned(),
    }
}

struct FakeTrainer {
    script: Script,
    steps: u32,
    updates: u32,
    calls: Calls,
    unreached: Vec<String>,
}

impl Drop for FakeTrainer {
    fn drop(&mut self) {
        self.calls.borrow_mut().push("dropped".to_owned());
    }
}

fn phase(session: &mut dyn DeviceSession, phase: Phase) -> Result<Duration, StepError> {
    session.begin_phase(phase);
    session.end_phase().map(|()| Duration::from_millis(1))
}

impl Training for FakeTrainer {
    fn step(&mut self, batch: &Batch, session: &mut dyn DeviceSession) -> Result<MicroBatch, StepError> {
        let step = Some(self.steps);
        self.steps += 1;
        assert_eq!(batch.samples, 4);
        let forward = phase(session, Phase::Forward)?;
        if self.script.panic == step {
            session.begin_phase(Phase::Backward);
            panic!("index {} out of range", 9);
        }
        if self.script.error == step {
            // As a model that fails half-way: the phase stays open.
            session.begin_phase(Phase::Backward);
            return Err(StepError::Workload("shape mismatch in matmul".to_owned()));
        }
        if self.script.device_error == step {
            return Err(StepError::Device("an illegal memory access".to_owned()));
        }
        let backward = phase(session, Phase::Backward)?;
        self.unreached.clone_from(&self.script.unreached);
        let loss = if self.script.no_number == step { f64::NAN } else { 1.0 / f64::from(self.steps) };
        Ok(MicroBatch { loss, forward, backward })
    }
    fn last_step(&mut self, batch: &Batch, session: &mut dyn DeviceSession) -> Result<MicroBatch, StepError> {
        self.step(batch, session)
    }
    fn update(&mut self, session: &mut dyn DeviceSession) -> Result<Duration, StepError> {
        self.updates += 1;
        std::thread::sleep(self.script.uneven * (self.updates % 2));
        phase(session, Phase::Optimizer)
    }
    fn evaluate(&self, _batch: &Batch, session: &mut dyn DeviceSession) -> Result<f64, StepError> {
        phase(session, Phase::Evaluation).map(|_| 0.25)
    }
    fn has_diverged(&self) -> bool {
        self.script.lost_update == Some(self.updates)
    }
    fn has_batch_norm(&self) -> bool {
        self.script.batch_norm
    }
    fn unreached(&self) -> &[String] {
        &self.unreached
    }
    fn rehearse_checkpoint(&self, session: &mut dyn DeviceSession) -> Result<u64, StepError> {
        phase(session, Phase::Checkpoint).map(|_| 64)
    }
    fn checkpoint(&self, path: &Path, session: &mut dyn DeviceSession) -> Result<u64, StepError> {
        fs::write(path, [0; 64]).map_err(|error| StepError::Workload(error.to_string()))?;
        if self.script.checkpoint_fails {
            return Err(StepError::Workload("No space left on device".to_owned()));
        }
        phase(session, Phase::Checkpoint).map(|_| 64)
    }
}

struct FakeBatches {
    samples: usize,
    skipped: u64,
    slow_source: Duration,
}

impl Batches for FakeBatches {
    fn next_batch(&mut self) -> Result<HostBatch, DataError> {
        std::thread::sleep(self.slow_source);
        Ok(HostBatch {
            input: HostValues::U32(vec![1; self.samples]),
            input_shape: vec![self.samples, 1],
            target: HostValues::U32(vec![2; self.samples]),
            target_shape: vec![self.samples, 1],
            samples: self.samples,
            ballast: Vec::new(),
        })
    }

    fn skipped(&self) -> Skipped {
        Skipped { samples: self.skipped, first: (self.skipped > 0).then(|| "`7.jpg` is empty".to_owned()) }
    }
}

pub(super) struct FakeSupplies {
    script: Script,
    calls: Calls,
}

impl FakeSupplies {
    pub(super) fn new(script: &Script, calls: &Calls) -> Self {
        Self { script: script.clone(), calls: Rc::clone(calls) }
    }

    fn batches(&self, point: &Point) -> Box<dyn Batches> {
        let Script { skipped, slow_source, .. } = self.script;
        Box::new(FakeBatches { samples: point.batch_size, skipped, slow_source })
    }
}

impl Supplies for FakeSupplies {
    fn build(&self, _point: &Point, _session: &dyn DeviceSession) -> Result<Box<dyn Training>, StepError> {
        let (script, calls) = (self.script.clone(), Rc::clone(&self.calls));
        Ok(Box::new(FakeTrainer { script, steps: 0, updates: 0, calls, unreached: Vec::new() }))
    }
    fn training_batches(&self, point: &Point) -> Box<dyn Batches> {
        self.batches(point)
    }
    fn training_samples(&self) -> usize {
        100
    }
    fn has_checkpoints(&self) -> bool {
        self.script.has_checkpoints
    }
    fn evaluation_batches(&self, point: &Point) -> Box<dyn Batches> {
        self.batches(point)
    }
}
