//! Where memory comes from, by the stack frames of a snapshot.

use std::collections::HashMap;
use std::fmt::Write;

use serde::Serialize;

use crate::memory::snapshot::{BlockState, Frame, Snapshot};

/// The most sites that are listed.
const MAX_SITES: usize = 20;
/// The most frames of a stack that are written out.
const MAX_FRAMES: usize = 128;
/// The longest name that is written out.
const MAX_NAME_CHARS: usize = 120;

/// A place in a program that holds memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Site {
    /// The innermost frame of the program's own: `function (file:line)`.
    pub site: String,
    /// Live bytes allocated there.
    pub bytes: u64,
    /// Live allocations.
    pub blocks: u64,
}

/// Live bytes by site, the largest first.
pub fn sites(snapshot: &Snapshot) -> Vec<Site> {
    let mut by_stack: Vec<(Option<u32>, u64, u64)> =
        totals(snapshot).into_iter().map(|(s, (b, n))| (s, b, n)).collect();
    by_stack.retain(|(stack, ..)| !snapshot.frames(*stack).is_empty());
    let mut by_site: HashMap<String, (u64, u64)> = HashMap::new();
    for (stack, bytes, blocks) in by_stack {
        if let Some(site) = site_of(snapshot, stack) {
            let total = by_site.entry(site).or_default();
            *total = (total.0.saturating_add(bytes), total.1 + blocks);
        }
    }
    let mut sites: Vec<Site> =
        by_site.into_iter().map(|(site, (bytes, blocks))| Site { site, bytes, blocks }).collect();
    sites.sort_by(|left, right| (right.bytes, &left.site).cmp(&(left.bytes, &right.site)));
    sites.truncate(MAX_SITES);
    sites
}

/// The stacks of live bytes in the folded form of flame graph tools: `outer;…;inner bytes`, one line each.
pub fn folded_stacks(snapshot: &Snapshot) -> String {
    let mut lines: Vec<String> = totals(snapshot)
        .into_iter()
        .filter(|(stack, _)| !snapshot.frames(*stack).is_empty())
        .map(|(stack, (bytes, _))| {
            let frames = snapshot.frames(stack).iter().take(MAX_FRAMES).rev();
            let names: Vec<String> =
                frames.map(|frame| shown(snapshot.text(frame.function)).replace(';', ":")).collect();
            format!("{} {bytes}", names.join(";"))
        })
        .collect();
    lines.sort_unstable();
    lines.iter().fold(String::new(), |mut text, line| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{line}");
        text
    })
}

/// Live bytes and blocks by stack.
fn totals(snapshot: &Snapshot) -> HashMap<Option<u32>, (u64, u64)> {
    let mut totals: HashMap<Option<u32>, (u64, u64)> = HashMap::new();
    let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    for block in blocks.filter(|block| block.state != BlockState::Inactive) {
        let total = totals.entry(block.stack).or_default();
        *total = (total.0.saturating_add(block.bytes), total.1 + 1);
    }
    totals
}

/// The innermost frame in a Python file outside PyTorch, else the innermost frame.
pub(super) fn site_of(snapshot: &Snapshot, stack: Option<u32>) -> Option<String> {
    let frames = snapshot.frames(stack);
    let own = |frame: &&Frame| {
        let file = snapshot.text(frame.file);
        file.rsplit('.').next() == Some("py") && !file.contains("/torch/")
    };
    let frame = frames.iter().find(own).or_else(|| frames.first())?;
    Some(format!("{} ({}:{})", shown(snapshot.text(frame.function)), shown(snapshot.text(frame.file)), frame.line))
}

/// A name from a stranger's file: short, and nothing that a terminal would obey.
fn shown(name: &str) -> String {
    name.chars().take(MAX_NAME_CHARS).flat_map(char::escape_debug).collect()
}
