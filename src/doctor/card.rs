//! One card: its generation, its memory and the errors in it, who else is on it, what slows it down.

use super::{CardFacts, Facts, Finding, Level};
use crate::device::limit::{DEFAULT_RESERVE_BYTES, MINIMUM_BYTES};
use crate::device::nvml::{Ecc, Exclusive, RemappedRows};
use crate::text::harmless;
use crate::units::Bytes;

/// Processes that are named.
const NAMED: usize = 8;
/// The first driver with stream-ordered pools: CUDA 11.2.
const POOLS: u32 = 11_020;

pub(super) fn examine(index: usize, card: &CardFacts, facts: &Facts) -> Vec<Finding> {
    let cuda = facts.driver.as_ref().ok().and_then(|driver| driver.cuda);
    let health = &card.health;
    let mut findings = vec![memory(card), capability(health.capability), pools(health.capability, cuda, facts.toolkit)];
    findings.extend(others(card));
    findings.extend(exclusive(card));
    findings.push(ecc(health.ecc));
    findings.extend(health.remapped.map(remapped));
    findings.extend(health.is_split.filter(|is_split| *is_split).map(|_| split()));
    findings.extend((!health.slowdowns.is_empty()).then(|| slowdown(&health.slowdowns)));
    findings.into_iter().map(|finding| finding.of_card(index)).collect()
}

fn memory(card: &CardFacts) -> Finding {
    let found = format!("{}, {} with {} free", harmless(&card.name), Bytes(card.total_bytes), Bytes(card.free_bytes));
    if card.free_bytes < DEFAULT_RESERVE_BYTES + MINIMUM_BYTES {
        return Finding::new("memory", Level::Problem, found, "there is no room for a training step")
            .advise("end what holds the memory, or choose another card with `CUDA_VISIBLE_DEVICES`");
    }
    Finding::new("memory", Level::Fine, found, "by default `tune` uses 85% of it, and at most what is free less 1 GiB")
}

fn capability(capability: Option<(u32, u32)>) -> Finding {
    let Some((major, minor)) = capability else {
        return Finding::new(
            "capability",
            Level::Note,
            "the card does not tell its compute capability",
            "it is not judged",
        );
    };
    let found = format!("compute capability {major}.{minor}");
    match (major, minor) {
        (8.., _) => Finding::new("capability", Level::Fine, found, "bf16 and TF32 in hardware"),
        (7, _) => Finding::new("capability", Level::Note, found, "tensor cores for f16; bf16 is emulated and slow")
            .advise("train in `mixed_f16` rather than in bf16"),
        _ => Finding::new(
            "capability",
            Level::Warning,
            found,
            "no tensor cores; current builds of PyTorch have no code for it",
        )
        .advise("use an older build, or another card"),
    }
}

/// Whether it has stream-ordered memory pools is an attribute that only an open device tells.
fn pools(capability: Option<(u32, u32)>, cuda: Option<u32>, toolkit: Option<u32>) -> Finding {
    let inferred = "inferred from driver and generation, since no device is opened here";
    match (capability, cuda) {
        (Some((6.., _)), Some(POOLS..)) => {
            Finding::new("memory_pools", Level::Fine, "stream-ordered memory pools are supported", inferred)
        }
        (Some(_), Some(_)) => {
            let level = if toolkit.is_some() { Level::Problem } else { Level::Warning };
            Finding::new("memory_pools", level, "stream-ordered memory pools are not supported", inferred)
                .advise("they need CUDA 11.2 and the Pascal generation; `backend:cudaMallocAsync` and `tune` on a card need them")
        }
        _ => Finding::new(
            "memory_pools",
            Level::Note,
            "memory pools are not known",
            "driver and generation were not told",
        ),
    }
}

fn others(card: &CardFacts) -> Option<Finding> {
    if card.processes.is_empty() {
        return None;
    }
    let mut named: Vec<String> =
        card.processes.iter().take(NAMED).map(|process| harmless(&process.to_string())).collect();
    if card.processes.len() > NAMED {
        named.push(format!("{} more", card.processes.len() - NAMED));
    }
    let held = card.processes.iter().filter_map(|process| process.bytes).fold(0, u64::saturating_add);
    // Under a twentieth of the card a neighbour is no trouble.
    let level = if held > card.total_bytes / 20 { Level::Warning } else { Level::Note };
    let meaning = "what others hold is missing from a run, and what they take later may end it";
    Some(Finding::new("processes", level, named.join(", "), meaning).advise(
        "end them if they are not meant to be there, choose another card, or set `memory.limit` below what stays free",
    ))
}

fn exclusive(card: &CardFacts) -> Option<Finding> {
    Some(match card.health.exclusive? {
        Exclusive::Nobody => {
            Finding::new("compute_mode", Level::Problem, "compute mode `prohibited`", "no program may use the card")
                .advise("`sudo nvidia-smi -c DEFAULT`")
        }
        Exclusive::OneProcess => {
            let busy = !card.processes.is_empty();
            let level = if busy { Level::Problem } else { Level::Note };
            let meaning =
                if busy { "one process at a time, and one has it" } else { "one process at a time may use it" };
            Finding::new("compute_mode", level, "compute mode `exclusive`", meaning)
                .advise("loader workers that open the device fail; `sudo nvidia-smi -c DEFAULT` lifts it")
        }
    })
}

fn ecc(ecc: Option<Ecc>) -> Finding {
    let Some(ecc) = ecc else {
        return Finding::new(
            "ecc",
            Level::Note,
            "no error correction of the card's memory",
            "bit errors are not noticed",
        );
    };
    if ecc.enabled != ecc.enabled_next {
        let next = if ecc.enabled_next { "on" } else { "off" };
        let meaning = "how much memory there is may change with it";
        return Finding::new(
            "ecc",
            Level::Warning,
            format!("error correction will be {next} after a restart"),
            meaning,
        )
        .advise("restart before a limit is tuned");
    }
    if !ecc.enabled {
        return Finding::new("ecc", Level::Note, "error correction is off", "bit errors are not noticed")
            .advise("`sudo nvidia-smi -e 1` and a restart, where long runs matter");
    }
    let told = |count: Option<u64>| count.map_or_else(|| "an unknown number of".to_owned(), |count| count.to_string());
    let found = format!(
        "error correction is on; since the driver was loaded {} corrected and {} uncorrected errors, {} uncorrected ever",
        told(ecc.corrected),
        told(ecc.uncorrected),
        told(ecc.uncorrected_ever)
    );
    match (ecc.uncorrected, ecc.uncorrected_ever) {
        (Some(1..), _) => {
            let meaning = "a program was hit by an error that could not be corrected, and the next may be";
            Finding::new("ecc", Level::Warning, found, meaning)
                .advise("reset the card (`nvidia-smi --gpu-reset`), look for Xid 48, 63, 94 and 95 in `dmesg`, and have it replaced if they come again")
        }
        (_, Some(1..)) => Finding::new("ecc", Level::Note, found, "it had errors before its last reset"),
        _ => Finding::new("ecc", Level::Fine, found, "its memory is sound"),
    }
}

fn remapped(rows: RemappedRows) -> Finding {
    let found = format!(
        "{} rows of its memory replaced after errors that were corrected, {} after others",
        rows.corrected, rows.uncorrected
    );
    if rows.failed {
        return Finding::new("remapped_rows", Level::Problem, found, "a row could not be replaced: no spare is left")
            .advise("have the card replaced (NVIDIA's criterion for an RMA), and use another meanwhile");
    }
    if rows.pending {
        return Finding::new("remapped_rows", Level::Warning, found, "a replacement waits for the card's next reset")
            .advise("reset the card before a long run: `nvidia-smi --gpu-reset`");
    }
    Finding::new("remapped_rows", Level::Fine, found, "none waits, none failed")
}

fn split() -> Finding {
    let meaning = "a program gets one slice, and its memory is that slice's; the figures here are the whole card's";
    Finding::new("mig", Level::Note, "the card is split into slices (MIG)", meaning)
        .advise("name the slice in `CUDA_VISIBLE_DEVICES` by its UUID (`nvidia-smi -L`)")
}

fn slowdown(reasons: &[&str]) -> Finding {
    let meaning = "its clocks are held down now, so step times are not what they could be";
    Finding::new("clocks", Level::Warning, format!("slowed down: {}", reasons.join(", ")), meaning).advise(
        "look at `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`; compare times only with times under the same clocks",
    )
}
