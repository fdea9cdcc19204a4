//! The card as a whole: its memory, its names, and the wait for others to leave it.
//!
//! A worker that was ended just now may need a moment to give its memory back, so both the limit at the start and the
//! room for each trial are waited for, with a deadline. Past it, NVML tells who holds the card.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::CudaContext;

use super::{driver_error, driver_version, release};
use crate::device::DeviceError;
use crate::device::limit::{self, CardMemory};
use crate::device::nvml::{CardId, CardProcess, Monitor};
use crate::memory::LimitSpec;
use crate::units::{Bytes, GIB};

/// What kernels and workspaces loaded later may take from the room for tensors before somebody else is suspected.
const ROOM_SLACK_BYTES: u64 = GIB / 4;
/// How long a process that ended just now may take to give its memory back.
const ROOM_DEADLINE: Duration = Duration::from_secs(5);
const ROOM_POLL: Duration = Duration::from_millis(50);
/// Processes that are named where the card is full.
const NAMED_PROCESSES: usize = 8;

/// A card with an open context.
pub(super) struct Card {
    context: Arc<CudaContext>,
    monitor: Option<Monitor>,
    uuid: String,
    /// What this process uses outside its pool, as far as can be told: all that is used, less what the others say.
    own_bytes: u64,
}

impl Card {
    /// The card of a context on which no tensors are yet.
    pub(super) fn new(context: Arc<CudaContext>) -> Result<Self, DeviceError> {
        let monitor = Monitor::open().inspect_err(|error| tracing::debug!(?error, "no NVML")).ok();
        let uuid = uuid(&context)?;
        let mut card = Self { context, monitor, uuid, own_bytes: u64::MAX };
        let others_bytes = card.others(0).iter().filter_map(|process| process.bytes).fold(0, u64::saturating_add);
        card.own_bytes = card.memory()?.external_bytes().saturating_sub(others_bytes);
        Ok(card)
    }

    /// `GPU-` and five groups of hexadecimal digits, as NVML writes it.
    pub(super) fn uuid(&self) -> &str {
        &self.uuid
    }

    /// `580.159.03, CUDA 13.0`
    pub(super) fn driver(&self) -> Result<String, DeviceError> {
        let cuda = release(driver_version().map_err(driver_error("ask for the driver's version"))?);
        Ok(match self.monitor.as_ref().and_then(|monitor| monitor.driver_version().ok()) {
            Some(version) => format!("{version}, CUDA {cuda}"),
            None => format!("CUDA {cuda}"),
        })
    }

    /// Its memory now.
    pub(super) fn memory(&self) -> Result<CardMemory, DeviceError> {
        let (free, total) = self.context.mem_get_info().map_err(driver_error("read the card's memory"))?;
        Ok(CardMemory { total_bytes: total as u64, free_bytes: free as u64 })
    }

    /// Its memory, once the limit fits or it is no use to wait any longer.
    pub(super) fn wait_for_limit(&self, spec: LimitSpec) -> Result<CardMemory, DeviceError> {
        let started = Instant::now();
        loop {
            let memory = self.memory()?;
            let limit_bytes = limit::resolve(spec, memory);
            let hopeless = limit_bytes > memory.total_bytes || started.elapsed() >= ROOM_DEADLINE;
            if hopeless || limit::check(limit_bytes, memory).is_ok() {
                return Ok(memory);
            }
            std::thread::sleep(ROOM_POLL);
        }
    }

    /// Waits until there is room for `limit_bytes`, of which our pool holds `reserved_bytes` already. Past the
    /// deadline, says what is wrong and who holds the memory.
    pub(super) fn wait_for_room(&self, limit_bytes: u64, reserved_bytes: u64) -> Result<(), String> {
        let started = Instant::now();
        loop {
            let free_bytes = self.memory().map_err(|error| error.to_string())?.free_bytes;
            let room_bytes = free_bytes.saturating_add(reserved_bytes);
            if room_bytes.saturating_add(ROOM_SLACK_BYTES) >= limit_bytes {
                return Ok(());
            }
            if started.elapsed() >= ROOM_DEADLINE {
                let (room, limit) = (Bytes(room_bytes), Bytes(limit_bytes));
                return Err(format!(
                    "{room} are left on the card for a limit of {limit}{}",
                    self.named_others(reserved_bytes)
                ));
            }
            std::thread::sleep(ROOM_POLL);
        }
    }

    /// `: python (process 4242) holds 12.0 GiB, …`, as far as NVML tells.
    fn named_others(&self, reserved_bytes: u64) -> String {
        let mut text = String::new();
        for (index, process) in self.others(reserved_bytes).iter().take(NAMED_PROCESSES).enumerate() {
            let _ = write!(text, "{} {process}", if index == 0 { ":" } else { "," });
        }
        text
    }

    /// The others, where our own pool holds `reserved_bytes`.
    fn others(&self, reserved_bytes: u64) -> Vec<CardProcess> {
        let own_bytes = self.own_bytes.saturating_add(reserved_bytes);
        let ask = |monitor: &Monitor| monitor.others(CardId::Uuid(&self.uuid), own_bytes).ok();
        self.monitor.as_ref().and_then(ask).unwrap_or_default()
    }
}

fn uuid(context: &CudaContext) -> Result<String, DeviceError> {
    let bytes = context.uuid().map_err(driver_error("ask for the card's UUID"))?.bytes;
    let mut text = "GPU".to_owned();
    for (index, byte) in bytes.iter().enumerate() {
        let dash = if matches!(index, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
        let _ = write!(text, "{dash}{:02x}", byte.cast_unsigned());
    }
    Ok(text)
}
