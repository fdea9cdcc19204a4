//! A device session without instruments, for tests of the train room.

use crate::device::{DeviceFacts, DeviceSession, EventSink, LargestRequest, StepError};
use crate::memory::{MemorySample, Phase, PoolState};

/// The plain CPU. Keeps the phases that were begun and whether each was ended.
#[derive(Debug)]
pub(crate) struct PlainCpu {
    facts: DeviceFacts,
    /// The phases so far, in order.
    pub(crate) phases: Vec<Phase>,
    /// The phase that is open now.
    pub(crate) open: Option<Phase>,
    /// What the next `end_phase` reports.
    pub(crate) failure: Option<StepError>,
}

impl Default for PlainCpu {
    fn default() -> Self {
        let facts = DeviceFacts {
            device: "cpu".to_owned(),
            name: "plain".to_owned(),
            uuid: None,
            driver: None,
            total_bytes: 1 << 30,
            free_bytes: 1 << 30,
            external_bytes: 0,
            limit_bytes: 1 << 30,
            allocator: "system".to_owned(),
            alloc_conf: None,
            cpus: 1,
            hostname: "test".to_owned(),
        };
        Self { facts, phases: Vec::new(), open: None, failure: None }
    }
}

impl DeviceSession for PlainCpu {
    fn candle(&self) -> &candle_core::Device {
        &candle_core::Device::Cpu
    }
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }
    fn begin_trial(&mut self) -> Result<(), StepError> {
        Ok(())
    }
    fn begin_step(&mut self, _step: u32) {}
    fn begin_phase(&mut self, phase: Phase) {
        assert_eq!(self.open, None, "{phase:?} begins within another phase");
        self.open = Some(phase);
        self.phases.push(phase);
    }
    fn end_phase(&mut self) -> Result<(), StepError> {
        assert!(self.open.take().is_some(), "a phase ends that never began");
        self.failure.take().map_or(Ok(()), Err)
    }
    fn sample(&mut self, _step: u32, _largest: LargestRequest) -> MemorySample {
        MemorySample::default()
    }
    fn state(&mut self) -> PoolState {
        PoolState::default()
    }
    fn trim(&mut self) {}
    fn end_trial(&mut self) -> u64 {
        0
    }
    fn set_event_sink(&mut self, _sink: Option<EventSink>) {}
    fn classify(&self, error: &candle_core::Error) -> StepError {
        StepError::Workload(error.to_string())
    }
}
