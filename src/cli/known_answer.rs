//! A study that has its answer already.
//!
//! A job script runs `tune` before every launch. Where nothing has changed since the last time, neither the configuration
//! nor the device, searching again would find the same: the answer is written and printed again, and `--fresh` searches.
//! What has changed makes the answer worthless, and so does memory that is gone: the limit that it was proved under must
//! still be free. An answer that is not `safe` is not offered: whoever runs again hopes for a better one.
//!
//! The journal that was set aside last counts where the one in its place is of another configuration: whoever goes to and fro
//! between two of one name would search each time. Where the one in its place is of this configuration it does not: then
//! somebody wanted another answer than that (`--fresh`), or what it rests on has changed.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::config::Plan;
use crate::device::DeviceFacts;
use crate::report::Recommendation;
use crate::search::recommend::Status;
use crate::search::{History, JudgedTrial, Space, rules};
use crate::text::{harmless, with_causes};
use crate::trial::Point;
use crate::trial::journal::{self, Contents, Entry, Journal, JournalError};

/// What a study directory holds for a plan.
pub(super) enum Found {
    /// Nothing that would be missed.
    Nothing,
    /// Trials of another plan.
    OtherPlan,
    /// A journal that cannot be read, and why.
    Unreadable(String),
    /// Trials of this plan, without an answer that can be launched.
    Unfinished,
    /// An answer for a program that has changed since: this file of it has.
    Outdated(String),
    /// The answer.
    Answer(Box<Answer>),
}

/// A finished study.
pub(super) struct Answer {
    /// The journal that holds it.
    pub(super) journal: PathBuf,
    pub(super) recommendation: Recommendation,
    pub(super) history: History,
    pub(super) started: String,
}

impl Found {
    /// Why what is there is no answer, and is searched again.
    pub(super) fn why_searched_again(&self, study: &Path) -> Option<String> {
        let study = study.display();
        let kept = journal::PREVIOUS_FILE_NAME;
        Some(match self {
            Self::Nothing | Self::Answer(_) => return None,
            Self::OtherPlan => {
                format!("the study in {study} is of another configuration (its journal will be kept as `{kept}`)")
            }
            Self::Unreadable(why) => format!("{why} (it will be kept as `{kept}`)"),
            Self::Unfinished => {
                format!("the study in {study} has no safe answer yet (hint: `--resume` goes on with it)")
            }
            Self::Outdated(file) => format!("`{}` has changed since the last study", harmless(file)),
        })
    }
}

/// Looks into the journal. One that cannot be read, or of another plan, will be kept and replaced.
pub(super) fn find(plan: &Plan, study: &Path) -> Found {
    if !Journal::exists(study) {
        return Found::Nothing;
    }
    let path = study.join(journal::FILE_NAME);
    let contents = match journal::read(&path) {
        Ok(contents) => contents,
        Err(JournalError::NoHeader { .. }) => return Found::Nothing,
        Err(error) => return Found::Unreadable(with_causes(&error)),
    };
    let has_trials = contents.finished().next().is_some();
    if contents.header.expect_plan(&plan.sha256()).is_err() {
        return match answer_before(plan, study) {
            Some(answer) => Found::Answer(Box::new(answer)),
            None if has_trials => Found::OtherPlan,
            None => Found::Nothing,
        };
    }
    if let Some(file) = changed_file(plan, &contents.header.started) {
        return Found::Outdated(file);
    }
    match answer(&contents, plan, path) {
        Some(answer) => Found::Answer(Box::new(answer)),
        None if has_trials => Found::Unfinished,
        None => Found::Nothing,
    }
}

/// The answer in the journal that was set aside last.
fn answer_before(plan: &Plan, study: &Path) -> Option<Answer> {
    let path = study.join(journal::PREVIOUS_FILE_NAME);
    let contents = journal::read(&path).ok()?;
    let is_of_plan = contents.header.expect_plan(&plan.sha256()).is_ok();
    let is_meant = is_of_plan && changed_file(plan, &contents.header.started).is_none();
    is_meant.then(|| answer(&contents, plan, path)).flatten()
}

/// A file of the user's own program that has changed since a study began (RFC 3339).
pub(super) fn changed_file(plan: &Plan, started: &str) -> Option<String> {
    let started: jiff::Timestamp = started.parse().ok()?;
    let since_the_epoch = Duration::from_secs(u64::try_from(started.as_second()).ok()?);
    plan.command()?.changed_since(SystemTime::UNIX_EPOCH.checked_add(since_the_epoch)?).map(str::to_owned)
}

fn answer(contents: &Contents, plan: &Plan, journal: PathBuf) -> Option<Answer> {
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
    (recommendation.status == Status::Safe && is_proved(&recommendation, &history, plan)).then(|| Answer {
        journal,
        recommendation,
        history,
        started: contents.header.started.clone(),
    })
}

/// Whether the journal holds the soak that the answer rests on, judged again. A journal can be edited; what it says of
/// itself is not taken for granted.
fn is_proved(recommendation: &Recommendation, history: &History, plan: &Plan) -> bool {
    let Some(recommended) = &recommendation.recommended else { return false };
    let same = |point: &Point| {
        (point.batch_size, point.accumulation_steps) == (recommended.batch_size, recommended.accumulation_steps)
            && (point.loader_workers, point.prefetch_depth, point.device_prefetch)
                == (recommended.loader_workers, recommended.prefetch_depth, recommended.device_prefetch)
            && point.alloc_conf.as_ref().or(recommendation.environment.alloc_conf.as_ref())
                == recommended.allocator.conf.as_ref()
    };
    history.trials().iter().map(|trial| &trial.record).any(|record| {
        record.spec.is_soak()
            && record.completed()
            && record.measurement.is_some()
            && record.is_fully_seen()
            && same(&record.spec.point)
            && Space::new(plan).meets_target(&record.spec.point)
            && rules::judge(record, &plan.safety).passed()
    })
}

impl Answer {
    /// Whether it holds on this device: the same one, with the memory that it was proved under. A launcher gives any of
    /// its kind, today this and tomorrow that.
    pub(super) fn holds_on(&self, facts: &DeviceFacts, plan: &Plan) -> bool {
        let known = &self.recommendation.environment;
        let kind = |facts: &DeviceFacts| (facts.device.clone(), facts.name.clone(), facts.driver.clone());
        let identity = |facts: &DeviceFacts| (facts.uuid.clone(), facts.hostname.clone());
        kind(known) == kind(facts)
            && (plan.launcher.is_some() || identity(known) == identity(facts))
            && known.total_bytes == facts.total_bytes
            && known.allocator == facts.allocator
            && known.limit_bytes <= facts.free_bytes.max(facts.limit_bytes)
            && self.recommendation.provenance.version == env!("CARGO_PKG_VERSION")
    }
}
