//! A study that has its answer already.
//!
//! A job script runs `tune` before every launch. Where nothing has changed since the last time, neither the configuration
//! nor the device, searching again would find the same: the answer is written and printed again, and `--fresh` searches.
//! What has changed makes the answer worthless, and so does memory that is gone: the limit that it was proved under must
//! still be free. An answer that is not `safe` is not offered: whoever runs again hopes for a better one.

use std::path::Path;

use crate::config::Plan;
use crate::device::DeviceFacts;
use crate::report::Recommendation;
use crate::search::recommend::Status;
use crate::search::{History, JudgedTrial};
use crate::trial::journal::{self, Contents, Entry, Journal};

/// What a study directory holds for a plan.
pub(super) enum Found {
    /// Nothing of this plan.
    Nothing,
    /// Trials of this plan, without an answer that can be launched.
    Unfinished,
    /// The answer.
    Answer(Box<Answer>),
}

/// A finished study.
pub(super) struct Answer {
    pub(super) recommendation: Recommendation,
    pub(super) history: History,
    pub(super) started: String,
}

/// Looks into the journal. One that cannot be read, or of another plan, is nothing: it will be kept and replaced.
pub(super) fn find(plan: &Plan, study: &Path) -> Found {
    if !Journal::exists(study) {
        return Found::Nothing;
    }
    let Ok(contents) = journal::read(&study.join(journal::FILE_NAME)) else { return Found::Nothing };
    if contents.header.expect_plan(&plan.sha256()).is_err() {
        return Found::Nothing;
    }
    match answer(&contents) {
        Some(answer) => Found::Answer(Box::new(answer)),
        None if contents.finished().next().is_some() => Found::Unfinished,
        None => Found::Nothing,
    }
}

fn answer(contents: &Contents) -> Option<Answer> {
    let concluded = contents.entries.iter().rev().find_map(|entry| match entry {
        Entry::Concluded { status } => Some(status.as_str()),
        // A trial after the last conclusion is of a study that was taken up again.
        Entry::TrialStarted { .. } => Some("unfinished"),
        _ => None,
    });
    if concluded != Some(Status::Safe.name()) {
        return None;
    }
    let recommended = contents.entries.iter().rev().find_map(|entry| match entry {
        Entry::Recommended { recommendation } => Some(recommendation),
        _ => None,
    });
    let recommendation: Recommendation = serde_json::from_value(recommended?.clone()).ok()?;
    let mut history = History::default();
    for (record, verdict) in contents.finished() {
        let verdict = serde_json::from_value(verdict.clone()).unwrap_or_default();
        history.tell(JudgedTrial { record: record.clone(), verdict });
    }
    (recommendation.status == Status::Safe).then(|| Answer {
        recommendation,
        history,
        started: contents.header.started.clone(),
    })
}

impl Answer {
    /// Whether it holds on this device: the same one, with the memory that it was proved under.
    pub(super) fn holds_on(&self, facts: &DeviceFacts) -> bool {
        let known = &self.recommendation.environment;
        let identity = |facts: &DeviceFacts| {
            (facts.device.clone(), facts.name.clone(), facts.uuid.clone(), facts.driver.clone(), facts.hostname.clone())
        };
        identity(known) == identity(facts)
            && known.total_bytes == facts.total_bytes
            && known.allocator == facts.allocator
            && known.limit_bytes <= facts.free_bytes.max(facts.limit_bytes)
            && self.recommendation.provenance.version == env!("CARGO_PKG_VERSION")
    }
}
