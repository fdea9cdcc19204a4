//! Links between cards: what data-parallel training averages its gradients over.

use serde::Serialize;

use super::{Facts, Finding, Level, PairFacts};
use crate::device::nvml::{Link, Path, PeerAccess};

/// Pairs that are named in one finding.
const NAMED: usize = 6;

/// A pair of cards, as files and tables show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PairView {
    /// As CUDA counts them.
    pub cards: [usize; 2],
    /// As `nvidia-smi topo -m` has it: `NV18`, `PIX`, `PXB`, `PHB`, `NODE`, `SYS`; `?` where NVML does not tell.
    pub link: String,
    /// NVLinks between them.
    pub nvlinks: u32,
    /// Their version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_version: Option<u32>,
    /// Where their ways to the host meet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie: Option<&'static str>,
    /// Whether one may read the other's memory: `works`, `unsupported` or `disabled`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_access: Option<&'static str>,
}

/// Every pair, for files and tables.
pub(super) fn view(pairs: &[PairFacts]) -> Vec<PairView> {
    let view = |pair: &PairFacts| {
        let Link { nvlinks, nvlink_version, path, peer_access } = pair.link;
        PairView {
            cards: [pair.cards.0, pair.cards.1],
            link: short(&pair.link),
            nvlinks,
            nvlink_version,
            pcie: path.map(Path::name),
            peer_access: peer_access.map(word),
        }
    };
    pairs.iter().map(view).collect()
}

fn short(link: &Link) -> String {
    match (link.nvlinks, link.path) {
        (0, Some(path)) => path.name().to_owned(),
        (0, None) => "?".to_owned(),
        (count, _) => format!("NV{count}"),
    }
}

fn word(access: PeerAccess) -> &'static str {
    match access {
        PeerAccess::Works => "works",
        PeerAccess::Unsupported => "unsupported",
        PeerAccess::Disabled => "disabled",
    }
}

/// What the links mean. Of one card there is nothing to say; pairs that are alike are one finding.
pub(super) fn examine(facts: &Facts) -> Vec<Finding> {
    let judged = facts.links.iter().map(|pair| (pair, judge(&pair.link)));
    let mut groups: Vec<(Judgement, Vec<&PairFacts>)> = Vec::new();
    for (pair, judgement) in judged {
        match groups.iter_mut().find(|(known, _)| *known == judgement) {
            Some((_, pairs)) => pairs.push(pair),
            None => groups.push((judgement, vec![pair])),
        }
    }
    groups.into_iter().map(|(judgement, pairs)| judgement.finding(&pairs)).collect()
}

/// What is to be said of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Judgement {
    level: Level,
    found: String,
    meaning: &'static str,
    advice: Option<&'static str>,
}

impl Judgement {
    fn finding(self, pairs: &[&PairFacts]) -> Finding {
        let named = pairs.iter().take(NAMED).map(|pair| format!("{} and {}", pair.cards.0, pair.cards.1));
        let mut named: Vec<String> = named.collect();
        if pairs.len() > NAMED {
            named.push(format!("{} pairs more", pairs.len() - NAMED));
        }
        let (found, finding) = match pairs {
            [pair] => (self.found, Some(pair.cards)),
            _ => (format!("{} (cards {})", self.found, named.join(", ")), None),
        };
        let told = Finding::new("links", self.level, found, self.meaning);
        let told = self.advice.into_iter().fold(told, Finding::advise);
        Finding { card: finding.map(|cards| cards.0), other_card: finding.map(|cards| cards.1), ..told }
    }
}

fn judge(link: &Link) -> Judgement {
    let found = words(link);
    let fits = |level, meaning, advice| Judgement { level, found: found.clone(), meaning, advice };
    match (link.peer_access, link.nvlinks, link.path) {
        (Some(PeerAccess::Disabled), ..) => fits(
            Level::Warning,
            "peer-to-peer access is off in the driver: what one card sends to the other goes through the host's memory",
            Some("allow it (driver registry keys, `ForceP2P`), or train on cards that have it"),
        ),
        (Some(PeerAccess::Unsupported), ..) => fits(
            Level::Warning,
            "neither card may read the other's memory, so gradients go through the host's: data-parallel steps are slower by it",
            Some(
                "choose cards with a link between them (`CUDA_VISIBLE_DEVICES`, `nvidia-smi topo -m`); in a virtual machine ask for access control (ACS) that lets peers through",
            ),
        ),
        (_, 1.., _) => fits(Level::Fine, "gradients are averaged over NVLink", None),
        (Some(PeerAccess::Works), 0, Some(Path::Node | Path::System)) => fits(
            Level::Note,
            "data-parallel training sends its gradients through the processors, which is the longest way there is",
            Some("accumulation makes up for it: gradients are sent once an update"),
        ),
        (Some(PeerAccess::Works), 0, _) => fits(Level::Fine, "gradients are averaged over PCIe, peer to peer", None),
        (None, 0, _) => fits(Level::Note, "whether one may read the other's memory is not told", None),
    }
}

fn words(link: &Link) -> String {
    let way = match (link.nvlinks, link.nvlink_version, link.path) {
        (0, _, Some(path)) => format!("PCIe, {} ({})", path.name(), meets(path)),
        (0, _, None) => "the way between them is not told".to_owned(),
        (count, Some(version), _) => format!("NV{count}, NVLink {version}"),
        (count, None, _) => format!("NV{count}"),
    };
    match link.peer_access {
        Some(PeerAccess::Works) | None => way,
        Some(PeerAccess::Unsupported) => format!("{way}, no peer-to-peer access"),
        Some(PeerAccess::Disabled) => format!("{way}, peer-to-peer access is off"),
    }
}

fn meets(path: Path) -> &'static str {
    match path {
        Path::Board => "one board",
        Path::Switch => "one switch",
        Path::Switches => "several switches",
        Path::HostBridge => "a host bridge",
        Path::Node => "one NUMA node",
        Path::System => "across NUMA nodes",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(cards: (usize, usize), link: Link) -> PairFacts {
        PairFacts { cards, link }
    }

    fn nvlink() -> Link {
        Link { nvlinks: 18, nvlink_version: Some(4), path: Some(Path::Node), peer_access: Some(PeerAccess::Works) }
    }

    #[test]
    fn a_pair_is_shown_as_nvidia_smi_does() {
        let pcie = |path| Link { path: Some(path), peer_access: Some(PeerAccess::Works), ..Link::default() };
        let shown = |link: Link| view(&[pair((0, 1), link)])[0].link.clone();
        assert_eq!(shown(nvlink()), "NV18");
        assert_eq!(shown(pcie(Path::Switch)), "PIX");
        assert_eq!(shown(pcie(Path::System)), "SYS");
        assert_eq!(shown(Link::default()), "?");
        let json = serde_json::to_value(&view(&[pair((0, 1), nvlink())])[0]).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "cards": [0, 1], "link": "NV18", "nvlinks": 18, "nvlink_version": 4, "pcie": "NODE", "peer_access": "works"
            })
        );
    }

    #[test]
    fn links_are_judged_by_what_data_parallel_training_has_of_them() {
        let level = |link: Link| judge(&link).level;
        let with = |access| Link { path: Some(Path::HostBridge), peer_access: access, ..Link::default() };
        assert_eq!(level(nvlink()), Level::Fine);
        assert_eq!(level(with(Some(PeerAccess::Works))), Level::Fine);
        assert_eq!(level(with(Some(PeerAccess::Unsupported))), Level::Warning);
        assert_eq!(level(with(Some(PeerAccess::Disabled))), Level::Warning);
        assert_eq!(level(with(None)), Level::Note);
        assert_eq!(level(Link { path: Some(Path::System), ..with(Some(PeerAccess::Works)) }), Level::Note);
        // NVLink that peers may not use is of no use.
        assert_eq!(level(Link { peer_access: Some(PeerAccess::Disabled), ..nvlink() }), Level::Warning);
    }
}
