//! Who was seen to hold memory, each with the most that it held.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::findings::{Certainty, Finding, Kind};
use super::{Holder, Whose};
use crate::units::MIB;

/// Processes that are kept by name.
const MOST_PROCESSES: usize = 64;
/// Processes that are told by name.
const NAMED_PROCESSES: usize = 8;
/// What others must hold to be told of.
const OTHERS_FROM_BYTES: u64 = 64 * MIB;

/// The processes of a watch by their numbers, bounded.
#[derive(Clone, Debug, Default)]
pub(super) struct Holders(BTreeMap<u32, Holder>);

impl Holders {
    pub(super) fn add(&mut self, seen: &[Holder]) {
        for holder in seen {
            if let Some(known) = self.0.get_mut(&holder.pid) {
                let bytes = known.bytes.max(holder.bytes);
                let name = holder.name.clone().or(known.name.take());
                *known = Holder { name, bytes, ..holder.clone() };
            } else if self.0.len() < MOST_PROCESSES {
                self.0.insert(holder.pid, holder.clone());
            }
        }
    }

    pub(super) fn include_the_watched(&self) -> bool {
        self.0.values().any(|holder| holder.whose == Whose::Watched)
    }

    pub(super) fn largest_first(&self) -> Vec<Holder> {
        let mut all: Vec<Holder> = self.0.values().cloned().collect();
        all.sort_by_key(|holder| Reverse(holder.bytes));
        all
    }

    /// Those beside the process `watched`; without one, one alone on the card is the one that is meant.
    pub(super) fn others(&self, watched: Option<u32>) -> Option<Finding> {
        let mut others = self.largest_first();
        others.retain(|holder| {
            let is_anothers = watched.is_none() || holder.whose == Whose::Other;
            is_anothers && holder.bytes.is_none_or(|bytes| bytes >= OTHERS_FROM_BYTES)
        });
        let (least, whom) = match watched {
            Some(_) => (1, "others hold memory of the card"),
            None => (2, "several processes share the card"),
        };
        if others.len() < least {
            return None;
        }
        let more = others.len().saturating_sub(NAMED_PROCESSES);
        let mut named: Vec<String> = others.iter().take(NAMED_PROCESSES).map(ToString::to_string).collect();
        if more > 0 {
            named.push(format!("{more} more"));
        }
        let text = format!("{whom}: {} at most", named.join(", "));
        Some(Finding::new(Kind::OtherProcesses, Certainty::Seen, text))
    }
}
