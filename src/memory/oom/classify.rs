//! The rule, and its arithmetic in words.

use super::{OomClass, OomFigures, OomSource};
use crate::units::{Bytes, GIB, MIB};

/// What a process's context, kernels and libraries take outside the allocator: 0.3 to 1.6 GiB in public reports. Only
/// what is beyond it can be another process's.
const OWN_EXTERNAL_BYTES: u64 = 3 * GIB / 2;
/// Requests that PyTorch prints for anything that goes into a small or a 20 MiB segment.
const QUANTISED: [(u64, &str); 2] = [(2 * MIB, "at most 1 MiB"), (20 * MIB, "between 1 and 10 MiB")];

/// The class, and the figures that led to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) class: OomClass,
    /// F, for this process.
    pub(super) free_bytes: Option<u64>,
    /// V − A.
    pub(super) cached_bytes: Option<u64>,
    /// C less the device's free bytes, less V.
    pub(super) external_bytes: Option<u64>,
    /// What other processes hold, or may.
    pub(super) others_bytes: u64,
    /// Whether the process's own limit is tighter than the device.
    pub(super) limit_binds: bool,
}

pub(super) fn classify(figures: &OomFigures) -> Verdict {
    let reserved = figures.reserved_bytes.or(figures.allocated_bytes);
    let under_limit = figures.limit_bytes.map(|limit| limit.saturating_sub(reserved.unwrap_or(0)));
    let free_bytes = match (figures.device_free_bytes, under_limit) {
        (Some(device), Some(limit)) => Some(device.min(limit)),
        (device, limit) => device.or(limit),
    };
    let cached_bytes = match (figures.reserved_bytes, figures.allocated_bytes) {
        (Some(reserved), Some(allocated)) => Some(reserved.saturating_sub(allocated)),
        _ => None,
    };
    let external_bytes = match (figures.total_bytes, figures.device_free_bytes, figures.reserved_bytes) {
        (Some(total), Some(free), Some(reserved)) => Some(total.saturating_sub(free).saturating_sub(reserved)),
        _ => None,
    };
    let limit_binds = under_limit.is_some_and(|limit| figures.device_free_bytes.is_none_or(|device| limit < device));
    let inferred = external_bytes.map_or(0, |external| external.saturating_sub(OWN_EXTERNAL_BYTES));
    let mut verdict = Verdict {
        class: OomClass::Unknown,
        free_bytes,
        cached_bytes,
        external_bytes,
        others_bytes: figures.others_bytes.unwrap_or(inferred),
        limit_binds,
    };
    verdict.class = class(figures, &verdict);
    verdict
}

fn class(figures: &OomFigures, verdict: &Verdict) -> OomClass {
    let (Some(requested), Some(free)) = (figures.requested_bytes, verdict.free_bytes) else {
        return OomClass::Unknown;
    };
    let cached = verdict.cached_bytes.unwrap_or(0);
    let reachable = free.saturating_add(cached);
    if requested <= free {
        // An allocator's own limit leaves no gap: what it holds is cut up, where it says how.
        let cut_up = figures.largest_free_bytes.is_some_and(|largest| largest < requested);
        return if cut_up { OomClass::Fragmentation } else { OomClass::HostOrDriverLimit };
    }
    let held = figures.reserved_bytes.or(figures.allocated_bytes).unwrap_or(0);
    let others_dominate = verdict.others_bytes > held && !verdict.limit_binds;
    let others_suffice = requested <= reachable.saturating_add(verdict.others_bytes) && !verdict.limit_binds;
    if others_suffice && (others_dominate || requested > reachable) {
        return OomClass::OtherProcess;
    }
    if requested <= reachable { OomClass::Fragmentation } else { OomClass::Capacity }
}

/// The arithmetic in plain words.
pub(super) fn explanation(source: OomSource, figures: &OomFigures, verdict: &Verdict) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(requested) = figures.requested_bytes {
        let printed = QUANTISED.iter().find(|(bytes, _)| source == OomSource::Pytorch && *bytes == requested);
        let note = printed.map_or(String::new(), |(_, range)| {
            format!(" (PyTorch prints the segment that it wanted; the tensor itself had {range})")
        });
        lines.push(format!("{} were requested{note}", Bytes(requested)));
    }
    if let Some(free) = verdict.free_bytes {
        let whose = if verdict.limit_binds { "under the limit of this process" } else { "on the device" };
        lines.push(format!("{} were free {whose}", Bytes(free)));
    }
    if let (Some(cached), Some(allocated)) = (verdict.cached_bytes, figures.allocated_bytes) {
        lines.push(format!("tensors held {}, and the allocator's cache {}", Bytes(allocated), Bytes(cached)));
    }
    if let Some(external) = verdict.external_bytes {
        lines.push(format!("{} were outside this allocator", Bytes(external)));
    }
    lines.push(conclusion(figures, verdict));
    lines
}

fn conclusion(figures: &OomFigures, verdict: &Verdict) -> String {
    let requested = figures.requested_bytes.unwrap_or(0);
    let free = verdict.free_bytes.unwrap_or(0);
    let reachable = free.saturating_add(verdict.cached_bytes.unwrap_or(0));
    match verdict.class {
        OomClass::HostOrDriverLimit => {
            "the request fits the free memory, so it is not device memory that ran out: the driver or the host refused \
             (host memory, commit limit, MIG, too many mappings)"
                .to_owned()
        }
        OomClass::Fragmentation => format!(
            "free memory and cache together are {}, at least the request: the bytes are there, but in pieces",
            Bytes(reachable)
        ),
        OomClass::OtherProcess => {
            format!("other processes hold about {}; without them the request would fit", Bytes(verdict.others_bytes))
        }
        OomClass::Capacity => format!(
            "free memory and cache together are {}, which is {} short of the request: no allocator setting can help alone",
            Bytes(reachable),
            Bytes(requested.saturating_sub(reachable))
        ),
        OomClass::Unknown => {
            "the error does not say how much was requested and how much was free, so its cause cannot be told"
                .to_owned()
        }
    }
}
