//! How cards are connected: what NVML says of a pair of them, as `nvidia-smi topo -m` and `topo -p2p` do.
//!
//! Two ways may lead from one card to another. NVLink is wires of their own: a number of links, each of which ends at the
//! other card or at a switch that connects all of them. PCIe is a tree, and the way leads through the place where the two
//! branches meet: the further up that is, the slower, and the less likely that one card may read the other's memory
//! directly (peer to peer, P2P). Without that, data goes through the host's memory.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus, TopologyLevel};

use super::{CardId, Monitor, NvmlUnavailable};

/// Links that a card may have (`NVML_NVLINK_MAX_LINKS`).
const MOST_LINKS: u32 = 18;

/// Where the ways of two cards to the host meet, the nearest first; the names are those of `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    /// On one board.
    Board,
    /// At one PCIe switch.
    Switch,
    /// At one of several PCIe switches, without a host bridge.
    Switches,
    /// At a host bridge, which is mostly the processor.
    HostBridge,
    /// At several host bridges of one NUMA node.
    Node,
    /// Across NUMA nodes, through what connects the processors.
    System,
}

impl Path {
    /// The short name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Board => "PSB",
            Self::Switch => "PIX",
            Self::Switches => "PXB",
            Self::HostBridge => "PHB",
            Self::Node => "NODE",
            Self::System => "SYS",
        }
    }
}

/// Whether one card may read another's memory directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAccess {
    /// It may.
    Works,
    /// It cannot: the chipset, the cards or the way between them do not support it.
    Unsupported,
    /// The driver was told not to.
    Disabled,
}

/// How two cards are connected. What NVML does not tell is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// NVLinks between them, directly or through switches; 0 without any.
    pub nvlinks: u32,
    /// The NVLink version.
    pub nvlink_version: Option<u32>,
    /// The way through PCIe.
    pub path: Option<Path>,
    /// Whether one may read the other's memory.
    pub peer_access: Option<PeerAccess>,
}

impl Monitor {
    /// How two cards are connected.
    pub fn link(&self, one: CardId<'_>, other: CardId<'_>) -> Result<Link, NvmlUnavailable> {
        let (first, second) = (self.device(one)?, self.device(other)?);
        // The call takes its second card away.
        let path = first.topology_common_ancestor(self.device(other)?).ok().map(path_of);
        let (nvlinks, nvlink_version) = nvlinks(&first, &second);
        Ok(Link { nvlinks, nvlink_version, path, peer_access: peer_access(&first, &second) })
    }
}

fn path_of(level: TopologyLevel) -> Path {
    match level {
        TopologyLevel::Internal => Path::Board,
        TopologyLevel::Single => Path::Switch,
        TopologyLevel::Multiple => Path::Switches,
        TopologyLevel::HostBridge => Path::HostBridge,
        TopologyLevel::Node => Path::Node,
        TopologyLevel::System => Path::System,
    }
}

/// Reading and writing are asked for apart, and either may be off.
fn peer_access(one: &Device<'_>, other: &Device<'_>) -> Option<PeerAccess> {
    let directions = [P2pCapabilitiesIndex::Read, P2pCapabilitiesIndex::Write];
    let found = directions.map(|direction| one.p2p_status(other, direction).ok());
    worse_access(found)
}

fn worse_access(found: [Option<P2pStatus>; 2]) -> Option<PeerAccess> {
    let access = |status| {
        Some(match status {
            P2pStatus::Ok => PeerAccess::Works,
            P2pStatus::DisabledByRegkey => PeerAccess::Disabled,
            P2pStatus::ChipsetNotSupported
            | P2pStatus::GpuNotSupported
            | P2pStatus::IohTopologyNotSupported
            | P2pStatus::NotSupported => PeerAccess::Unsupported,
            P2pStatus::Unknown => return None,
        })
    };
    let told = found.into_iter().flatten().filter_map(access);
    // The order from good to bad is that of the type.
    told.max_by_key(|access| *access as u8)
}

/// The far end of a link that is up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct End {
    /// Its address on the bus: a card's, or a switch's. A virtual machine may hide either.
    bus: Option<String>,
    version: Option<u32>,
}

/// The links of a card that are up.
fn ends_of(device: &Device<'_>) -> Vec<End> {
    let links = (0..MOST_LINKS).map(|number| device.link_wrapper_for(number));
    let active = links.filter(|link| matches!(link.is_active(), Ok(true)));
    let end =
        active.map(|link| End { bus: link.remote_pci_info().ok().map(|bus| bus.bus_id), version: link.version().ok() });
    end.collect()
}

fn nvlinks(one: &Device<'_>, other: &Device<'_>) -> (u32, Option<u32>) {
    let bus = other.pci_info().ok().map(|bus| bus.bus_id);
    let reaches = matches!(one.p2p_status(other, P2pCapabilitiesIndex::NvLink), Ok(P2pStatus::Ok));
    let (ours, theirs) = (ends_of(one), ends_of(other));
    counted(&ours, &theirs, bus.as_deref(), if reaches { Reach::Known } else { Reach::Unknown })
}

/// Whether the driver says that NVLink connects two cards, by whatever way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Known,
    Unknown,
}

/// Of the links of one card those that lead to another: those that end at it. Where none does and the driver says that
/// NVLink connects the two, they meet at switches, and the card with fewer links counts. (What kind of device a link ends
/// at is a call of NVML's that nvml-wrapper 0.13 answers with `Unknown` always.)
fn counted(ours: &[End], theirs: &[End], their_bus: Option<&str>, reach: Reach) -> (u32, Option<u32>) {
    let is_theirs =
        |end: &&End| end.bus.as_deref().zip(their_bus).is_some_and(|(bus, theirs)| is_same_bus(bus, theirs));
    let direct = ours.iter().filter(is_theirs).count();
    let count = match reach {
        Reach::Known if direct == 0 => ours.len().min(theirs.len()),
        Reach::Known | Reach::Unknown => direct,
    };
    let version = ours.iter().filter_map(|end| end.version).max().filter(|_| count > 0);
    (u32::try_from(count).unwrap_or(MOST_LINKS), version)
}

/// `00000000:1B:00.0` and `0000:1b:00.0` are one address: the domain is written with four or eight digits.
fn is_same_bus(one: &str, other: &str) -> bool {
    let rest = |bus: &str| bus.trim_start_matches('0').to_ascii_lowercase();
    rest(one) == rest(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(bus: &str) -> End {
        End { bus: Some(bus.to_owned()), version: Some(3) }
    }

    #[test]
    fn links_are_counted_that_end_at_the_other_card() {
        let ours = [end("00000000:1B:00.0"), end("00000000:1b:00.0"), end("00000000:1C:00.0")];
        for reach in [Reach::Known, Reach::Unknown] {
            assert_eq!(counted(&ours, &[end("00000000:1A:00.0")], Some("0000:1B:00.0"), reach), (2, Some(3)));
        }
        assert_eq!(counted(&ours, &[], Some("00000000:1D:00.0"), Reach::Unknown), (0, None));
        assert_eq!(counted(&ours, &[], None, Reach::Unknown), (0, None));
    }

    #[test]
    fn through_switches_the_card_with_fewer_links_counts() {
        let hidden = End { bus: None, version: Some(4) };
        let ends = |count| vec![hidden.clone(); count];
        assert_eq!(counted(&ends(18), &ends(16), Some("0000:1B:00.0"), Reach::Known), (16, Some(4)));
        assert_eq!(counted(&ends(18), &ends(18), Some("0000:1B:00.0"), Reach::Unknown), (0, None));
        assert_eq!(counted(&[], &ends(18), None, Reach::Known), (0, None));
    }

    #[test]
    fn access_that_is_off_one_way_is_off() {
        let both = |read, write| worse_access([Some(read), Some(write)]);
        assert_eq!(both(P2pStatus::Ok, P2pStatus::Ok), Some(PeerAccess::Works));
        assert_eq!(both(P2pStatus::Ok, P2pStatus::DisabledByRegkey), Some(PeerAccess::Disabled));
        assert_eq!(both(P2pStatus::IohTopologyNotSupported, P2pStatus::Ok), Some(PeerAccess::Unsupported));
        assert_eq!(worse_access([None, None]), None);
        assert_eq!(both(P2pStatus::Unknown, P2pStatus::Unknown), None);
    }

    #[test]
    fn paths_have_the_names_that_are_known_from_elsewhere_and_grow_longer() {
        let all = [Path::Board, Path::Switch, Path::Switches, Path::HostBridge, Path::Node, Path::System];
        assert_eq!(all.map(Path::name), ["PSB", "PIX", "PXB", "PHB", "NODE", "SYS"]);
        assert!(all.is_sorted());
    }
}
