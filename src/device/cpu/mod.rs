//! The virtual device: the CPU as a device with a memory of its own, so that everything runs without a GPU.
//!
//! The hook in the binary's global allocator ([`TensorAllocator`]) sees every tensor that the training thread makes
//! within a phase. At the end of a phase those events are played to an exact model of a caching allocator
//! ([`Policy`](crate::memory::Policy)) with limit C over addresses of its own making, whose figures are the device's.
//! The tensors themselves live in ordinary memory, so a request over the limit does not fail where it is made: the end
//! of the phase reports it. Only a process that is far over C (by half of it, and by 256 MiB at least, or by less where
//! the host has no more) leaves at once, with [`exit_status::FAR_OVER_LIMIT`](crate::trial::exit_status::FAR_OVER_LIMIT), so as not to harm the host.
//!
//! What it does not see: memory of rayon's threads, gemm's scratch, element types of other alignments (f64, u8), and
//! batches that a loader thread has built. The whole process is about 2 MB above the recorded figures.
//!
//! Mode, live bytes and limit are the process's, so there is one session at a time.

use std::marker::PhantomData;
use std::path::Path;

use super::{
    AllocatorKind, DeviceChoice, DeviceError, DeviceFacts, DeviceSession, EventSink, LargestRequest, LimitSpec,
    MemorySample, Phase, PoolState, StepError, facts,
};
use crate::memory::{Event, Mark, Player, policy};
use crate::units::{Bytes, MIB};

mod allocator;
mod claim;
mod recorder;

#[cfg(test)]
mod tests;

pub use allocator::{TensorAllocator, installed, leave_where_memory_is_refused};

/// Live bytes may pass the limit by half of it, and by this much at least, before the process leaves.
const FAR_OVER_MARGIN_BYTES: u64 = 256 * MIB;

/// An open virtual device.
pub struct VirtualDevice {
    candle: candle_core::Device,
    facts: DeviceFacts,
    allocator: AllocatorKind,
    player: Player,
    sink: Option<EventSink>,
    _claim: claim::Claim,
    /// Recording follows the thread, so the session stays on it.
    _thread: PhantomData<*const ()>,
}

impl VirtualDevice {
    /// Opens the device with a limit on what tensors may use and the allocator that it is to have.
    pub fn open(limit: LimitSpec, allocator: AllocatorKind) -> Result<Self, DeviceError> {
        let host = facts::memory(Path::new("/"));
        let limit_bytes = limit_bytes(limit, host)?;
        let policy = policy::build(allocator, limit_bytes);
        if !installed() {
            return Err(DeviceError::AllocatorNotInstalled);
        }
        let claim = claim::Claim::take()?;
        let own = if allocator == AllocatorKind::Auto { AllocatorKind::Native } else { allocator };
        Ok(Self {
            candle: candle_core::Device::Cpu,
            facts: cpu_facts(host, limit_bytes, own),
            allocator: own,
            player: Player::new(policy),
            sink: None,
            _claim: claim,
            _thread: PhantomData,
        })
    }

    /// Starts a trial with a limit of its own.
    fn begin_under(&mut self, limit_bytes: u64) {
        self.player = Player::new(policy::build(self.allocator, limit_bytes));
        recorder::begin_trial(ceiling_bytes(limit_bytes, self.facts.free_bytes));
    }

    /// Plays what the hook has recorded since the last call.
    fn drain(&mut self) -> Result<(), StepError> {
        let window = recorder::take_window();
        self.play(&window.events);
        if window.overflowed {
            return Err(StepError::Workload("one phase made more allocations than can be recorded".to_owned()));
        }
        Ok(())
    }

    fn play(&mut self, events: &[Event]) {
        self.player.play_all(events);
        if let Some(sink) = &mut self.sink
            && !events.is_empty()
        {
            sink(events);
        }
    }

    /// Marks a point between events. What the hook has seen so far comes before it; frees alone can have come since
    /// the last phase, so nothing is lost if there were too many.
    fn mark(&mut self, mark: Mark) {
        let _ = self.drain();
        self.play(&[Event::Mark(mark)]);
    }
}

impl DeviceSession for VirtualDevice {
    fn candle(&self) -> &candle_core::Device {
        &self.candle
    }

    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn begin_trial(&mut self) -> Result<(), StepError> {
        self.begin_under(self.facts.limit_bytes);
        Ok(())
    }

    fn begin_probe(&mut self) -> Result<(), StepError> {
        self.begin_under(self.facts.free_bytes.max(self.facts.limit_bytes));
        Ok(())
    }

    fn begin_step(&mut self, step: u32) {
        self.mark(Mark::Step(step));
    }

    fn begin_phase(&mut self, phase: Phase) {
        self.mark(Mark::Phase(phase));
        recorder::set_recording(true);
    }

    fn end_phase(&mut self) -> Result<(), StepError> {
        recorder::set_recording(false);
        self.drain()?;
        match self.player.take_overrun() {
            Some(overrun) => Err(overrun.error.into()),
            None => Ok(()),
        }
    }

    fn sample(&mut self, step: u32, _largest: LargestRequest) -> MemorySample {
        let state = self.state();
        let largest_request_bytes = self.player.largest_request_bytes();
        self.player.start_window();
        MemorySample { largest_request_bytes, ..MemorySample::of(step, &state) }
    }

    fn state(&mut self) -> PoolState {
        // Between phases only frees are recorded; see `mark`.
        let _ = self.drain();
        self.player.state()
    }

    fn trim(&mut self) {
        self.mark(Mark::Trim);
    }

    fn lower_limit(&mut self, limit_bytes: u64) {
        self.facts.limit_bytes = self.facts.limit_bytes.min(limit_bytes);
    }

    fn end_trial(&mut self) -> u64 {
        recorder::set_recording(false);
        let _ = self.drain();
        let live_bytes = recorder::live_bytes();
        recorder::end_trial();
        live_bytes
    }

    fn set_event_sink(&mut self, sink: Option<EventSink>) {
        self.sink = sink;
    }

    fn classify(&self, error: &candle_core::Error) -> StepError {
        // The CPU has no errors of its own: candle's are about shapes, types and missing operations.
        StepError::Workload(plain(error))
    }
}

impl Drop for VirtualDevice {
    fn drop(&mut self) {
        recorder::end_trial();
    }
}

/// What candle says, without the backtrace it may carry.
fn plain(error: &candle_core::Error) -> String {
    match error {
        candle_core::Error::WithBacktrace { inner, .. } => plain(inner),
        other => other.to_string(),
    }
}

/// What the host is as a device, without opening it: for a program of the user's own, which accounts for itself.
pub fn facts_of_host(limit: LimitSpec) -> Result<DeviceFacts, DeviceError> {
    let host = facts::memory(Path::new("/"));
    Ok(cpu_facts(host, limit_bytes(limit, host)?, AllocatorKind::Native))
}

/// C. A limit that the host cannot give is refused.
fn limit_bytes(limit: LimitSpec, host: facts::HostMemory) -> Result<u64, DeviceError> {
    let limit_bytes = match limit {
        LimitSpec::Auto => host.available_bytes / 2,
        LimitSpec::Fraction(share) => share.of(host.total_bytes),
        LimitSpec::Bytes(bytes) => bytes.0,
    };
    if limit_bytes > host.available_bytes {
        return Err(DeviceError::LimitTooLarge {
            limit: Bytes(limit_bytes),
            total: Bytes(host.total_bytes),
            external: Bytes(host.total_bytes - host.available_bytes),
        });
    }
    Ok(limit_bytes)
}

/// The live bytes above which the process leaves at once. A small overshoot is an out-of-memory outcome that the end of
/// the phase reports; a large one, or one that the host cannot carry, would end in the kernel's hands.
fn ceiling_bytes(limit_bytes: u64, available_bytes: u64) -> u64 {
    let far_over = limit_bytes.saturating_add((limit_bytes / 2).max(FAR_OVER_MARGIN_BYTES));
    far_over.min(available_bytes.max(limit_bytes))
}

fn cpu_facts(host: facts::HostMemory, limit_bytes: u64, allocator: AllocatorKind) -> DeviceFacts {
    let root = Path::new("/");
    DeviceFacts {
        device: DeviceChoice::Cpu.to_string(),
        name: facts::processor_name(root),
        uuid: None,
        driver: None,
        total_bytes: host.total_bytes,
        free_bytes: host.available_bytes,
        external_bytes: host.total_bytes - host.available_bytes,
        limit_bytes,
        allocator: allocator.to_string(),
        alloc_conf: None,
        cpus: facts::cpus(root),
        hostname: facts::hostname(root),
    }
}
