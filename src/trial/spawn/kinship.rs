//! Which processes a command started: those of its process group, and their descendants wherever they went.
//!
//! Asked of one process at a time, by its ancestors in `/proc`, since few processes hold a card's memory and a host may
//! run thousands. A descendant whose parent has ended is init's child; it is known still if it was asked about before.

use std::collections::HashMap;
use std::fs;

/// Ancestors that are looked at.
const GENERATIONS: usize = 64;

/// The processes of a command.
#[derive(Clone, Debug)]
pub(super) struct Kin {
    group: u32,
    /// Those found so far, with the time they started at: a number may be used again.
    known: HashMap<u32, u64>,
}

impl Kin {
    /// Those of the process group `group`, which a process of that number leads.
    pub(super) fn of(group: u32) -> Self {
        Self { group, known: HashMap::new() }
    }

    /// Whether `process` is one of them.
    pub(super) fn includes(&mut self, process: u32) -> bool {
        let Some(first) = Place::of(process) else { return false };
        if self.known.get(&process) == Some(&first.started) {
            return true;
        }
        let mut place = Some(first);
        for _ in 0..GENERATIONS {
            let Some(Place { parent, group, .. }) = place else { return false };
            if group == self.group || parent == self.group {
                self.known.insert(process, first.started);
                return true;
            }
            if parent <= 1 {
                return false;
            }
            place = Place::of(parent);
        }
        false
    }
}

/// Where a process stands among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    parent: u32,
    group: u32,
    /// In clock ticks since the machine started.
    started: u64,
}

impl Place {
    fn of(process: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }

    /// The fields `ppid`, `pgrp` and `starttime`. The name before them may itself hold parentheses and spaces.
    fn parse(stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(1);
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        let started = fields.nth(16)?.parse().ok()?;
        Some(Self { parent, group, started })
    }
}
