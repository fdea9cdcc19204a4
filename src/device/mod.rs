//! The device room: opening a device and seeing its memory from inside.
//!
//! A [`DeviceSession`] is a device with its memory instrumented: it hands out the candle device, counts and places
//! every tensor allocation of the training thread, enforces the limit C, and gives the figures of DESIGN §3 at any
//! step boundary. There are two kinds behind one trait: the virtual device on the CPU ([`cpu`]) and CUDA.
//!
//! Only a worker process opens a device. The driver learns what it needs from [`DeviceFacts`].

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::staging::Stager;
use crate::memory::{AllocatorKind, Event, LimitSpec, MemorySample, OutOfMemory, Phase, PoolState};

pub mod collective;
#[expect(unsafe_code, reason = "a global allocator can only be written with unsafe code")]
pub mod cpu;
#[cfg(feature = "cuda")]
#[expect(unsafe_code, reason = "the driver's functions are C, and so is a hook that stands in for four of them")]
pub mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "cuda/absent.rs"]
pub mod cuda;
pub mod facts;
pub(crate) mod limit;
pub mod nvml;
pub mod staging;
pub(crate) mod visible;

/// Which device to train on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceChoice {
    /// The first CUDA device where this build and this machine have one, else the CPU.
    #[default]
    Auto,
    /// The virtual device on the CPU.
    Cpu,
    /// A CUDA device by its index.
    Cuda(usize),
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Cpu => f.pad("cpu"),
            Self::Cuda(index) => f.pad(&format!("cuda:{index}")),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = crate::units::UnitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => text.strip_prefix("cuda:").and_then(|index| index.parse().ok()).map(Self::Cuda).ok_or_else(|| {
                crate::units::UnitError { text: text.to_owned(), expected: "`auto`, `cpu`, `cuda` or `cuda:1`" }
            }),
        }
    }
}

/// What a device is, as the recommendation's `environment` records it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceFacts {
    /// `cpu` or `cuda:0`.
    pub device: String,
    /// The product name of the card or of the processor.
    pub name: String,
    /// The card's UUID, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The driver's version, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// All the memory the device has.
    pub total_bytes: u64,
    /// What was free when the session opened.
    pub free_bytes: u64,
    /// Memory used outside the tensors' allocator: context, cuBLAS workspaces, other processes.
    pub external_bytes: u64,
    /// C: what tensors may use.
    pub limit_bytes: u64,
    /// The allocator that the device itself uses.
    pub allocator: String,
    /// Settings of PyTorch's allocator in the environment of a program of the user's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alloc_conf: Option<String>,
    /// Processors that this process may run on.
    pub cpus: usize,
    /// The host's name.
    pub hostname: String,
}

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// This build has no CUDA support.
    #[error(
        "device `{0}` needs CUDA, and this build of tune has no CUDA support (hint: build with `cargo build --release --features cuda`, or use `--device cpu`)"
    )]
    NotCompiled(DeviceChoice),
    /// The binary does not declare the tensor allocator.
    #[error(
        "the binary does not declare batchtune's allocator, so tensor memory on the CPU cannot be seen (hint: put `batchtune::declare_allocator!();` beside `fn main`)"
    )]
    AllocatorNotInstalled,
    /// Another session is open in this process.
    #[error("another device session is open in this process")]
    Busy,
    /// The memory limit cannot be met.
    #[error(
        "a limit of {limit} does not fit the device: {total} in all, {external} used outside the tensors (hint: lower `memory.limit`)"
    )]
    LimitTooLarge {
        /// The limit asked for.
        limit: crate::units::Bytes,
        /// The device's memory.
        total: crate::units::Bytes,
        /// What is used outside the tensors' allocator.
        external: crate::units::Bytes,
    },
    /// A limit under which nothing could be trained.
    #[error(
        "a limit of {limit} is under the least of {minimum} (hint: raise `memory.limit`, or free memory of the card)"
    )]
    LimitTooSmall {
        /// The limit asked for, or what the default came to.
        limit: crate::units::Bytes,
        /// The least.
        minimum: crate::units::Bytes,
    },
    /// There is no CUDA device.
    #[error(
        "device `{0}`: no CUDA device is visible (hint: look at `nvidia-smi` and at `CUDA_VISIBLE_DEVICES`, or use `--device cpu`)"
    )]
    NoCudaDevice(DeviceChoice),
    /// There are CUDA devices, but fewer.
    #[error("device `{device}`: {} visible (hint: devices count from 0)", are(*count))]
    NoSuchDevice {
        /// The device asked for.
        device: DeviceChoice,
        /// How many there are.
        count: usize,
    },
    /// The driver cannot compile what this build brings along.
    #[error(
        "the driver supports CUDA {driver}, and this build needs {toolkit} (hint: update the driver, or build with a CUDA {driver} toolkit)"
    )]
    DriverTooOld {
        /// The release that the driver supports.
        driver: String,
        /// The release of the toolkit that this was built with.
        toolkit: String,
    },
    /// The device has no memory pools.
    #[error("device `{0}` has no stream-ordered memory pools, so its memory cannot be limited and seen")]
    NoMemoryPools(DeviceChoice),
    /// Allocations do not pass the hook.
    #[error(
        "candle's allocations do not pass batchtune's hook, so device memory cannot be seen (hint: build cudarc with `dynamic-linking` and without `dynamic-loading`; `cargo tree -e features -i cudarc` shows who asks for what)"
    )]
    HookNotActive,
    /// Allocations do not come from our pool.
    #[error(
        "candle's allocations do not come from batchtune's memory pool (hint: another library of this program may have set one)"
    )]
    PoolNotUsed,
    /// The card is full.
    #[error("cannot {operation}: the card has no memory left (hint: `nvidia-smi` shows who holds it)")]
    NoRoom {
        /// What was being done.
        operation: &'static str,
    },
    /// The planned allocator's model has no thread to run on.
    #[error("cannot start the thread of the planned allocator's model")]
    ShadowThread(#[source] std::io::Error),
    /// The driver refused something.
    #[error("cannot {operation}")]
    Driver {
        /// What was being done.
        operation: &'static str,
        /// What the driver said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// candle could not open the device.
    #[error("cannot open device `{device}`")]
    Open {
        /// The device asked for.
        device: DeviceChoice,
        /// What candle said.
        #[source]
        source: candle_core::Error,
    },
}

/// How a step failed, as far as the device can tell: the one place where candle's errors are classified.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// A request was over the limit.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// The device is in a state that only a new process can leave.
    #[error("the device failed: {0}")]
    Device(String),
    /// The workload's own error: a shape that does not match, a missing file, an operation candle lacks.
    #[error("the workload failed: {0}")]
    Workload(String),
    /// Another replica is lost, or cannot be worked with.
    #[error(transparent)]
    Replica(#[from] collective::CollectiveError),
}

/// How L is to be found at a sample point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LargestRequest {
    /// From the figures at hand, which may be an upper bound.
    Estimate,
    /// By asking the allocator, outside timed steps.
    Probe,
}

/// Receives a recording as it is made: every event and mark once, in order, in pieces. Called on the training thread
/// outside phases, so what it does is not recorded.
pub type EventSink = Box<dyn FnMut(&[Event])>;

/// An open device with its memory instrumented. Lives on the training thread and is used from it alone.
///
/// A trial calls, in this order: [`begin_trial`](Self::begin_trial); for every phase
/// [`begin_phase`](Self::begin_phase) and, when it ends, [`end_phase`](Self::end_phase); between steps
/// [`sample`](Self::sample); and [`end_trial`](Self::end_trial) once all tensors are dropped.
pub trait DeviceSession {
    /// The candle device that tensors are to be made on.
    fn candle(&self) -> &candle_core::Device;

    /// What the device is.
    fn facts(&self) -> &DeviceFacts;

    /// Starts recording with an empty pool and a new set of peaks.
    fn begin_trial(&mut self) -> Result<(), StepError>;

    /// The same for a probe: the limit is what the device has free, not C. A device that cannot lift C keeps it.
    fn begin_probe(&mut self) -> Result<(), StepError> {
        self.begin_trial()
    }

    /// Marks that step `step` (counted from 0) begins.
    fn begin_step(&mut self, step: u32);

    /// Marks that a phase begins and starts recording.
    fn begin_phase(&mut self, phase: Phase);

    /// Waits until the device has finished the phase's work and stops recording. An allocation over the limit
    /// during the phase is reported here at the latest.
    fn end_phase(&mut self) -> Result<(), StepError>;

    /// The figures since the last sample; starts a new window for the peaks.
    fn sample(&mut self, step: u32, largest: LargestRequest) -> MemorySample;

    /// The pool's state now.
    fn state(&mut self) -> PoolState;

    /// Hands cached memory back to the device.
    fn trim(&mut self);

    /// Lowers C for the trials to come: replicas of one training have the least of theirs. A limit that is not lower
    /// changes nothing.
    fn lower_limit(&mut self, _limit_bytes: u64) {}

    /// Ends a trial whose tensors are dropped. Returns the bytes still held, 0 on a clean device.
    fn end_trial(&mut self) -> u64;

    /// Hands every recorded event to `sink` from here on (a forecast and a trace file need them), or to nobody.
    fn set_event_sink(&mut self, sink: Option<EventSink>);

    /// What copies batches beside the steps; `None` on a device that copies them in the step.
    fn stager(&mut self) -> Result<Option<Box<dyn Stager>>, StepError> {
        Ok(None)
    }

    /// Classifies an error of candle's: the device knows which of its codes mean out of memory.
    fn classify(&self, error: &candle_core::Error) -> StepError;
}

/// Opens a device for tuning, with what tensors may use limited as `limit` says.
pub fn open(
    choice: DeviceChoice,
    limit: LimitSpec,
    allocator: AllocatorKind,
) -> Result<Box<dyn DeviceSession>, DeviceError> {
    match choice {
        DeviceChoice::Auto if cuda::is_present()? => cuda::open(0, limit, allocator),
        DeviceChoice::Auto | DeviceChoice::Cpu => Ok(Box::new(cpu::VirtualDevice::open(limit, allocator)?)),
        DeviceChoice::Cuda(ordinal) => cuda::open(ordinal, limit, allocator),
    }
}

/// `1 CUDA device is`, `2 CUDA devices are`
fn are(count: usize) -> String {
    format!("{} {}", crate::units::plural(count, "CUDA device"), if count == 1 { "is" } else { "are" })
}
