//! The device that a user's program runs on, as seen from outside: by NVML, which every build has.
//!
//! CUDA numbers the cards that `CUDA_VISIBLE_DEVICES` leaves, NVML all of them; the UUID is the name that both share. So
//! `cuda:1` is looked up in the variable, and where the configuration names a card the program is shown that one alone.

use std::path::Path;

use super::host::HostReader;
use crate::device::limit::{self, CardMemory};
use crate::device::nvml::{Card, CardId, Monitor};
use crate::device::visible::{VISIBLE_DEVICES, visible};
use crate::device::{DeviceChoice, DeviceError, DeviceFacts, cpu, facts};
use crate::memory::policy::{AllocConf, Backend};
use crate::memory::{AllocatorKind, LimitSpec};
use crate::trial::spawn::{GpuBaseline, GpuUse, GpuWatch};

/// The devices that a program is to be tuned on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The first of them.
    pub(super) first: DeviceChoice,
    /// One for each rank.
    pub(super) count: usize,
}

/// The devices of a program, and how it is brought onto them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    /// What they are; of several the one that tensors may use least of.
    pub(super) facts: DeviceFacts,
    /// The UUIDs of the cards, in the order of the ranks of this machine; none on the host.
    pub(super) cards: Vec<String>,
    /// What [`VISIBLE_DEVICES`] is set to, where the configuration names a card.
    pub(super) visible_devices: Option<String>,
}

/// Finds the devices that a program is to be tuned on. `allocator` names the allocator that its processes will use.
///
/// Which card a rank takes is the program's own choice among those that it sees. Where the configuration names none it
/// sees what the tuner does, and as many of the first cards as there are ranks are looked at: fewer, where some ranks run
/// on other machines. Where it names one, that and those after it are shown, and they must be there.
pub(super) fn place(wanted: Wanted, limit: LimitSpec, allocator: AllocatorKind) -> Result<Placement, DeviceError> {
    let choice = wanted.first;
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
    let named = visible.iter().skip(ordinal).take(wanted.count.max(1));
    let cards: Vec<Card> = named.map_while(|name| monitor.card(name.id()).ok()).collect();
    let is_enough = match choice {
        DeviceChoice::Cuda(_) => cards.len() >= wanted.count,
        DeviceChoice::Auto | DeviceChoice::Cpu => !cards.is_empty(),
    };
    if !is_enough {
        if choice == DeviceChoice::Auto && visible.is_empty() {
            return on_the_host(limit);
        }
        let last = DeviceChoice::Cuda(ordinal + wanted.count.saturating_sub(1));
        return Err(match visible.len() {
            0 => DeviceError::NoCudaDevice(choice),
            count => DeviceError::NoSuchDevice { device: last, count },
        });
    }
    let memory_of = |card: &Card| CardMemory { total_bytes: card.total_bytes, free_bytes: card.free_bytes };
    let limit_of = |card: &Card| limit::resolve(limit, memory_of(card));
    let weakest = (0..).zip(&cards).min_by_key(|(_, card)| limit_of(card));
    let Some((place, card)) = weakest else { return Err(DeviceError::NoCudaDevice(choice)) };
    let (memory, limit_bytes) = (memory_of(card), limit_of(card));
    for card in &cards {
        limit::check(limit_bytes, memory_of(card))?;
    }
    let root = Path::new("/");
    let facts = DeviceFacts {
        device: DeviceChoice::Cuda(ordinal + place).to_string(),
        name: card.name.clone(),
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
    let cards: Vec<String> = cards.into_iter().map(|card| card.uuid).collect();
    let visible_devices = matches!(choice, DeviceChoice::Cuda(_)).then(|| cards.join(","));
    Ok(Placement { facts, cards, visible_devices })
}

/// Looks at what a program uses of its devices.
#[derive(Debug)]
pub(super) struct Watches<Watch>(Vec<Watch>);

impl Watches<GpuBaseline> {
    /// The devices before the program starts.
    pub(super) fn over(placement: &Placement) -> Self {
        if placement.cards.is_empty() {
            return Self(vec![GpuBaseline::with(Some(Box::new(HostReader)))]);
        }
        Self(placement.cards.iter().map(|uuid| GpuBaseline::take(CardId::Uuid(uuid))).collect())
    }

    /// Looks at them while the program runs whose process group is `group`.
    pub(super) fn follow(self, group: u32) -> Watches<GpuWatch> {
        Watches(self.0.into_iter().map(|baseline| baseline.follow(group)).collect())
    }
}

impl Watches<GpuWatch> {
    /// What was seen: of several devices on that which the program used most of.
    pub(super) fn finish(self) -> GpuUse {
        let uses = self.0.into_iter().map(GpuWatch::finish);
        uses.max_by_key(|used| used.peak_bytes).unwrap_or_else(|| GpuBaseline::with(None).follow(0).finish())
    }
}

fn on_the_host(limit: LimitSpec) -> Result<Placement, DeviceError> {
    Ok(Placement { facts: cpu::facts_of_host(limit)?, cards: Vec::new(), visible_devices: None })
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
        let wanted = Wanted { first: DeviceChoice::Cpu, count: 2 };
        let placement = place(wanted, LimitSpec::Bytes(Bytes(1 << 20)), AllocatorKind::Native).unwrap();
        assert_eq!((placement.facts.device.as_str(), placement.facts.limit_bytes), ("cpu", 1 << 20));
        assert_eq!(placement.visible_devices, None);
        assert!(place(wanted, LimitSpec::Bytes(Bytes(u64::MAX)), AllocatorKind::Native).is_err());
    }
}
