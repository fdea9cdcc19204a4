//! What NVIDIA's management library says of the cards: their memory, and who else uses it.
//!
//! NVML is loaded at run time, so this is compiled into every build and answers [`NvmlUnavailable`] where there is no
//! driver. It opens no CUDA context and holds no device memory, so the driver process may use it too; it is where the
//! wait for a card's baseline learns whose memory it is waiting for.

use std::fmt;

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

use crate::units::{Bytes, MIB};

mod health;
mod links;

pub use health::{CardHealth, Ecc, Exclusive, RemappedRows};
pub use links::{Link, Path, PeerAccess};

/// Memory that no listed process accounts for is reported from here on; below it is the driver's own.
const UNACCOUNTED_FROM_BYTES: u64 = 64 * MIB;
/// The longest process name that is shown.
const NAME_CHARS: usize = 64;

/// NVML cannot be used: no driver, or one that does not answer.
#[derive(Debug, thiserror::Error)]
#[error("NVIDIA's management library is not available")]
pub struct NvmlUnavailable(#[from] NvmlError);

/// Which card is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardId<'a> {
    /// By UUID, `GPU-…`: the one name that CUDA and NVML share.
    Uuid(&'a str),
    /// By NVML's index, which `CUDA_VISIBLE_DEVICES` does not change.
    Index(u32),
}

/// A card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// The product's name.
    pub name: String,
    /// `GPU-…`.
    pub uuid: String,
    /// All its memory.
    pub total_bytes: u64,
    /// What is free.
    pub free_bytes: u64,
    /// What processes use, and the driver for them.
    pub used_bytes: u64,
}

/// A process that holds memory of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardProcess {
    /// Its number, as the driver knows it; `None` where a container hides it.
    pub pid: Option<u32>,
    /// Its name, where this process may see it.
    pub name: Option<String>,
    /// What it holds, where the driver tells.
    pub bytes: Option<u64>,
}

impl fmt::Display for CardProcess {
    /// `python (process 4242) holds 12.0 GiB`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.pid) {
            (Some(name), Some(pid)) => write!(f, "{name} (process {pid})")?,
            (None, Some(pid)) => write!(f, "process {pid}")?,
            (_, None) => f.write_str("an unknown process")?,
        }
        match self.bytes {
            Some(bytes) => write!(f, " holds {}", Bytes(bytes)),
            None => f.write_str(" holds memory"),
        }
    }
}

/// The management library, loaded.
#[derive(Debug)]
pub struct Monitor(Nvml);

impl Monitor {
    /// Loads the library.
    pub fn open() -> Result<Self, NvmlUnavailable> {
        Ok(Self(Nvml::init()?))
    }

    /// The driver's version, such as `580.159.03`.
    pub fn driver_version(&self) -> Result<String, NvmlUnavailable> {
        Ok(self.0.sys_driver_version()?)
    }

    /// How many cards there are, whatever `CUDA_VISIBLE_DEVICES` says.
    pub fn cards(&self) -> Result<u32, NvmlUnavailable> {
        Ok(self.0.device_count()?)
    }

    /// A card as it is now.
    pub fn card(&self, id: CardId<'_>) -> Result<Card, NvmlUnavailable> {
        let device = self.device(id)?;
        let memory = device.memory_info()?;
        Ok(Card {
            name: device.name()?,
            uuid: device.uuid()?,
            total_bytes: memory.total,
            free_bytes: memory.free,
            used_bytes: memory.used,
        })
    }

    /// The CUDA release that the driver supports, as 1000 × major + 10 × minor.
    pub fn cuda_release(&self) -> Option<u32> {
        u32::try_from(self.0.sys_cuda_driver_version().ok()?).ok()
    }

    /// The share of the last moment in which the card was at work, in percent; `None` where it does not tell, as a MIG
    /// slice does not.
    pub fn utilisation_percent(&self, id: CardId<'_>) -> Option<u32> {
        Some(self.device(id).ok()?.utilization_rates().ok()?.gpu)
    }

    /// The processes other than this one that hold memory of a card, the largest first. `own_bytes` is what this
    /// process holds itself, by its own account: used memory that neither it nor a listed process explains is put
    /// down to an unknown one.
    pub fn others(&self, id: CardId<'_>, own_bytes: u64) -> Result<Vec<CardProcess>, NvmlUnavailable> {
        let seen = self
            .holders(id)?
            .into_iter()
            .map(|(pid, bytes)| CardProcess { pid: Some(pid), name: process_name(pid), bytes })
            .collect();
        Ok(accounted(seen, std::process::id(), self.used_bytes(id)?.saturating_sub(own_bytes)))
    }

    /// What is used of a card's memory, by whomever.
    pub fn used_bytes(&self, id: CardId<'_>) -> Result<u64, NvmlUnavailable> {
        Ok(self.device(id)?.memory_info()?.used)
    }

    /// The numbers of the processes that hold memory of a card, as the driver counts processes, and what each holds
    /// where it tells.
    pub fn holders(&self, id: CardId<'_>) -> Result<Vec<(u32, Option<u64>)>, NvmlUnavailable> {
        let device = self.device(id)?;
        let mut listed = device.running_compute_processes()?;
        // Not every card has graphics; that it has none is no reason to tell nothing.
        listed.extend(device.running_graphics_processes().unwrap_or_default());
        listed.sort_by_key(|process| process.pid);
        listed.dedup_by_key(|process| process.pid);
        let holders = listed.into_iter().map(|process| match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => (process.pid, Some(bytes)),
            UsedGpuMemory::Unavailable => (process.pid, None),
        });
        Ok(holders.collect())
    }

    fn device(&self, id: CardId<'_>) -> Result<nvml_wrapper::Device<'_>, NvmlUnavailable> {
        Ok(match id {
            CardId::Uuid(uuid) => self.0.device_by_uuid(uuid)?,
            CardId::Index(index) => self.0.device_by_index(index)?,
        })
    }
}

/// The others among the processes seen, and what of `used_bytes` (without our own) they leave unexplained.
fn accounted(seen: Vec<CardProcess>, own_pid: u32, used_bytes: u64) -> Vec<CardProcess> {
    let mut others: Vec<CardProcess> = seen.into_iter().filter(|process| process.pid != Some(own_pid)).collect();
    let explained_bytes = others.iter().filter_map(|process| process.bytes).fold(0_u64, u64::saturating_add);
    let unexplained_bytes = used_bytes.saturating_sub(explained_bytes);
    // A listed process of unknown size may hold it all; then there is nobody else to accuse.
    if unexplained_bytes >= UNACCOUNTED_FROM_BYTES && others.iter().all(|process| process.bytes.is_some()) {
        others.push(CardProcess { pid: None, name: None, bytes: Some(unexplained_bytes) });
    }
    others.sort_by_key(|process| std::cmp::Reverse(process.bytes));
    others
}

/// The name of a process from `/proc`, with nothing in it that could upset a terminal. `None` where it belongs to
/// another process namespace, or is gone.
pub(crate) fn process_name(pid: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    let name: String = String::from_utf8_lossy(&name).trim_end().chars().take(NAME_CHARS).collect();
    let name: String = name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::GIB;

    fn process(pid: u32, bytes: Option<u64>) -> CardProcess {
        CardProcess { pid: Some(pid), name: None, bytes }
    }

    #[test]
    fn we_are_not_among_the_others() {
        let others = accounted(vec![process(7, Some(GIB)), process(9, Some(2 * GIB))], 7, 2 * GIB);
        assert_eq!(others, [process(9, Some(2 * GIB))]);
    }

    #[test]
    fn memory_that_nobody_accounts_for_is_an_unknown_process() {
        let others = accounted(vec![process(9, Some(GIB))], 7, 5 * GIB);
        assert_eq!(others.first(), Some(&CardProcess { pid: None, name: None, bytes: Some(4 * GIB) }));
        assert_eq!(others.first().map(ToString::to_string).as_deref(), Some("an unknown process holds 4.0 GiB"));
        assert_eq!(accounted(Vec::new(), 7, MIB), []);
    }

    #[test]
    fn a_process_of_unknown_size_explains_the_rest() {
        let others = accounted(vec![process(9, None)], 7, 5 * GIB);
        assert_eq!(others, [process(9, None)]);
        assert_eq!(others.first().map(ToString::to_string).as_deref(), Some("process 9 holds memory"));
    }

    #[test]
    fn our_own_name_is_known() {
        assert!(process_name(std::process::id()).is_some());
        assert_eq!(process_name(u32::MAX), None);
    }

    #[test]
    fn a_machine_without_a_driver_gets_an_error_and_no_panic() {
        // On a machine with one this opens; either is fine, and both must end.
        match Monitor::open() {
            Ok(monitor) => assert!(monitor.cards().is_ok()),
            Err(error) => assert!(std::error::Error::source(&error).is_some()),
        }
    }
}
