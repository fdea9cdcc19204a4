//! A CUDA device open for tuning.

use std::path::Path;
use std::sync::Arc;

use candle_core::Device;
use cudarc::driver::{CudaContext, CudaStream, DriverError};

use super::card::Card;
use super::claim::Claim;
use super::classify::{self, Cause};
use super::pool::{Pool, PoolFigures};
use super::staging::CudaStager;
use super::{context, current_pool, driver_error, hook, kernels};
use crate::device::limit;
use crate::device::staging::Stager;
use crate::device::{
    AllocatorKind, DeviceChoice, DeviceError, DeviceFacts, DeviceSession, EventSink, LargestRequest, LimitSpec,
    MemorySample, Phase, PoolState, StepError, facts,
};
use crate::memory::shadow::Shadow;
use crate::memory::{Event, Mark, OutOfMemory, Rates, policy};
use crate::units::{Bytes, MIB};

/// The most events between two steps that are kept: 128 MiB of them, some hundred steps of a large model.
const RECORDING_EVENTS: usize = 1 << 22;
/// A device is as clean as before while it holds no more than this.
const BASELINE_BYTES: u64 = 8 * MIB;
/// The size of the self-check's block: nothing that a pool would round to.
const SELF_CHECK_BYTES: usize = 3 * 1024 * 1024 + 7;

/// An open CUDA device: candle's, on our pool, behind our hook.
///
/// After a [`StepError::Device`] its process is of no further use, and must be left by the shortest way (killed, or
/// `abort`): the driver's own clean-up may hang in it.
///
/// It stays on its thread. candle launches everything on the calling thread's default stream, so a tensor made on
/// another thread belongs to another stream; and cudarc's own bookkeeping of streams, which makes two events for every
/// allocation, is off (see [`open`](Self::open)).
/// What goes on beside it has a [stream of its own](super::side_stream), ordered against the first by whoever uses it.
pub struct CudaSession {
    candle: Device,
    stream: Arc<CudaStream>,
    context: Arc<CudaContext>,
    facts: DeviceFacts,
    card: Card,
    planned: AllocatorKind,
    shadow: Option<Shadow>,
    sink: Option<EventSink>,
    unreleasable_bytes: u64,
    pool: Pool,
    _claim: Claim,
}

impl CudaSession {
    /// Opens the device with CUDA's index `ordinal`.
    ///
    /// On a machine's first start this takes as long as the driver needs to compile candle's kernels.
    pub fn open(ordinal: usize, limit: LimitSpec, allocator: AllocatorKind) -> Result<Self, DeviceError> {
        let device = DeviceChoice::Cuda(ordinal);
        let claim = Claim::session(ordinal)?;
        let context = context(ordinal)?;
        let candle = Device::new_cuda(ordinal).map_err(|source| open_error(device, source))?;
        let cuda = candle.as_cuda_device().map_err(|source| open_error(device, source))?;
        // SAFETY: cudarc's events order the uses of a slice across several streams. Here all work is launched, and
        // all tensors are made and dropped, on the training thread, whose default stream is the only one that cudarc
        // knows: candle's device has no other, and the loader's threads hand over host memory only. The streams
        // beside it, for copies of batches and for exchanges between cards, are made past cudarc and ordered by events of
        // their own (`side_stream`). cudarc itself records no event either way until somebody asks its context for a second stream
        // (`is_in_multi_stream_mode`), so nothing that held with tracking on is lost; what goes is the making and
        // destroying of two events for every tensor.
        unsafe { cuda.disable_event_tracking() };
        let stream = cuda.cuda_stream();
        kernels::load(&candle).map_err(|source| open_error(device, source))?;
        let card = Card::new(Arc::clone(&context))?;
        let memory = card.wait_for_limit(limit)?;
        let limit_bytes = limit::resolve(limit, memory);
        limit::check(limit_bytes, memory)?;
        let shadow = shadow_of(allocator, limit_bytes)?;
        let pool = current_pool(Arc::clone(&context), limit_bytes)?;
        self_check(&stream, &pool)?;
        let memory = card.memory()?;
        let facts = DeviceFacts {
            device: device.to_string(),
            name: context.name().map_err(driver_error("ask for the card's name"))?,
            uuid: Some(card.uuid().to_owned()),
            driver: Some(card.driver()?),
            total_bytes: memory.total_bytes,
            free_bytes: memory.free_bytes,
            external_bytes: memory.external_bytes(),
            limit_bytes,
            allocator: AllocatorKind::CudaMallocAsync.to_string(),
            alloc_conf: None,
            cpus: facts::cpus(Path::new("/")),
            hostname: facts::hostname(Path::new("/")),
        };
        let mut session = Self {
            candle,
            stream,
            context,
            facts,
            card,
            planned: allocator,
            shadow,
            sink: None,
            unreleasable_bytes: 0,
            pool,
            _claim: claim,
        };
        session.trim();
        session.refresh_external();
        Ok(session)
    }

    /// The pool that candle's tensors are in.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Hands what was recorded to whoever wants it. Called between steps, where nothing is timed.
    fn pump(&mut self) {
        if self.sink.is_none() && self.shadow.is_none() {
            return;
        }
        let recording = hook::drain();
        if recording.dropped > 0 {
            tracing::warn!("{} memory events were not recorded: too many in one step", recording.dropped);
        }
        if let Some(sink) = &mut self.sink
            && !recording.events.is_empty()
        {
            sink(&recording.events);
        }
        if let Some(shadow) = &self.shadow {
            shadow.play(&recording.events);
        }
    }

    /// Records from here on if anybody wants events.
    fn restart_recording(&mut self) {
        if self.sink.is_some() || self.shadow.is_some() {
            hook::record(RECORDING_EVENTS);
        } else {
            hook::stop_recording();
        }
    }

    /// The pool's figures; zeros on a context that is beyond use, which the end of the phase reports.
    fn figures(&self) -> PoolFigures {
        self.pool.figures().unwrap_or_default()
    }

    fn start_window(&mut self) {
        hook::start_window();
        if let Err(error) = self.pool.start_window() {
            tracing::debug!(%error, "the pool's marks were not reset");
        }
    }

    fn pool_state(&self, largest_satisfiable_bytes: u64) -> PoolState {
        let (counts, figures) = (hook::counts(), self.figures());
        PoolState {
            allocated_bytes: counts.live_bytes,
            requested_bytes: counts.live_bytes,
            reserved_bytes: figures.reserved_bytes,
            limit_bytes: self.pool.limit_bytes(),
            peak_allocated_bytes: counts.peak_bytes,
            peak_reserved_bytes: figures.peak_reserved_bytes,
            // The driver remaps pages, so what it holds free can serve as one block.
            largest_free_bytes: figures.reserved_bytes.saturating_sub(figures.used_bytes),
            largest_satisfiable_bytes,
            unreleasable_bytes: self.unreleasable_bytes,
            allocated_blocks: counts.live_blocks,
            ..PoolState::default()
        }
    }

    /// C − A: what could be had if nothing were in pieces.
    fn free_bytes(&self) -> u64 {
        self.pool.limit_bytes().saturating_sub(hook::counts().live_bytes)
    }

    fn probe(&mut self) -> Option<u64> {
        self.pool
            .largest_satisfiable(&self.stream, self.free_bytes())
            .inspect_err(|error| tracing::warn!(%error, "the largest satisfiable request could not be probed"))
            .ok()
    }

    /// Makes the pool one with this limit. The driver fixes a pool's limit when it is made, so another limit takes
    /// another pool.
    fn set_pool_limit(&mut self, limit_bytes: u64) -> Result<(), StepError> {
        if self.pool.limit_bytes() == limit_bytes {
            return Ok(());
        }
        let pool = Pool::create(Arc::clone(&self.context), limit_bytes).map_err(Self::device_error)?;
        // Dropping the old one makes the device's default pool current, so the new one comes after it.
        drop(std::mem::replace(&mut self.pool, pool));
        self.pool.make_current().map_err(Self::device_error)
    }

    /// What a pool could hold beside everything that is on the card already.
    fn room_bytes(&self) -> u64 {
        let free_bytes = self.card.memory().map_or(0, |memory| memory.free_bytes);
        free_bytes.saturating_add(self.figures().reserved_bytes).saturating_sub(limit::DEFAULT_RESERVE_BYTES)
    }

    /// Starts a trial under a limit of its own.
    fn begin_under(&mut self, limit_bytes: u64) -> Result<(), StepError> {
        self.stream.synchronize().map_err(Self::device_error)?;
        self.trim();
        let live_bytes = hook::counts().live_bytes;
        if live_bytes > BASELINE_BYTES {
            let live = Bytes(live_bytes);
            return Err(StepError::Device(format!("{live} of tensors are left over from before the trial")));
        }
        self.set_pool_limit(limit_bytes)?;
        self.card.wait_for_room(self.facts.limit_bytes, self.figures().reserved_bytes).map_err(StepError::Device)?;
        self.refresh_external();
        // A fresh one, with nothing allocated.
        self.shadow = shadow_of(self.planned, limit_bytes).map_err(|error| StepError::Device(error.to_string()))?;
        self.restart_recording();
        self.start_window();
        hook::take_failure();
        Ok(())
    }

    fn out_of_memory(&self) -> OutOfMemory {
        let failure = hook::failure();
        OutOfMemory {
            // A library's own request (a cuBLAS workspace) does not pass the hook; its size is not known.
            requested_bytes: failure.map_or(0, |failure| failure.bytes),
            allocated_bytes: failure.map_or_else(|| hook::counts().live_bytes, |failure| failure.live_bytes),
            reserved_bytes: self.figures().reserved_bytes,
            limit_bytes: self.pool.limit_bytes(),
        }
    }

    fn device_error(error: DriverError) -> StepError {
        StepError::Device(error.to_string())
    }

    fn refresh_external(&mut self) {
        if let Ok(memory) = self.card.memory() {
            self.facts.external_bytes = memory.external_bytes().saturating_sub(self.figures().reserved_bytes);
        }
    }
}

impl DeviceSession for CudaSession {
    fn candle(&self) -> &Device {
        &self.candle
    }

    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn begin_trial(&mut self) -> Result<(), StepError> {
        self.begin_under(self.facts.limit_bytes)
    }

    fn begin_probe(&mut self) -> Result<(), StepError> {
        self.begin_under(self.room_bytes().max(self.facts.limit_bytes))
    }

    fn begin_step(&mut self, step: u32) {
        self.pump();
        hook::mark(Mark::Step(step));
    }

    fn begin_phase(&mut self, phase: Phase) {
        hook::take_failure();
        hook::mark(Mark::Phase(phase));
    }

    fn end_phase(&mut self) -> Result<(), StepError> {
        if let Err(error) = self.candle.synchronize() {
            return Err(self.classify(&error));
        }
        if hook::failure().is_some() {
            let error = self.out_of_memory();
            hook::take_failure();
            return Err(error.into());
        }
        match self.shadow.as_ref().and_then(Shadow::take_overrun) {
            Some(overrun) => Err(overrun.error.into()),
            None => Ok(()),
        }
    }

    fn sample(&mut self, step: u32, largest: LargestRequest) -> MemorySample {
        self.pump();
        let (counts, estimate) = (hook::counts(), self.free_bytes());
        // The figures come first: a probe raises the pool's marks.
        let mut state = self.pool_state(estimate);
        let probed = if largest == LargestRequest::Probe { self.probe() } else { None };
        state.largest_satisfiable_bytes = probed.unwrap_or(estimate);
        self.start_window();
        MemorySample {
            largest_satisfiable_estimated: probed.is_none(),
            largest_request_bytes: counts.largest_request_bytes,
            shadow: self.shadow.as_ref().and_then(Shadow::sample).map(|sample| Rates::of(&sample.state)),
            ..MemorySample::of(step, &state)
        }
    }

    fn state(&mut self) -> PoolState {
        self.pump();
        self.pool_state(self.free_bytes())
    }

    fn trim(&mut self) {
        self.pump();
        // Blocks whose free is still in the stream cannot be handed back.
        if let Err(error) = self.stream.synchronize().and_then(|()| self.pool.trim(0)) {
            tracing::warn!(%error, "the memory pool was not trimmed");
        }
        let figures = self.figures();
        self.unreleasable_bytes = figures.reserved_bytes.saturating_sub(figures.used_bytes);
        if let Some(shadow) = &self.shadow {
            shadow.play(&[Event::Mark(Mark::Trim)]);
        }
    }

    fn lower_limit(&mut self, limit_bytes: u64) {
        self.facts.limit_bytes = self.facts.limit_bytes.min(limit_bytes);
    }

    fn end_trial(&mut self) -> u64 {
        self.trim();
        hook::stop_recording();
        self.start_window();
        hook::take_failure();
        self.refresh_external();
        let held_bytes = hook::counts().live_bytes.max(self.figures().reserved_bytes);
        if held_bytes > BASELINE_BYTES { held_bytes } else { 0 }
    }

    fn set_event_sink(&mut self, sink: Option<EventSink>) {
        self.pump();
        self.sink = sink;
        self.restart_recording();
    }

    fn stager(&mut self) -> Result<Option<Box<dyn Stager>>, StepError> {
        let candle = self.candle.as_cuda_device().map_err(|error| self.classify(&error))?;
        let stager = CudaStager::new(candle, &self.context).map_err(Self::device_error)?;
        Ok(Some(Box::new(stager)))
    }

    fn classify(&self, error: &candle_core::Error) -> StepError {
        match classify::cause(error) {
            Some(Cause::OutOfMemory) => self.out_of_memory().into(),
            Some(Cause::Sticky) => StepError::Device(classify::message(error)),
            // Some layer may have turned the driver's answer into text; the hook still has it.
            _ if hook::failure().is_some() => self.out_of_memory().into(),
            // A kernel that faulted fails whatever call comes next, in whatever words; the driver knows.
            _ => match self.stream.synchronize() {
                Err(driver) if classify::driver_cause(driver) == Cause::Sticky => Self::device_error(driver),
                _ => StepError::Workload(classify::message(error)),
            },
        }
    }
}

impl Drop for CudaSession {
    fn drop(&mut self) {
        hook::stop_recording();
        // The pool must not go while work on its blocks is pending.
        if self.stream.synchronize().is_err() {
            // In a context that is beyond use the driver's clean-up hangs (seen after a failed assertion of a kernel,
            // H200, driver 580.159). One reference that is never dropped keeps it from being tried.
            std::mem::forget((self.candle.clone(), Arc::clone(&self.context)));
        }
    }
}

/// The planned run's allocator, fed the real run's events on a thread of its own; `None` where the planned allocator is
/// the driver pool itself, which candle on CUDA always uses.
fn shadow_of(planned: AllocatorKind, limit_bytes: u64) -> Result<Option<Shadow>, DeviceError> {
    if matches!(planned, AllocatorKind::Auto | AllocatorKind::CudaMallocAsync) {
        return Ok(None);
    }
    let policy = policy::build(planned, limit_bytes);
    Shadow::start(policy).map(Some).map_err(DeviceError::ShadowThread)
}

/// Allocates and frees a block through cudarc and sees whether the hook and the pool noticed.
fn self_check(stream: &Arc<CudaStream>, pool: &Pool) -> Result<(), DeviceError> {
    let read = || pool.figures().map_err(driver_error("read the memory pool"));
    let (counts, figures) = (hook::counts(), read()?);
    let block = stream.alloc_zeros::<u8>(SELF_CHECK_BYTES).map_err(driver_error("allocate on the device"))?;
    let (counted, held) = (hook::counts(), read()?);
    drop(block);
    let seen = counted.allocations > counts.allocations
        && counted.live_bytes >= counts.live_bytes + SELF_CHECK_BYTES as u64
        && hook::counts().frees > counts.frees;
    if !seen {
        return Err(DeviceError::HookNotActive);
    }
    if held.used_bytes < figures.used_bytes + SELF_CHECK_BYTES as u64 {
        return Err(DeviceError::PoolNotUsed);
    }
    Ok(())
}

fn open_error(device: DeviceChoice, source: candle_core::Error) -> DeviceError {
    match classify::cause(&source) {
        Some(Cause::OutOfMemory) => DeviceError::NoRoom { operation: "load candle's kernels" },
        _ => DeviceError::Open { device, source },
    }
}
