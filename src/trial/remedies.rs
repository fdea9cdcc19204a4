//! What other shapes would do to the whole run of a configuration, by forecast: rows padded to a multiple, samples grouped
//! by length, a budget of tokens in place of a number of samples; and releases of the cache.
//!
//! Nothing of it was run. A run that breaks may last with one of them, and one that lasts may do with less memory or with
//! fewer steps. None is free (padding costs compute, grouping changes which samples meet in a batch, a budget changes how
//! many do), so they are offered, and whoever trains decides.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::memory::Trim;
use crate::memory::forecast::batching::BatchedRun;
use crate::units::Bytes;

/// What is tried beside the run as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRemedies {
    /// The run as it is.
    pub as_it_is: BatchedRun,
    /// Other ways, those that are offered first, the best of them before all.
    pub ways: Vec<RunRemedy>,
    /// Ways that there was no time for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unplayed: usize,
}

impl RunRemedies {
    /// The ways that gain something.
    pub fn offered(&self) -> impl Iterator<Item = &RunRemedy> {
        self.ways.iter().filter(|way| way.offered)
    }

    /// Keys of the configuration with which a run lasts that breaks, and where there are none the best of the other ways:
    /// for the reason why it is refused.
    pub fn hint(&self, who: Padder) -> Option<String> {
        if self.as_it_is.lasts() {
            return None;
        }
        let least = |is_meant: fn(&Changes) -> Option<u64>| {
            let meant = self.offered().filter_map(|way| Some((is_meant(&way.changes)?, way)));
            meant.min_by_key(|(order, _)| *order).map(|(_, way)| way)
        };
        let padded = least(|changes| changes.pad_to_multiple_of.filter(|_| !changes.group_by_length));
        let released = least(|changes| changes.trim.map(|trim| u64::from(trim == Trim::AfterUpdate)));
        let mut hints: Vec<&RunRemedy> = padded.into_iter().chain(released).collect();
        if hints.is_empty() {
            hints.extend(self.offered().next());
        }
        let lasts = |way: &&RunRemedy| {
            let held = Bytes(way.run.peak_reserved_bytes);
            format!("with {} the run lasts, by forecast with {held} reserved", way.changes)
        };
        let is_its_own = who == Padder::Program && hints.iter().any(|way| way.changes.pad_to_multiple_of.is_some());
        let own = is_its_own.then(|| "how it pads is the program's to do, `data` tells the forecast alone".to_owned());
        let hints: Vec<String> = hints.iter().map(lasts).chain(own).collect();
        (!hints.is_empty()).then(|| hints.join("; "))
    }
}

/// Who pads the batches of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padder {
    /// The loader, as the configuration has it.
    Loader,
    /// A program of the user's own, which cannot read what the configuration says of its data.
    Program,
}

/// One way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRemedy {
    /// What is changed.
    pub changes: Changes,
    /// What the run comes to.
    pub run: BatchedRun,
    /// What that is against the run as it is, in a sentence.
    pub reason: String,
    /// Whether it gains something.
    pub offered: bool,
}

/// What is changed; all else stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// `data.pad_to_multiple_of`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pad_to_multiple_of: Option<u64>,
    /// Samples are sorted by length within windows of 50 batches: for the sampler of whoever trains.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub group_by_length: bool,
    /// A batch has as many samples as fit into so many tokens: for the sampler of whoever trains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_budget: Option<u64>,
    /// `memory.trim`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trim: Option<Trim>,
}

impl fmt::Display for Changes {
    /// Keys of the configuration as they are written, and words for what has no key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.pad_to_multiple_of.map(|multiple| format!("`data.pad_to_multiple_of: {multiple}`")));
        parts.extend(self.token_budget.map(|budget| format!("a budget of {budget} tokens a batch")));
        if self.group_by_length {
            parts.push("samples grouped by length".to_owned());
        }
        parts.extend(self.trim.map(|trim| format!("`memory.trim: {trim}`")));
        f.pad(&parts.join(" and "))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde asks for")]
fn is_zero(value: &usize) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::forecast::long_run::Breach;
    use crate::units::MIB;

    fn way(changes: Changes, offered: bool) -> RunRemedy {
        let run = BatchedRun { peak_reserved_bytes: 300 * MIB, ..BatchedRun::default() };
        RunRemedy { changes, run, reason: "holds as much".to_owned(), offered }
    }

    fn padded(multiple: u64) -> Changes {
        Changes { pad_to_multiple_of: Some(multiple), ..Changes::default() }
    }

    fn released(trim: Trim) -> Changes {
        Changes { trim: Some(trim), ..Changes::default() }
    }

    fn remedies(ways: Vec<RunRemedy>) -> RunRemedies {
        let breach = Some(Breach::Rate { step: 7, rate: 0.4, threshold: 0.3 });
        RunRemedies { as_it_is: BatchedRun { breach, ..BatchedRun::default() }, ways, unplayed: 0 }
    }

    #[test]
    fn a_refused_run_is_told_the_smallest_padding_and_the_rarest_release_that_make_it_last() {
        let ways = vec![
            way(padded(256), true),
            way(padded(128), true),
            way(padded(64), false),
            way(Changes { group_by_length: true, ..padded(64) }, true),
            way(released(Trim::AfterUpdate), true),
            way(released(Trim::EveryK), true),
        ];
        assert_eq!(
            remedies(ways).hint(Padder::Loader).unwrap(),
            "with `data.pad_to_multiple_of: 128` the run lasts, by forecast with 300.0 MiB reserved; with `memory.trim: \
             every_k` the run lasts, by forecast with 300.0 MiB reserved"
        );
    }

    #[test]
    fn a_program_is_told_that_its_padding_is_its_own() {
        let hint = |ways: Vec<RunRemedy>| remedies(ways).hint(Padder::Program).unwrap();
        let own = "; how it pads is the program's to do, `data` tells the forecast alone";
        assert!(hint(vec![way(padded(128), true)]).ends_with(own));
        assert!(!hint(vec![way(released(Trim::EveryK), true)]).contains("program"));
    }

    #[test]
    fn without_a_key_that_helps_the_best_way_is_told_and_without_any_nothing() {
        let budget = Changes { token_budget: Some(4096), group_by_length: true, ..Changes::default() };
        let hint = remedies(vec![way(budget, true)]).hint(Padder::Loader).unwrap();
        assert!(
            hint.starts_with("with a budget of 4096 tokens a batch and samples grouped by length the run"),
            "{hint}"
        );
        assert_eq!(remedies(vec![way(budget, false)]).hint(Padder::Loader), None);
        let lasting = RunRemedies { as_it_is: BatchedRun::default(), ..remedies(vec![way(budget, true)]) };
        assert_eq!(lasting.hint(Padder::Loader), None);
    }

    #[test]
    fn what_is_journaled_is_read_back() {
        let all = remedies(vec![way(released(Trim::EveryK), true)]);
        let text = serde_json::to_string(&all).unwrap();
        assert!(text.contains(r#""changes":{"trim":"every_k"}"#), "{text}");
        assert_eq!(serde_json::from_str::<RunRemedies>(&text).unwrap(), all);
    }
}
