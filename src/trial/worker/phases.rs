//! A device session that remembers the phase, so that a failure can be told with the place where it happened.

use crate::device::staging::Stager;
use crate::device::{DeviceFacts, DeviceSession, EventSink, LargestRequest, StepError};
use crate::memory::{MemorySample, Phase, PoolState};

/// A session seen through: every call goes to the one inside.
pub(super) struct Phases<'a> {
    inner: &'a mut dyn DeviceSession,
    last: Option<Phase>,
    open: bool,
}

impl<'a> Phases<'a> {
    pub(super) fn new(inner: &'a mut dyn DeviceSession) -> Self {
        Self { inner, last: None, open: false }
    }

    /// The phase that began last, whether or not it has ended.
    pub(super) fn last(&self) -> Option<Phase> {
        self.last
    }

    /// Ends a phase that a failure left open, so that the device does not go on recording.
    pub(super) fn close(&mut self) {
        if self.open {
            // The failure that left it open is the one to be told.
            let _ = self.end_phase();
        }
    }
}

impl DeviceSession for Phases<'_> {
    fn candle(&self) -> &candle_core::Device {
        self.inner.candle()
    }

    fn facts(&self) -> &DeviceFacts {
        self.inner.facts()
    }

    fn begin_trial(&mut self) -> Result<(), StepError> {
        self.inner.begin_trial()
    }

    fn begin_probe(&mut self) -> Result<(), StepError> {
        self.inner.begin_probe()
    }

    fn begin_step(&mut self, step: u32) {
        self.inner.begin_step(step);
    }

    fn begin_phase(&mut self, phase: Phase) {
        self.last = Some(phase);
        self.open = true;
        self.inner.begin_phase(phase);
    }

    fn end_phase(&mut self) -> Result<(), StepError> {
        self.open = false;
        self.inner.end_phase()
    }

    fn sample(&mut self, step: u32, largest: LargestRequest) -> MemorySample {
        self.inner.sample(step, largest)
    }

    fn state(&mut self) -> PoolState {
        self.inner.state()
    }

    fn trim(&mut self) {
        self.inner.trim();
    }

    fn lower_limit(&mut self, limit_bytes: u64) {
        self.inner.lower_limit(limit_bytes);
    }

    fn end_trial(&mut self) -> u64 {
        self.inner.end_trial()
    }

    fn set_event_sink(&mut self, sink: Option<EventSink>) {
        self.inner.set_event_sink(sink);
    }

    fn stager(&mut self) -> Result<Option<Box<dyn Stager>>, StepError> {
        self.inner.stager()
    }

    fn classify(&self, error: &candle_core::Error) -> StepError {
        self.inner.classify(error)
    }
}
