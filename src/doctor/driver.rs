//! Driver, toolkit, and which cards are visible.

use super::{Facts, Finding, Level};
use crate::text::harmless;
use crate::units::plural;

/// The first driver of CUDA 12, and of what PyTorch's `cudaMallocAsync` needs.
const CUDA_12_DRIVER: [u32; 3] = [525, 60, 13];
/// The first CUDA release whose memory pools can have a cap, `maxSize` (CUDA 12.2, `CUmemPoolProps`).
const CAPPED_POOLS: u32 = 12_020;

pub(super) fn examine(facts: &Facts) -> Vec<Finding> {
    let driver = match &facts.driver {
        Ok(driver) => driver,
        Err(reason) => return vec![absent(reason, facts.has_device_files)],
    };
    let mut findings = vec![version(&driver.version, &harmless(&driver.version))];
    findings.push(release(driver.cuda, facts.toolkit));
    findings.push(visible(facts, driver.cards));
    findings
}

fn absent(reason: &str, has_device_files: bool) -> Finding {
    let advice = if has_device_files {
        "the machine has cards, but this container lacks the driver's libraries: start it with `--gpus all` and the NVIDIA Container Toolkit"
    } else {
        "install NVIDIA's driver, or ask for a machine (or a container, `--gpus all`) with a card; `device: cpu` needs none"
    };
    let meaning = "programs cannot use a card here. `tune` trains on the CPU, and `tune watch` has nothing to look at";
    Finding::new("driver", Level::Problem, format!("no NVIDIA driver answers ({})", harmless(reason)), meaning)
        .advise(advice)
}

fn version(version: &str, shown: &str) -> Finding {
    let found = format!("driver {shown}");
    let Some(numbers) = numbers(version) else {
        return Finding::new("driver", Level::Note, found, "its version is in no known form, so it is not judged");
    };
    if numbers >= CUDA_12_DRIVER {
        return Finding::new(
            "driver",
            Level::Fine,
            found,
            "new enough for CUDA 12 and for PyTorch's `cudaMallocAsync`",
        );
    }
    let meaning =
        "older than 525.60.13: builds for CUDA 12 do not start, and PyTorch's `cudaMallocAsync` backend is refused";
    Finding::new("driver", Level::Warning, found, meaning).advise("update the driver, or use builds for CUDA 11")
}

/// Whether the driver is known to be one of before CUDA 12.
pub(super) fn is_before_cuda_12(facts: &Facts) -> bool {
    let numbers = facts.driver.as_ref().ok().and_then(|driver| numbers(&driver.version));
    numbers.is_some_and(|numbers| numbers < CUDA_12_DRIVER)
}

/// `580.159.03` and `525.60` as numbers.
fn numbers(version: &str) -> Option<[u32; 3]> {
    let mut parts = version.split('.').map(|part| part.parse().ok());
    let major = parts.next().flatten()?;
    Some([major, parts.next().flatten().unwrap_or(0), parts.next().flatten().unwrap_or(0)])
}

fn release(cuda: Option<u32>, toolkit: Option<u32>) -> Finding {
    let Some(cuda) = cuda else {
        return Finding::new("cuda", Level::Note, "the driver does not tell its CUDA release", "it is not judged");
    };
    let found = format!("the driver supports CUDA {}", dotted(cuda));
    match toolkit {
        Some(toolkit) if cuda < toolkit => {
            let meaning = format!("this build of tune needs {}, so it cannot open the card", dotted(toolkit));
            Finding::new("cuda", Level::Problem, found, meaning)
                .advise(format!("update the driver, or build tune with a CUDA {} toolkit", dotted(cuda)))
        }
        Some(_) if cuda < CAPPED_POOLS => {
            let meaning = "memory pools with a cap came with CUDA 12.2, and this build of tune keeps its limit by one";
            Finding::new("cuda", Level::Problem, found, meaning).advise("update the driver to 535 or newer")
        }
        Some(_) => {
            Finding::new("cuda", Level::Fine, found, "new enough for this build, and for pools with a cap (CUDA 12.2)")
        }
        None if cuda < CAPPED_POOLS => {
            let meaning = "a build of tune with `--features cuda` needs 12.2 for its pool with a cap; this one has no CUDA and tunes commands";
            Finding::new("cuda", Level::Note, found, meaning)
        }
        None => {
            let meaning =
                "this build of tune has no CUDA: it tunes commands on the card, and models of its own on the CPU";
            Finding::new("cuda", Level::Fine, found, meaning)
        }
    }
}

fn visible(facts: &Facts, present: u32) -> Finding {
    let count = facts.cards.len();
    let of = format!("{count} of {} can be used", plural(present as usize, "card"));
    let Some(variable) = &facts.environment.visible_devices else {
        return match order(facts) {
            _ if count == 0 => Finding::new("cards", Level::Problem, of, "the driver has no card that answers")
                .advise("look at `nvidia-smi`"),
            Some(finding) => finding,
            None => Finding::new("cards", Level::Fine, of, "`CUDA_VISIBLE_DEVICES` is not set"),
        };
    };
    let found = format!("`CUDA_VISIBLE_DEVICES={}`", harmless(&variable.chars().take(80).collect::<String>()));
    if count == 0 {
        return Finding::new("cards", Level::Problem, found, "it hides every card from programs that start here").advise(
            "unset it, or name cards by index (`0,1`) or by UUID (`nvidia-smi -L`); a MIG slice is not looked at here",
        );
    }
    if count < variable.split(',').count() {
        let meaning = format!("CUDA's list ends at the first name that is no card's: {of}");
        return Finding::new("cards", Level::Warning, found, meaning)
            .advise("correct the name after the last card that is meant");
    }
    order(facts).unwrap_or_else(|| Finding::new("cards", Level::Fine, found, of))
}

/// Unless told, CUDA puts the fastest card first, and NVML goes by the bus.
fn order(facts: &Facts) -> Option<Finding> {
    let first = facts.cards.first()?;
    let differ = facts.cards.iter().any(|card| card.name != first.name);
    let by_bus = facts.environment.device_order.as_deref() == Some("PCI_BUS_ID");
    (differ && !by_bus).then(|| {
        let meaning =
            "CUDA counts the fastest first, `nvidia-smi` and this list by the bus: an index may mean another card";
        Finding::new("cards", Level::Warning, "cards of several kinds", meaning)
            .advise("set `CUDA_DEVICE_ORDER=PCI_BUS_ID`, or name cards by UUID")
    })
}

/// `13.0` for 13000.
fn dotted(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}
