//! How a recommendation is made: from the plan, the history and the device alone.

use super::{
    Allocator, Alternative, Basis, Forecast, Fragmentation, Measured, Provenance, Recommendation, Recommended,
    Rejected, SCHEMA, notes, remedies,
};
use crate::config::Plan;
use crate::device::DeviceFacts;
use crate::search::knowledge::probed::{Recomputation, Summary};
use crate::search::recommend::{front, own_settings, standing};
use crate::search::{History, JudgedTrial, Skip, Space, rules, staged};
use crate::trial::command::allocator_of;
use crate::trial::statistics::round_for_json;
use crate::trial::{Outcome, Point};

/// The name of the driver's pool in [`DeviceFacts::allocator`]. Trials run with a release threshold of u64::MAX, so a
/// launch must too: with the driver's default of 0 it would give its memory back at every synchronisation.
const DRIVER_POOL: &str = "cuda_malloc_async";

/// What a recommendation is made from.
#[derive(Clone, Debug)]
pub struct Source<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The finished trials.
    pub history: &'a History,
    /// The points ruled out unseen.
    pub skipped: &'a [Skip],
    /// What the probes foretold, where there were any.
    pub forecast: Option<Summary>,
    /// The peak rate of the recommended point under PyTorch's native allocator, where it was computed.
    pub native_peak_rate: Option<f64>,
    /// Why the allocator's settings, where they were searched for.
    pub allocator_reason: Option<String>,
    /// What recomputation does at the recommended batch size, where both ways to keep activations were forecast.
    pub recomputation: Option<Recomputation>,
    /// The device; of several the weakest.
    pub facts: &'a DeviceFacts,
    /// What there is to be said of several.
    pub device_notes: &'a [String],
    /// When the study began, RFC 3339.
    pub started: &'a str,
    /// Wall time of the study so far.
    pub seconds: f64,
}

impl Recommendation {
    /// The recommendation that a study's history supports so far.
    pub fn new(source: &Source<'_>) -> Self {
        let space = Space::new(source.plan);
        let standing = standing(source.history, &space);
        let trial = standing.trial();
        Self {
            schema: SCHEMA.to_owned(),
            status: standing.status(),
            recommended: trial.map(|trial| recommended(source, &space, &trial.record.spec.point)),
            measured: trial.and_then(|trial| measured(source, trial)),
            checks: trial.map(|trial| trial.verdict.checks.clone()).unwrap_or_default(),
            forecast: source.forecast.as_ref().map(forecast),
            alternatives: alternatives(source.history, &space, standing.point())
                .into_iter()
                .chain(remedies::alternatives(source.history, standing.point()))
                .collect(),
            rejected: rejected(source, standing.point()),
            warnings: warnings(source, trial),
            notes: source.device_notes.iter().cloned().chain(notes::recomputation(source, &space)).collect(),
            environment: source.facts.clone(),
            provenance: provenance(source),
        }
    }
}

fn recommended(source: &Source<'_>, space: &Space, point: &Point) -> Recommended {
    Recommended {
        batch_size: point.batch_size,
        accumulation_steps: point.accumulation_steps,
        effective_batch_size: space.effective_batch_size(point),
        replicas: source.plan.target.replicas.max(1),
        loader_workers: point.loader_workers,
        prefetch_depth: point.prefetch_depth,
        device_prefetch: point.device_prefetch,
        pin_memory: point.pin_memory,
        precision: source.plan.train.precision,
        gradient_checkpointing: point.gradient_checkpointing,
        batch_norm: source.plan.train.batch_norm,
        trim: point.trim,
        allocator: allocator(source, point),
    }
}

fn allocator(source: &Source<'_>, point: &Point) -> Allocator {
    let facts = source.facts;
    let is_command = source.plan.command().is_some();
    let conf = point.alloc_conf.clone().or_else(|| facts.alloc_conf.clone());
    Allocator {
        backend: if is_command { allocator_of(conf.as_deref()).to_string() } else { facts.allocator.clone() },
        // Of a program of the user's own it is PyTorch that sets it.
        release_threshold: (!is_command && facts.allocator == DRIVER_POOL).then_some(u64::MAX),
        limit_bytes: facts.limit_bytes,
        conf,
        reason: source.allocator_reason.clone(),
    }
}

fn measured(source: &Source<'_>, trial: &JudgedTrial) -> Option<Measured> {
    let safety = &source.plan.safety;
    let record = &trial.record;
    let measurement = record.measurement.as_ref()?;
    let steady = || record.samples.iter().filter(|sample| sample.step > rules::WARM_UP_STEPS);
    let limit_bytes = record.samples.iter().map(|sample| sample.limit_bytes).max();
    // A program that does not report has no samples; the limit is the device's all the same.
    let limit_bytes = limit_bytes.unwrap_or(source.facts.limit_bytes);
    let rates: Vec<f64> = rules::fragmentation::rates(&record.samples, safety).map(|(_, rate)| rate).collect();
    Some(Measured {
        samples_per_second: measurement.samples_per_second,
        step_ms: measurement.step_ms,
        data_wait_fraction: measurement.data_wait_fraction,
        batch_bytes: measurement.batch_bytes,
        peak_allocated_bytes: measurement.peak_allocated_bytes,
        peak_reserved_bytes: measurement.peak_reserved_bytes,
        limit_bytes,
        headroom_bytes: limit_bytes.saturating_sub(measurement.peak_reserved_bytes),
        largest_satisfiable_bytes: steady().map(|sample| sample.largest_satisfiable_bytes).min().unwrap_or(0),
        largest_request_bytes: measurement.largest_request_bytes,
        allocated_blocks: record.samples.last().map_or(0, |sample| sample.allocated_blocks),
        fragmentation: Fragmentation {
            metric: safety.fragmentation_metric,
            max: rates.iter().copied().reduce(f64::max),
            last: rates.last().copied(),
            threshold: safety.fragmentation_threshold.0,
            native: source.native_peak_rate,
        },
        steps: measurement.steps,
        first_loss: measurement.first_loss,
        last_loss: measurement.last_loss,
    })
}

fn forecast(summary: &Summary) -> Forecast {
    let Summary { method, largest_batch_size, error_percent, .. } = summary;
    Forecast { method: *method, largest_batch_size: *largest_batch_size, error_percent: *error_percent }
}

fn alternatives(history: &History, space: &Space, chosen: Option<&Point>) -> Vec<Alternative> {
    front(history, space)
        .into_iter()
        // Other settings of the allocator are no other point, and what became of them is said with the answer's.
        .filter(|trial| Some(own_settings(&trial.record.spec.point)) != chosen.map(own_settings))
        .filter(|trial| history.soaked(&trial.record.spec.point).is_none_or(JudgedTrial::is_safe))
        .filter_map(|trial| {
            let point = &trial.record.spec.point;
            let measurement = trial.record.measurement.as_ref()?;
            Some(Alternative {
                samples_per_second: Some(measurement.samples_per_second),
                ..Alternative::at(point, Basis::Measured, measurement.peak_reserved_bytes)
            })
        })
        .collect()
}

/// What was rejected, beside the answer.
fn rejected(source: &Source<'_>, answer: Option<&Point>) -> Vec<Rejected> {
    let row = |point: &Point, outcome: &str, reason: String| Rejected {
        point: point.into(),
        outcome: outcome.to_owned(),
        reason,
    };
    // A probe is no candidate, nor is a loader without a model, whatever became of it.
    let is_rejected = |trial: &&JudgedTrial| {
        !trial.is_safe() && trial.record.outcome != Outcome::Cancelled && trial.record.spec.is_judged()
    };
    let tried = source.history.trials().iter().filter(is_rejected);
    let tried = tried.map(|trial| {
        let record = &trial.record;
        row(&record.spec.point, record.outcome.name(), told(&record.spec.point, staged::breach_reason(trial), answer))
    });
    let skipped = source.skipped.iter();
    let skipped = skipped.map(|skip| row(&skip.point, "skipped", told(&skip.point, skip.reason.clone(), answer)));
    tried.chain(skipped).collect()
}

/// A reason, with the settings of the allocator where nothing else sets the point apart from the answer.
fn told(point: &Point, reason: String, answer: Option<&Point>) -> String {
    let is_other =
        |answer: &&Point| own_settings(answer) == own_settings(point) && answer.alloc_conf != point.alloc_conf;
    match (answer.filter(is_other), &point.alloc_conf) {
        (None, _) => reason,
        (Some(_), Some(conf)) => format!("under `{conf}`: {reason}"),
        (Some(_), None) => format!("under the program's own settings of the allocator: {reason}"),
    }
}

/// What is to be known of the answer, and every distinct warning of the trials in the order in which they came up.
fn warnings(source: &Source<'_>, answer: Option<&JudgedTrial>) -> Vec<String> {
    let mut warnings: Vec<String> =
        answer.and_then(|trial| notes::batch_statistics(source, trial)).into_iter().collect();
    for warning in source.history.trials().iter().flat_map(|trial| &trial.record.warnings) {
        if !warnings.contains(warning) {
            warnings.push(warning.clone());
        }
    }
    warnings
}

fn provenance(source: &Source<'_>) -> Provenance {
    let out_of_memory = |trial: &&JudgedTrial| matches!(trial.record.outcome, Outcome::OutOfMemory { .. });
    Provenance {
        config_sha256: source.plan.sha256(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        seed: source.plan.seed,
        started: source.started.to_owned(),
        seconds: round_for_json(source.seconds),
        trials: source.history.trials().len(),
        oom_trials: source.history.trials().iter().filter(out_of_memory).count(),
    }
}
