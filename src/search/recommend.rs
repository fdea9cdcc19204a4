//! Which of the finished trials is best.
//!
//! The objective is samples per second at the effective batch size. Within half a percent, which is about what a
//! short trial can tell apart, the point with less memory wins.
//!
//! Settings of the allocator are held to more: where others than the program's own win nothing that counts, [its own
//! stay](keeps_own_settings).

use serde::{Deserialize, Serialize};

use super::{History, JudgedTrial, Space};
use crate::trial::Point;

/// Throughputs closer than this share count as equal.
pub const EQUAL_SPEED: f64 = 0.005;

/// Differences in reserved memory up to this share of the limit are none, as a divisor.
pub const NEGLIGIBLE_DIVISOR: u64 = 100;

/// Whether a configuration may be launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The point passed its soak.
    Safe,
    /// The search ended before the point was soaked, or nobody saw every rank of it, or that it took its batch size.
    Unverified,
    /// No point passed.
    None,
}

impl Status {
    /// The name as files hold it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Unverified => "unverified",
            Self::None => "none",
        }
    }
}

/// Where a study stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Standing<'a> {
    /// This point passed its soak.
    Safe(&'a JudgedTrial),
    /// This point passed a short trial and its soak is still to come, or passed a soak that does not show [all of
    /// it](JudgedTrial::is_fully_seen).
    Unverified(&'a JudgedTrial),
    /// No point passed.
    None,
}

impl<'a> Standing<'a> {
    /// The status as the recommendation holds it.
    pub fn status(&self) -> Status {
        match self {
            Self::Safe(_) => Status::Safe,
            Self::Unverified(_) => Status::Unverified,
            Self::None => Status::None,
        }
    }

    /// The trial that stands for the point.
    pub fn trial(&self) -> Option<&'a JudgedTrial> {
        match self {
            Self::Safe(trial) | Self::Unverified(trial) => Some(trial),
            Self::None => None,
        }
    }

    /// The point.
    pub fn point(&self) -> Option<&'a Point> {
        self.trial().map(|trial| &trial.record.spec.point)
    }
}

/// Where a study with this history stands: the best soaked point, fully seen where there is such a one, else the best measured
/// one whose soak did not fail.
pub fn standing<'a>(history: &'a History, space: &Space) -> Standing<'a> {
    // A search soaks nothing else; a resumed journal may hold anything.
    let is_answer = |trial: &&JudgedTrial| {
        space.meets_target(&trial.record.spec.point) && trial.samples_per_second().is_some() && trial.is_safe()
    };
    let mut soaked: Vec<&JudgedTrial> =
        history.trials().iter().filter(|trial| trial.record.spec.is_soak()).filter(is_answer).collect();
    sort_by_objective(&mut soaked, JudgedTrial::samples_per_second);
    if let Some(trial) = soaked.iter().find(|trial| trial.is_fully_seen()) {
        let own = history.soaked(&own_settings(&trial.record.spec.point));
        let kept = own.filter(|own| own.is_fully_seen() && keeps_own_settings(history, trial));
        return Standing::Safe(kept.unwrap_or(trial));
    }
    if let Some(trial) = soaked.first() {
        return Standing::Unverified(trial);
    }
    let candidate = ranked(history, space)
        .into_iter()
        .find(|trial| history.soaked(&trial.record.spec.point).is_none_or(JudgedTrial::is_safe));
    candidate.map_or(Standing::None, Standing::Unverified)
}

/// A point with the program's own settings of the allocator.
pub fn own_settings(point: &Point) -> Point {
    Point { alloc_conf: None, ..point.clone() }
}

/// Whether the program's own settings of the allocator stay, though a point has passed its soak under others: the same point
/// was safe under them in its trial and its soak, and the soaks show the others not to be worth a change.
pub fn keeps_own_settings(history: &History, changed: &JudgedTrial) -> bool {
    let own = own_settings(&changed.record.spec.point);
    let is_safe = history.measured(&own).is_some_and(JudgedTrial::is_safe);
    let soak = history.soaked(&own).filter(|soak| is_safe && soak.is_safe());
    soak.is_some_and(|soak| !is_worth_changing(changed, soak))
}

/// Whether settings of the allocator hold less than the program's own, by more than 1 % of the limit, and cost no speed that
/// counts.
fn is_worth_changing(changed: &JudgedTrial, own: &JudgedTrial) -> bool {
    let limit_bytes = own.record.samples.iter().map(|sample| sample.limit_bytes).max().unwrap_or(0);
    let saved_bytes = reserved(own).saturating_sub(reserved(changed));
    saved_bytes > limit_bytes / NEGLIGIBLE_DIVISOR && !is_slower(changed, own)
}

/// Whether a trial is slower than another by more than counts, where both tell their speed.
pub fn is_slower(trial: &JudgedTrial, than: &JudgedTrial) -> bool {
    let rates = trial.samples_per_second().zip(than.samples_per_second());
    rates.is_some_and(|(rate, than)| rate < than * (1.0 - EQUAL_SPEED))
}

/// The safe measured points that meet the target and whose whole run nothing rules out, best first.
pub fn ranked<'a>(history: &'a History, space: &Space) -> Vec<&'a JudgedTrial> {
    ranked_of(history, space, |point| !history.is_ruled_out(point))
}

/// The same with those whose whole run breaks under the settings of the allocator that they were measured with: others
/// may help.
pub fn candidates<'a>(history: &'a History, space: &Space) -> Vec<&'a JudgedTrial> {
    ranked_of(history, space, |_| true)
}

fn ranked_of<'a>(history: &'a History, space: &Space, is_meant: impl Fn(&Point) -> bool) -> Vec<&'a JudgedTrial> {
    let mut trials: Vec<&JudgedTrial> = history
        .trials()
        .iter()
        .filter(|trial| trial.record.spec.is_measuring() && trial.is_safe())
        .filter(|trial| space.meets_target(&trial.record.spec.point))
        .filter(|trial| is_meant(&trial.record.spec.point))
        .collect();
    sort_by_objective(&mut trials, JudgedTrial::samples_per_second);
    trials
}

/// The safe points that no other safe point beats in both speed and memory, fastest first.
pub fn front<'a>(history: &'a History, space: &Space) -> Vec<&'a JudgedTrial> {
    let mut least = u64::MAX;
    let mut front = ranked(history, space);
    front.retain(|trial| {
        let improves = reserved(trial) < least;
        least = least.min(reserved(trial));
        improves
    });
    front
}

/// Sorts the best first: the fastest, and among those within [`EQUAL_SPEED`] of it the one with the least memory,
/// and so on for the rest. (Closeness is not transitive, so this is a selection and not a comparison sort.)
fn sort_by_objective(trials: &mut [&JudgedTrial], rate: fn(&JudgedTrial) -> Option<f64>) {
    for start in 0..trials.len() {
        let rest = &mut trials[start..];
        let fastest = rest.iter().filter_map(|trial| rate(trial)).fold(0.0, f64::max);
        let close = |trial: &JudgedTrial| rate(trial).is_some_and(|rate| rate >= fastest * (1.0 - EQUAL_SPEED));
        let size = |trial: &JudgedTrial| trial.record.spec.point.batch_size;
        let best = if fastest > 0.0 {
            (0..rest.len()).filter(|index| close(rest[*index])).min_by_key(|index| reserved(rest[*index]))
        } else {
            // Nobody knows how fast a program runs that neither reports nor can be told its steps. A larger batch is
            // hardly ever slower.
            (0..rest.len()).max_by_key(|index| size(rest[*index]))
        };
        if let Some(best) = best {
            rest[..=best].rotate_right(1);
        }
    }
}

/// The best of some trials by a rate: the fastest, or the one with the least memory among those within
/// [`EQUAL_SPEED`] of it.
pub fn best_of<'a, T>(trials: &'a [(T, &JudgedTrial)], rate: fn(&JudgedTrial) -> Option<f64>) -> Option<&'a T> {
    let mut order: Vec<&JudgedTrial> = trials.iter().map(|(_, trial)| *trial).collect();
    sort_by_objective(&mut order, rate);
    let best = order.first()?;
    trials.iter().find(|(_, trial)| std::ptr::eq(*trial, *best)).map(|(key, _)| key)
}

/// Samples per second as they would be if the loader never made the step wait: what batch sizes are compared by,
/// since the loader is settled afterwards.
pub fn compute_rate(trial: &JudgedTrial) -> Option<f64> {
    let measurement = trial.record.measurement.as_ref()?;
    let busy = 1.0 - measurement.data_wait_fraction.clamp(0.0, 0.99);
    Some(measurement.samples_per_second / busy)
}

fn reserved(trial: &JudgedTrial) -> u64 {
    trial.record.measurement.as_ref().map_or(u64::MAX, |measurement| measurement.peak_reserved_bytes)
}
