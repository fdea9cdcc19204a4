//! The device that a user's program runs on, as seen from outside: by NVML, which every build has.
//!
//! CUDA numbers the cards that `CUDA_VISIBLE_DEVICES` leaves, NVML all of them; the UUID is the name that both share. So
//! `cuda:1` is looked up in the variable, and where the configuration names a card the program is shown that one alone.

use std::path::Path;

use crate::device::limit::{self, CardMemory};
use crate::device::nvml::Monitor;
use crate::device::visible::{VISIBLE_DEVICES, visible};
use crate::device::{DeviceChoice, DeviceError, DeviceFacts, cpu, facts};
use crate::memory::policy::{AllocConf, Backend};
use crate::memory::{AllocatorKind, LimitSpec};

/// A device and how the program is brought onto it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    /// What it is.
    pub(super) facts: DeviceFacts,
    /// What [`VISIBLE_DEVICES`] is set to, where the configuration names a card.
    pub(super) visible_devices: Option<String>,
}

/// Finds the device that a program is to be tuned on. `allocator` names the allocator that its process will use.
pub(super) fn place(
    choice: DeviceChoice,
    limit: LimitSpec,
    allocator: AllocatorKind,
) -> Result<Placement, DeviceError> {
    let ordinal = match choice {
        DeviceChoice::Cpu => return on_the_host(limit),
        DeviceChoice::Auto => 0,
        DeviceChoice::Cuda(ordinal) => ordinal,
    };
    let monitor = match Monitor::open() {
        Ok(monitor) => monitor,
        Err(_) if choice == DeviceChoice::Auto => return on_the_host(limit),
        Err(_) => return Err(DeviceError::NoCudaDevice(choice)),
    };
    let variable = std::env::var(VISIBLE_DEVICES).ok();
    let visible = visible(variable.as_deref(), monitor.cards().unwrap_or(0));
    let card = visible.get(ordinal).and_then(|name| monitor.card(name.id()).ok());
    let Some(card) = card else {
        if choice == DeviceChoice::Auto && visible.is_empty() {
            return on_the_host(limit);
        }
        return Err(match visible.len() {
            0 => DeviceError::NoCudaDevice(choice),
            count => DeviceError::NoSuchDevice { device: choice, count },
        });
    };
    let memory = CardMemory { total_bytes: card.total_bytes, free_bytes: card.free_bytes };
    let limit_bytes = limit::resolve(limit, memory);
    limit::check(limit_bytes, memory)?;
    let root = Path::new("/");
    let facts = DeviceFacts {
        device: DeviceChoice::Cuda(ordinal).to_string(),
        name: card.name,
        uuid: Some(card.uuid.clone()),
        driver: monitor.driver_version().ok(),
        total_bytes: card.total_bytes,
        free_bytes: card.free_bytes,
        external_bytes: memory.external_bytes(),
        limit_bytes,
        allocator: allocator.to_string(),
        alloc_conf: None,
        cpus: facts::cpus(root),
        hostname: facts::hostname(root),
    };
    let visible_devices = matches!(choice, DeviceChoice::Cuda(_)).then_some(card.uuid);
    Ok(Placement { facts, visible_devices })
}

fn on_the_host(limit: LimitSpec) -> Result<Placement, DeviceError> {
    Ok(Placement { facts: cpu::facts_of_host(limit)?, visible_devices: None })
}

/// The allocator that a process with these settings uses. Settings that cannot be read are the program's to refuse.
pub fn allocator_of(conf: Option<&str>) -> AllocatorKind {
    let conf: AllocConf = conf.and_then(|conf| conf.parse().ok()).unwrap_or_default();
    if conf.backend == Backend::CudaMallocAsync {
        AllocatorKind::CudaMallocAsync
    } else if conf.settings.expandable_segments {
        AllocatorKind::Expandable
    } else {
        AllocatorKind::Native
    }
}

/// The settings that make a process use an allocator, where they are not its default.
pub fn conf_of(allocator: AllocatorKind) -> Option<&'static str> {
    match allocator {
        AllocatorKind::Auto => None,
        AllocatorKind::Native => Some("backend:native"),
        AllocatorKind::Expandable => Some("expandable_segments:True"),
        AllocatorKind::CudaMallocAsync => Some("backend:cudaMallocAsync"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Bytes;

    #[test]
    fn settings_and_allocators_name_each_other() {
        for kind in [AllocatorKind::Native, AllocatorKind::Expandable, AllocatorKind::CudaMallocAsync] {
            assert_eq!(allocator_of(conf_of(kind)), kind);
        }
        assert_eq!(allocator_of(conf_of(AllocatorKind::Auto)), AllocatorKind::Native);
        assert_eq!(allocator_of(Some("max_split_size_mb:128,garbage_collection_threshold:0.8")), AllocatorKind::Native);
        assert_eq!(allocator_of(Some("nonsense")), AllocatorKind::Native);
    }

    #[test]
    fn on_the_cpu_the_host_s_memory_counts() {
        let placement = place(DeviceChoice::Cpu, LimitSpec::Bytes(Bytes(1 << 20)), AllocatorKind::Native).unwrap();
        assert_eq!((placement.facts.device.as_str(), placement.facts.limit_bytes), ("cpu", 1 << 20));
        assert_eq!(placement.visible_devices, None);
        assert!(place(DeviceChoice::Cpu, LimitSpec::Bytes(Bytes(u64::MAX)), AllocatorKind::Native).is_err());
    }
}
