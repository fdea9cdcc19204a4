//! What there is to judge.

use std::path::{Path, PathBuf};

use crate::device::cuda;
use crate::device::facts::{HostLimits, limits};
use crate::device::nvml::{CardHealth, CardProcess, Link, Monitor};
use crate::device::visible::{VISIBLE_DEVICES, Visible, visible};
use crate::text::with_causes;

/// A machine as it is now.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// The driver, or why it does not answer.
    pub driver: Result<DriverFacts, String>,
    /// Whether the machine has the driver's device files: with them and without an answer, a container lacks its libraries.
    pub has_device_files: bool,
    /// The release of the CUDA toolkit that this program was built with, as 1000 × major + 10 × minor.
    pub toolkit: Option<u32>,
    /// The cards that a process may see, in CUDA's order.
    pub cards: Vec<CardFacts>,
    /// How they are connected, for every pair of them.
    pub links: Vec<PairFacts>,
    /// The host.
    pub host: HostLimits,
    /// The environment.
    pub environment: Environment,
}

/// The driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverFacts {
    /// Its version, such as `580.159.03`.
    pub version: String,
    /// The CUDA release that it supports, as 1000 × major + 10 × minor.
    pub cuda: Option<u32>,
    /// Cards in the machine, whatever is visible.
    pub cards: u32,
}

/// A card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardFacts {
    /// Its name.
    pub name: String,
    /// All its memory.
    pub total_bytes: u64,
    /// What is free.
    pub free_bytes: u64,
    /// Who uses it.
    pub processes: Vec<CardProcess>,
    /// Its state.
    pub health: CardHealth,
}

/// A pair of cards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairFacts {
    /// Their places among the cards, the smaller one first.
    pub cards: (usize, usize),
    /// How they are connected.
    pub link: Link,
}

/// The variables that matter, as they are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `PYTORCH_CUDA_ALLOC_CONF`.
    pub cuda_alloc_conf: Option<String>,
    /// `PYTORCH_ALLOC_CONF`, its newer name.
    pub alloc_conf: Option<String>,
    /// `CUDA_VISIBLE_DEVICES`.
    pub visible_devices: Option<String>,
    /// `CUDA_DEVICE_ORDER`.
    pub device_order: Option<String>,
    /// `CUDA_LAUNCH_BLOCKING`.
    pub launch_blocking: Option<String>,
    /// Slurm, where this machine has it.
    pub slurm: Option<SlurmFacts>,
}

/// Slurm, as far as it is seen without asking it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlurmFacts {
    /// Where `srun` is.
    pub srun: PathBuf,
    /// The job that this process runs in.
    pub job: Option<String>,
}

/// The first `srun` in the folders of `path`, as `PATH` lists them.
fn slurm(path: &str, job: Option<String>) -> Option<SlurmFacts> {
    let srun = std::env::split_paths(path).map(|folder| folder.join("srun")).find(|file| file.is_file())?;
    Some(SlurmFacts { srun, job })
}

impl Facts {
    /// Asks this machine, whose root directory is `root`.
    pub fn gather(root: &Path) -> Self {
        let environment =
            Environment::of(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()));
        let (driver, cards, links) = match Monitor::open() {
            Ok(monitor) => {
                let named = visible(environment.visible_devices.as_deref(), monitor.cards().unwrap_or(0));
                let cards = cards(&monitor, &named);
                let links = links(&monitor, named.get(..cards.len()).unwrap_or_default());
                (driver(&monitor), cards, links)
            }
            Err(error) => (Err(with_causes(&error)), Vec::new(), Vec::new()),
        };
        Self {
            driver,
            has_device_files: root.join("dev/nvidiactl").exists(),
            toolkit: cuda::toolkit(),
            cards,
            links,
            host: limits(root),
            environment,
        }
    }
}

impl Environment {
    /// The variables by their names.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        Self {
            cuda_alloc_conf: variable("PYTORCH_CUDA_ALLOC_CONF"),
            alloc_conf: variable("PYTORCH_ALLOC_CONF"),
            visible_devices: variable(VISIBLE_DEVICES),
            device_order: variable("CUDA_DEVICE_ORDER"),
            launch_blocking: variable("CUDA_LAUNCH_BLOCKING"),
            slurm: variable("PATH").and_then(|path| slurm(&path, variable("SLURM_JOB_ID"))),
        }
    }
}

fn driver(monitor: &Monitor) -> Result<DriverFacts, String> {
    let failed = |error| with_causes(&error);
    let version = monitor.driver_version().map_err(failed)?;
    Ok(DriverFacts { version, cuda: monitor.cuda_release(), cards: monitor.cards().map_err(failed)? })
}

/// Every pair whose two cards answer.
fn links(monitor: &Monitor, named: &[Visible]) -> Vec<PairFacts> {
    let pairs = (0..named.len()).flat_map(|one| (one + 1..named.len()).map(move |other| (one, other)));
    let fact = |cards: (usize, usize)| {
        let (one, other) = (named.get(cards.0)?, named.get(cards.1)?);
        Some(PairFacts { cards, link: monitor.link(one.id(), other.id()).ok()? })
    };
    pairs.filter_map(fact).collect()
}

fn cards(monitor: &Monitor, named: &[Visible]) -> Vec<CardFacts> {
    let facts = named.iter().map_while(|named| {
        let card = monitor.card(named.id()).ok()?;
        Some(CardFacts {
            name: card.name,
            total_bytes: card.total_bytes,
            free_bytes: card.free_bytes,
            processes: monitor.others(named.id(), 0).unwrap_or_default(),
            health: monitor.health(named.id()).unwrap_or_default(),
        })
    });
    facts.collect()
}
