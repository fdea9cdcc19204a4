//! The virtual device (to come).

use super::{
    AllocatorKind, DeviceError, DeviceFacts, DeviceSession, LargestRequest, LimitSpec, MemorySample, Phase, PoolState,
    StepError,
};

/// To come.
#[derive(Debug)]
pub struct VirtualDevice {
    facts: DeviceFacts,
}

impl VirtualDevice {
    /// Open.
    pub fn open(_limit: LimitSpec, _allocator: AllocatorKind) -> Result<Self, DeviceError> {
        Err(DeviceError::AllocatorNotInstalled)
    }
}

impl DeviceSession for VirtualDevice {
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
    fn begin_phase(&mut self, _phase: Phase) {}
    fn end_phase(&mut self) -> Result<(), StepError> {
        Ok(())
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
    fn classify(&self, error: &candle_core::Error) -> StepError {
        StepError::Workload(error.to_string())
    }
}
