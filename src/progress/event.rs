//! The events of a study, in the order in which they can occur.

use serde::{Deserialize, Serialize};

use crate::device::DeviceFacts;
use crate::memory::MemorySample;
use crate::memory::forecast::Method;
use crate::trial::outcome::StepTimes;
use crate::trial::remedies::RunRemedies;
use crate::trial::{Outlook, Point, TrialRecord, TrialSpec, TunedRun};

/// One thing that happened in a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The study began.
    StudyStarted {
        /// Its name.
        name: String,
        /// The target batch size.
        target_batch_size: usize,
        /// The strategy.
        strategy: String,
        /// Where the journal is.
        study: String,
        /// Trials that the journal already held.
        resumed_trials: usize,
    },
    /// The study has its answer from an earlier run, which is offered again.
    AnswerKnown {
        /// The study directory.
        study: String,
        /// When the study began, RFC 3339.
        started: String,
    },
    /// The device is open.
    DeviceReady {
        /// What it is.
        facts: DeviceFacts,
    },
    /// A trial began.
    TrialStarted {
        /// What is run.
        spec: TrialSpec,
        /// The device, where there is more than one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
    },
    /// A step finished.
    Step {
        /// Steps finished so far.
        step: u32,
        /// Of how many as of now: a trial whose times cannot be believed yet goes on.
        total: u32,
        /// Its loss; `null` where it is not finite.
        loss: Option<f64>,
        /// Its times.
        times: StepTimes,
        /// The device, where there is more than one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
    },
    /// A memory sample was taken.
    Sample {
        /// The figures.
        sample: MemorySample,
        /// The device, where there is more than one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
    },
    /// A trial ended.
    TrialEnded {
        /// What happened.
        record: Box<TrialRecord>,
        /// The safety rules' verdict.
        verdict: crate::search::Verdict,
        /// The device, where there is more than one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
    },
    /// The probes were read: what their forecast is worth.
    Forecast {
        /// How it was made.
        method: Method,
        /// The largest batch size that fits by it.
        largest_batch_size: Option<usize>,
        /// How far it was off where it was checked.
        error_percent: Option<f64>,
        /// Why this method.
        reason: String,
    },
    /// The whole run of a point is being played to the model of the allocator.
    RunPlaying {
        /// Which point.
        point: Point,
        /// Steps played so far, under all allocators together.
        step: u32,
        /// Of how many; 0 while it is not known.
        total: u32,
    },
    /// The whole run of a point was played.
    RunPlayed {
        /// Which point.
        point: Point,
        /// What came of it.
        outlook: Outlook,
    },
    /// Other ways to make the whole run of a point are being played: other shapes, releases of the cache.
    RemediesPlaying {
        /// Which point.
        point: Point,
        /// Steps played so far, of all ways together.
        step: u32,
        /// Of how many; 0 while it is not known.
        total: u32,
    },
    /// Other ways to make the whole run of a point were played.
    RemediesPlayed {
        /// Which point.
        point: Point,
        /// What came of them.
        remedies: RunRemedies,
    },
    /// Settings of the allocator are being searched for over the whole run of a point.
    AllocatorTuning {
        /// Which point.
        point: Point,
        /// What is tried at present; empty before the first.
        what: String,
        /// Steps played so far, under all settings together.
        step: u64,
        /// Of how many as of now: what is tried later depends on what was found before. 0 before the first.
        total: u64,
    },
    /// Settings of the allocator were searched for over the whole run of a point.
    AllocatorTuned {
        /// Which point.
        point: Point,
        /// What came of it.
        found: TunedRun,
    },
    /// A point was ruled out without running it.
    Skipped {
        /// Which.
        point: Point,
        /// Why.
        reason: String,
    },
    /// The user should know.
    Warning {
        /// About what.
        text: String,
    },
    /// A better recommendation was written.
    Recommended {
        /// Which point.
        point: Point,
        /// `safe` or `unverified`.
        status: String,
        /// Where.
        path: String,
    },
    /// The study is over.
    StudyEnded {
        /// `safe`, `unverified` or `none`.
        status: String,
        /// Trials in all.
        trials: usize,
        /// Wall time.
        seconds: f64,
    },
}
