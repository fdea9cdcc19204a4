//! A CUDA device open for tuning.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::Device;
use cudarc::driver::{CudaContext, CudaStream, DriverError};

use super::claim::Claim;
use super::classify::{self, Cause};
use super::limit::{self, CardMemory};
use super::pool::{Pool, PoolFigures};
use super::shadow::Shadow;
use super::{context, current_pool, driver_error, driver_version, hook, kernels, release};
use crate::device::nvml::{CardId, Monitor};
use crate::device::{
    AllocatorKind, DeviceChoice, DeviceError, DeviceFacts, DeviceSession, EventSink, LargestRequest, LimitSpec,
    MemorySample, Phase, PoolState, StepError, facts,
};
use crate::memory::{Mark, OutOfMemory, Rates};
use crate::units::{Bytes, GIB, MIB};

/// The most events between two steps that are kept: 128 MiB of them, some hundred steps of a large model.
const RECORDING_EVENTS: usize = 1 << 22;
/// A device is as clean as before while it holds no more than this.
const BASELINE_BYTES: u64 = 8 * MIB;
/// What kernels and workspaces loaded later may take from the room for tensors before somebody else is suspected.
const ROOM_SLACK_BYTES: u64 = GIB / 4;
/// How long a process that ended just now may take to give its memory back.
const ROOM_DEADLINE: Duration = Duration::from_secs(5);
const ROOM_POLL: Duration = Duration::from_millis(50);
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
pub struct CudaSession {
    candle: Device,
    stream: Arc<CudaStream>,
    context: Arc<CudaContext>,
    facts: DeviceFacts,
    card: Card,
    shadow: Option<Shadow>,
    sink: Option<EventSink>,
    unreleasable_bytes: u64,
    pool: Pool,
    _claim: Claim,
}

/// What NVML knows of the card, where it can be had.
struct Card {
    monitor: Option<Monitor>,
    uuid: String,
    /// What this process uses outside its pool.
    own_bytes: u64,
}

impl CudaSession {
    /// Opens the device with CUDA's index `ordinal`.
    ///
    /// On a machine's first start this takes as long as the driver needs to compile candle's kernels.
    pub fn open(ordinal: usize, limit: LimitSpec, allocator: AllocatorKind) -> Result<Self, DeviceError> {
        let device = DeviceChoice::Cuda(ordinal);
        let claim = Claim::session(ordinal)?;
        let context = context(ordinal)?;
        let monitor = Monitor::open().inspect_err(|error| tracing::debug!(?error, "no NVML")).ok();
        let candle = Device::new_cuda(ordinal).map_err(|source| open_error(device, source))?;
        let cuda = candle.as_cuda_device().map_err(|source| open_error(device, source))?;
        // SAFETY: cudarc's events order the uses of a slice across several streams. Here all work is launched, and
        // all tensors are made and dropped, on the training thread, whose default stream is the only one: candle's
        // device has no other, and the loader's threads hand over host memory only. cudarc itself records no event
        // either way until somebody asks its context for a second stream (`is_in_multi_stream_mode`), so nothing that
        // held with tracking on is lost; what goes is the making and destroying of two events for every tensor.
        unsafe { cuda.disable_event_tracking() };
        let stream = cuda.cuda_stream();
        kernels::load(&candle).map_err(|source| open_error(device, source))?;
        let uuid = uuid(&context)?;
        let memory = wait_for_limit(&context, limit)?;
        let limit_bytes = limit::resolve(limit, memory);
        limit::check(limit_bytes, memory)?;
        let shadow = Shadow::start(allocator, limit_bytes)?;
        let pool = current_pool(Arc::clone(&context), limit_bytes)?;
        self_check(&stream, &pool)?;
        let memory = card_memory(&context)?;
        let facts = DeviceFacts {
            device: device.to_string(),
            name: context.name().map_err(driver_error("ask for the card's name"))?,
            uuid: Some(uuid.clone()),
            driver: Some(driver(monitor.as_ref())?),
            total_bytes: memory.total_bytes,
            free_bytes: memory.free_bytes,
            external_bytes: memory.external_bytes(),
            limit_bytes,
            allocator: AllocatorKind::CudaMallocAsync.to_string(),
            cpus: facts::cpus(Path::new("/")),
            hostname: facts::hostname(Path::new("/")),
        };
        let card = Card { own_bytes: own_bytes(monitor.as_ref(), &uuid, memory), monitor, uuid };
        let mut session = Self {
            candle,
            stream,
            context,
            facts,
            card,
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
            shadow.play(recording.events);
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
            limit_bytes: self.facts.limit_bytes,
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
        self.facts.limit_bytes.saturating_sub(hook::counts().live_bytes)
    }

    fn probe(&mut self) -> Option<u64> {
        self.pool
            .largest_satisfiable(&self.stream, self.free_bytes())
            .inspect_err(|error| tracing::warn!(%error, "the largest satisfiable request could not be probed"))
            .ok()
    }

    fn out_of_memory(&self) -> OutOfMemory {
        let failure = hook::failure();
        OutOfMemory {
            // A library's own request (a cuBLAS workspace) does not pass the hook; its size is not known.
            requested_bytes: failure.map_or(0, |failure| failure.bytes),
            allocated_bytes: failure.map_or_else(|| hook::counts().live_bytes, |failure| failure.live_bytes),
            reserved_bytes: self.figures().reserved_bytes,
            limit_bytes: self.facts.limit_bytes,
        }
    }

    fn device_error(error: DriverError) -> StepError {
        StepError::Device(error.to_string())
    }

    fn refresh_external(&mut self) {
        if let Ok(memory) = card_memory(&self.context) {
            self.facts.external_bytes = memory.external_bytes().saturating_sub(self.figures().reserved_bytes);
        }
    }

    /// Waits until the card has room for C again: a worker that was ended just now may still be giving its memory
    /// back. Past the deadline, names who holds it.
    fn wait_for_room(&self) -> Result<(), StepError> {
        let started = Instant::now();
        loop {
            let memory = card_memory(&self.context).map_err(|error| StepError::Device(error.to_string()))?;
            let room_bytes = memory.free_bytes.saturating_add(self.figures().reserved_bytes);
            if room_bytes.saturating_add(ROOM_SLACK_BYTES) >= self.facts.limit_bytes {
                return Ok(());
            }
            if started.elapsed() >= ROOM_DEADLINE {
                let (room, limit) = (Bytes(room_bytes), Bytes(self.facts.limit_bytes));
                let others = self.others();
                return Err(StepError::Device(format!("{room} are left on the card for a limit of {limit}{others}")));
            }
            std::thread::sleep(ROOM_POLL);
        }
    }

    /// `: python (process 4242) holds 12.0 GiB, …`, as far as NVML tells.
    fn others(&self) -> String {
        let own_bytes = self.card.own_bytes.saturating_add(self.figures().reserved_bytes);
        let others = self
            .card
            .monitor
            .as_ref()
            .and_then(|monitor| monitor.others(CardId::Uuid(&self.card.uuid), own_bytes).ok())
            .unwrap_or_default();
        let mut text = String::new();
        for (index, process) in others.iter().take(8).enumerate() {
            let _ = write!(text, "{} {process}", if index == 0 { ":" } else { "," });
        }
        text
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
        self.stream.synchronize().map_err(Self::device_error)?;
        self.trim();
        let live_bytes = hook::counts().live_bytes;
        if live_bytes > BASELINE_BYTES {
            let live = Bytes(live_bytes);
            return Err(StepError::Device(format!("{live} of tensors are left over from before the trial")));
        }
        self.wait_for_room()?;
        self.refresh_external();
        if let Some(shadow) = &self.shadow {
            shadow.begin().map_err(|error| StepError::Device(error.to_string()))?;
        }
        self.restart_recording();
        self.start_window();
        hook::take_failure();
        Ok(())
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
            Some(error) => Err(error.into()),
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
            step,
            allocated_bytes: state.allocated_bytes,
            reserved_bytes: state.reserved_bytes,
            limit_bytes: state.limit_bytes,
            peak_allocated_bytes: state.peak_allocated_bytes,
            peak_reserved_bytes: state.peak_reserved_bytes,
            largest_satisfiable_bytes: state.largest_satisfiable_bytes,
            largest_satisfiable_estimated: probed.is_none(),
            largest_request_bytes: counts.largest_request_bytes,
            unreleasable_bytes: state.unreleasable_bytes,
            allocated_blocks: state.allocated_blocks,
            rates: Rates::of(&state),
            shadow: self.shadow.as_ref().and_then(Shadow::sample),
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
            shadow.trim();
        }
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

/// The card's memory. What a process that has just ended still holds may hide some of it: where the limit does not fit
/// yet, it is given a few seconds.
fn wait_for_limit(context: &CudaContext, spec: LimitSpec) -> Result<CardMemory, DeviceError> {
    let started = Instant::now();
    loop {
        let memory = card_memory(context)?;
        let fits = limit::check(limit::resolve(spec, memory), memory).is_ok();
        if fits || started.elapsed() >= ROOM_DEADLINE || limit::resolve(spec, memory) > memory.total_bytes {
            return Ok(memory);
        }
        std::thread::sleep(ROOM_POLL);
    }
}

fn card_memory(context: &CudaContext) -> Result<CardMemory, DeviceError> {
    let (free, total) = context.mem_get_info().map_err(driver_error("read the card's memory"))?;
    Ok(CardMemory { total_bytes: total as u64, free_bytes: free as u64 })
}

/// What this process uses outside its pool, as far as can be told: all that is used, less what the others say.
fn own_bytes(monitor: Option<&Monitor>, uuid: &str, memory: CardMemory) -> u64 {
    let others = monitor.and_then(|monitor| monitor.others(CardId::Uuid(uuid), u64::MAX).ok()).unwrap_or_default();
    let others_bytes = others.iter().filter_map(|process| process.bytes).fold(0, u64::saturating_add);
    memory.external_bytes().saturating_sub(others_bytes)
}

/// `580.159.03, CUDA 13.0`
fn driver(monitor: Option<&Monitor>) -> Result<String, DeviceError> {
    let cuda = release(driver_version().map_err(driver_error("ask for the driver's version"))?);
    Ok(match monitor.and_then(|monitor| monitor.driver_version().ok()) {
        Some(version) => format!("{version}, CUDA {cuda}"),
        None => format!("CUDA {cuda}"),
    })
}

/// The card's UUID in NVML's form, `GPU-` and five groups of hexadecimal digits.
fn uuid(context: &CudaContext) -> Result<String, DeviceError> {
    let bytes = context.uuid().map_err(driver_error("ask for the card's UUID"))?.bytes;
    let mut text = "GPU".to_owned();
    for (index, byte) in bytes.iter().enumerate() {
        let dash = if matches!(index, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
        let _ = write!(text, "{dash}{:02x}", byte.cast_unsigned());
    }
    Ok(text)
}

fn open_error(device: DeviceChoice, source: candle_core::Error) -> DeviceError {
    match classify::cause(&source) {
        Some(Cause::OutOfMemory) => DeviceError::NoRoom { operation: "load candle's kernels" },
        _ => DeviceError::Open { device, source },
    }
}
