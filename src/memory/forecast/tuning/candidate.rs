//! What can be set: the axes of the search, and one setting of all of them.
//!
//! PyTorch reads its settings from `PYTORCH_CUDA_ALLOC_CONF`; the values here are those of PyTorch 2.1 and later, which is
//! the range that [`AllocConf`] speaks. candle has no such variable: its driver pool has a release threshold, and that is
//! all. Whoever writes the training loop can hand the cache back every so many steps (`torch.cuda.empty_cache`,
//! `cuMemPoolTrimTo`), under any allocator.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::memory::policy::{AllocConf, Backend, ReleaseThreshold, Settings};
use crate::units::MIB;

/// Sizes for `max_split_size_mb`. PyTorch refuses those of 20 MiB and less.
const MAX_SPLIT_MIB: [u64; 5] = [32, 64, 128, 256, 512];
/// Shares for `garbage_collection_threshold`.
const COLLECTION_THRESHOLDS: [f64; 2] = [0.6, 0.8];
/// Numbers for `roundup_power2_divisions`: powers of two.
const ROUNDUP_DIVISIONS: [u32; 4] = [2, 4, 8, 16];
/// The model of the driver's pool was off by up to 1 % (see [`Settings::driver_pool`]); twice that is allowed for, as a
/// divisor.
pub(super) const APPROXIMATE_DIVISOR: u64 = 50;
/// Steps between two releases of the cache, the cheapest first.
pub(super) const TRIM_EVERY_STEPS: [u32; 4] = [1000, 100, 10, 1];

/// The allocator of a candidate.
#[derive(Clone, Debug, PartialEq)]
pub enum Allocator {
    /// PyTorch's, as `PYTORCH_CUDA_ALLOC_CONF` sets it.
    Pytorch(AllocConf),
    /// The driver's pool as candle uses it.
    DriverPool(ReleaseThreshold),
    /// One that has no settings of its own: the virtual device's.
    Given(Settings),
}

/// One setting of everything that can be set.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The allocator with its settings.
    pub allocator: Allocator,
    /// The cache is handed back at the start of every so many steps; `None` is never.
    pub trim_every: Option<u32>,
}

impl Candidate {
    /// An allocator whose cache is never handed back.
    pub fn of(allocator: Allocator) -> Self {
        Self { allocator, trim_every: None }
    }

    /// The model of the allocator.
    pub fn settings(&self) -> Settings {
        match &self.allocator {
            // PyTorch keeps what the driver's pool holds.
            Allocator::Pytorch(AllocConf { backend: Backend::CudaMallocAsync, .. }) => {
                Settings::driver_pool(ReleaseThreshold::Max)
            }
            Allocator::Pytorch(conf) => conf.settings,
            Allocator::DriverPool(release_threshold) => Settings::driver_pool(*release_threshold),
            Allocator::Given(settings) => *settings,
        }
    }

    /// Whether the model of the allocator may err.
    pub(super) fn is_approximate(&self) -> bool {
        match &self.allocator {
            Allocator::Pytorch(conf) => conf.backend == Backend::CudaMallocAsync,
            Allocator::DriverPool(_) => true,
            Allocator::Given(settings) => *settings == Settings::driver_pool(settings.release_threshold),
        }
    }

    /// The value of `PYTORCH_CUDA_ALLOC_CONF`, empty for PyTorch's defaults; `None` where there is no such variable.
    pub fn conf(&self) -> Option<String> {
        match &self.allocator {
            Allocator::Pytorch(conf) => Some(conf.to_string()),
            Allocator::DriverPool(_) | Allocator::Given(_) => None,
        }
    }

    /// The same with its cache handed back every so many steps.
    pub(super) fn trimmed(&self, every: u32) -> Self {
        Self { trim_every: Some(every), ..self.clone() }
    }

    /// How many things differ from another: of equals the one with fewer is the simpler.
    pub(super) fn distance(&self, other: &Self) -> usize {
        let of_allocator = match (&self.allocator, &other.allocator) {
            (Allocator::Pytorch(conf), Allocator::Pytorch(other)) => {
                usize::from(conf.backend != other.backend)
                    + Axis::ALL.iter().filter(|axis| axis.of(conf) != axis.of(other)).count()
            }
            (one, other) => usize::from(one != other),
        };
        of_allocator + usize::from(self.trim_every != other.trim_every)
    }
}

impl fmt::Display for Candidate {
    /// For people: what differs from the defaults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allocator = match &self.allocator {
            Allocator::Pytorch(conf) => conf.to_string(),
            Allocator::DriverPool(ReleaseThreshold::Max) | Allocator::Given(_) => String::new(),
            Allocator::DriverPool(ReleaseThreshold::Zero) => "release threshold 0".to_owned(),
        };
        let trim = self.trim_every.map(|every| match every {
            1 => "cache released every step".to_owned(),
            every => format!("cache released every {every} steps"),
        });
        let parts: Vec<String> =
            [Some(allocator).filter(|text| !text.is_empty()), trim].into_iter().flatten().collect();
        f.pad(&if parts.is_empty() { "defaults".to_owned() } else { parts.join(" + ") })
    }
}

impl Serialize for Candidate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written {
            name: String,
            conf: Option<String>,
            release_threshold: Option<ReleaseThreshold>,
            trim_every: Option<u32>,
        }
        let release_threshold = match self.allocator {
            Allocator::DriverPool(threshold) => Some(threshold),
            Allocator::Pytorch(_) | Allocator::Given(_) => None,
        };
        let written =
            Written { name: self.to_string(), conf: self.conf(), release_threshold, trim_every: self.trim_every };
        written.serialize(serializer)
    }
}

/// What is tried one at a time, and then together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    /// Where blocks may be cut: `expandable_segments` and `max_split_size_mb`, which do nothing for each other.
    Segments,
    /// `roundup_power2_divisions`.
    Roundup,
    /// `garbage_collection_threshold`.
    Collection,
}

/// The settings of an axis.
type Place = (bool, Option<u64>, Option<u64>, Vec<u32>);

impl Axis {
    pub(super) const ALL: [Self; 3] = [Self::Segments, Self::Roundup, Self::Collection];

    /// What a configuration says on this axis.
    pub(super) fn of(self, conf: &AllocConf) -> Place {
        let settings = &conf.settings;
        match self {
            Self::Segments => (settings.expandable_segments, settings.max_split_bytes, None, Vec::new()),
            Self::Roundup => (false, None, None, settings.roundup_divisions.to_vec()),
            Self::Collection => (false, None, settings.garbage_collection_threshold.map(f64::to_bits), Vec::new()),
        }
    }

    /// `conf` with this axis as `from` has it.
    pub(super) fn taken(self, conf: &AllocConf, from: &AllocConf) -> AllocConf {
        let (mut conf, from) = (conf.clone(), &from.settings);
        let settings = &mut conf.settings;
        match self {
            Self::Segments => {
                (settings.expandable_segments, settings.max_split_bytes) =
                    (from.expandable_segments, from.max_split_bytes);
            }
            Self::Roundup => settings.roundup_divisions = from.roundup_divisions,
            Self::Collection => settings.garbage_collection_threshold = from.garbage_collection_threshold,
        }
        conf
    }

    /// `conf` with each value of this axis, the default first.
    fn values(self, conf: &AllocConf) -> Vec<AllocConf> {
        match self {
            Self::Segments => [(false, None), (true, None)]
                .into_iter()
                .chain(MAX_SPLIT_MIB.map(|mib| (false, Some(mib * MIB))))
                .map(|cut| {
                    let mut conf = conf.clone();
                    (conf.settings.expandable_segments, conf.settings.max_split_bytes) = cut;
                    conf
                })
                .collect(),
            Self::Roundup => {
                let with =
                    |divisions| AllocConf { settings: conf.settings.with_roundup_divisions(divisions), ..conf.clone() };
                [0].into_iter().chain(ROUNDUP_DIVISIONS).map(with).collect()
            }
            Self::Collection => [None]
                .into_iter()
                .chain(COLLECTION_THRESHOLDS.map(Some))
                .map(|threshold| {
                    let mut conf = conf.clone();
                    conf.settings.garbage_collection_threshold = threshold;
                    conf
                })
                .collect(),
        }
    }
}

/// The baseline with one thing changed, each thing in turn. PyTorch collects garbage by its share of a limit, so without
/// one there is nothing to try there, nor is there with expandable segments, which it never collects.
pub(super) fn neighbours(baseline: &Candidate, has_limit: bool) -> Vec<Candidate> {
    let allocators: Vec<Allocator> = match &baseline.allocator {
        Allocator::Pytorch(own) => {
            // The driver's pool takes none of the others' settings.
            let conf = if own.backend == Backend::Native {
                own.clone()
            } else {
                AllocConf { other: own.other.clone(), ..AllocConf::default() }
            };
            let pool =
                AllocConf { backend: Backend::CudaMallocAsync, other: conf.other.clone(), ..AllocConf::default() };
            let of_axes = Axis::ALL.into_iter().flat_map(|axis| axis.values(&conf));
            of_axes.chain([conf.clone(), pool]).map(Allocator::Pytorch).collect()
        }
        Allocator::DriverPool(_) => [ReleaseThreshold::Max, ReleaseThreshold::Zero].map(Allocator::DriverPool).to_vec(),
        Allocator::Given(_) => Vec::new(),
    };
    distinct(
        allocators.into_iter().map(Candidate::of).filter(|candidate| can_matter(candidate, has_limit)),
        &[baseline],
    )
}

/// All that several candidates changed of the baseline, together: every two of different axes, and the best of all three.
pub(super) fn combinations(baseline: &Candidate, better: &[(Axis, &AllocConf)], has_limit: bool) -> Vec<Candidate> {
    let mut combined: Vec<AllocConf> = Vec::new();
    for (place, (axis, conf)) in better.iter().enumerate() {
        for (other_axis, other) in better.iter().skip(place + 1).filter(|(other, _)| other != axis) {
            combined.push(other_axis.taken(conf, other));
        }
    }
    let best_of = |axis: Axis| better.iter().find(|(one, _)| *one == axis).map(|(_, conf)| (axis, *conf));
    if let [Some((_, first)), others @ ..] = Axis::ALL.map(best_of).as_slice() {
        combined.push(others.iter().flatten().fold((*first).clone(), |conf, (axis, from)| axis.taken(&conf, from)));
    }
    let candidates = combined.into_iter().map(|conf| Candidate::of(Allocator::Pytorch(conf)));
    let tried: Vec<Candidate> =
        better.iter().map(|(_, conf)| Candidate::of(Allocator::Pytorch((*conf).clone()))).collect();
    let known: Vec<&Candidate> = tried.iter().chain([baseline]).collect();
    distinct(candidates.filter(|candidate| can_matter(candidate, has_limit)), &known)
}

fn can_matter(candidate: &Candidate, has_limit: bool) -> bool {
    let settings = candidate.settings();
    settings.garbage_collection_threshold.is_none() || (has_limit && !settings.expandable_segments)
}

pub(super) fn distinct(candidates: impl Iterator<Item = Candidate>, known: &[&Candidate]) -> Vec<Candidate> {
    let mut kept: Vec<Candidate> = Vec::new();
    for candidate in candidates {
        if !known.contains(&&candidate) && !kept.contains(&candidate) {
            kept.push(candidate);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pytorch(text: &str) -> Candidate {
        Candidate::of(Allocator::Pytorch(text.parse().unwrap()))
    }

    #[test]
    fn every_setting_is_one_that_pytorch_reads() {
        for own in ["", "max_split_size_mb:64,pinned_num_register_threads:4", "backend:cudaMallocAsync"] {
            let neighbours = neighbours(&pytorch(own), true);
            assert!(neighbours.len() >= 12, "{own}");
            for candidate in neighbours {
                let conf = candidate.conf().unwrap();
                assert_eq!(pytorch(&conf), candidate, "{conf}");
            }
        }
    }

    #[test]
    fn one_thing_changes_at_a_time_and_own_settings_may_be_dropped() {
        let own = pytorch("max_split_size_mb:64");
        let neighbours = neighbours(&own, true);
        assert!(
            neighbours
                .iter()
                .all(|candidate| candidate.distance(&own) == 1 || candidate.conf().unwrap().starts_with("backend"))
        );
        assert!(neighbours.contains(&pytorch("")));
        assert!(!neighbours.contains(&own));
    }

    #[test]
    fn garbage_is_collected_under_a_limit_only_and_never_from_expandable_segments() {
        let collects = |candidate: &Candidate| candidate.to_string().contains("garbage");
        assert!(neighbours(&pytorch(""), true).iter().any(collects));
        assert!(!neighbours(&pytorch(""), false).iter().any(collects));
        assert!(!neighbours(&pytorch("expandable_segments:True"), true).iter().any(collects));
    }

    #[test]
    fn what_helped_alone_is_put_together() {
        let confs: Vec<AllocConf> = [
            "expandable_segments:True",
            "max_split_size_mb:64",
            "roundup_power2_divisions:8",
            "garbage_collection_threshold:0.8",
        ]
        .map(|text| text.parse().unwrap())
        .into();
        let axes = [Axis::Segments, Axis::Segments, Axis::Roundup, Axis::Collection];
        let better: Vec<(Axis, &AllocConf)> = axes.into_iter().zip(&confs).collect();
        let names: Vec<String> = combinations(&pytorch(""), &better, true).iter().map(Candidate::to_string).collect();
        assert_eq!(
            names,
            [
                "expandable_segments:True,roundup_power2_divisions:8",
                "max_split_size_mb:64,roundup_power2_divisions:8",
                "garbage_collection_threshold:0.8,max_split_size_mb:64",
                "garbage_collection_threshold:0.8,roundup_power2_divisions:8",
            ]
        );
    }

    #[test]
    fn the_driver_s_pool_has_its_threshold_and_nothing_else() {
        let pool = Candidate::of(Allocator::DriverPool(ReleaseThreshold::Max));
        let names: Vec<String> = neighbours(&pool, true).iter().map(Candidate::to_string).collect();
        assert_eq!(names, ["release threshold 0"]);
        assert_eq!((pool.to_string(), pool.conf()), ("defaults".to_owned(), None));
        assert_eq!(pool.trimmed(10).to_string(), "cache released every 10 steps");
        assert!(neighbours(&Candidate::of(Allocator::Given(Settings::default())), true).is_empty());
    }
}
