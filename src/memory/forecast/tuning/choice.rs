//! Which of several plays is best, and what a further one must not exceed to be better.

use super::candidate::APPROXIMATE_DIVISOR;
use super::{Ending, Stage, Task, Tried};
use crate::memory::forecast::Method;
use crate::units::Fraction;

/// Calls to the device from which on a play counts as going there all the time: one in every step. Building a model and
/// filling the cache take some hundred calls however short the run.
pub const MANY_CALLS: u64 = 1000;

/// Calls within this share of the steps count as equal: a dozen at the start of a run say nothing.
const EQUAL_CALLS_DIVISOR: u64 = 10;

/// What a difference in V has to exceed to be one: this share of the limit.
const NEGLIGIBLE: f64 = 0.01;

/// The share of the limit up to which a difference is none: 1 %, or as much as the forecast may be off.
pub(super) fn margin(method: Method) -> Fraction {
    Fraction(method.error_of_a_play().0.max(NEGLIGIBLE))
}

/// The same in bytes; of what the baseline holds where there is no limit.
pub(super) fn margin_bytes(task: &Task<'_>, baseline: &Tried) -> u64 {
    let held_bytes = baseline.figures.peak_reserved_bytes;
    margin(task.method).of(if task.limit_bytes == u64::MAX { held_bytes } else { task.limit_bytes })
}

/// Whether a play goes to the device in every step.
pub(super) fn is_busy(tried: &Tried) -> bool {
    tried.figures.device_calls > MANY_CALLS.max(u64::from(tried.figures.steps))
}

/// What comes before what, whatever it holds; `None` for what does not survive.
fn class(tried: &Tried) -> Option<(bool, bool)> {
    (tried.ending == Ending::Survived).then(|| (tried.breach.is_some(), is_busy(tried)))
}

/// Whether nothing but memory is to be said against it.
fn is_sound(tried: &Tried) -> bool {
    class(tried) == Some((false, false))
}

/// V at its highest, with the error that its model may have against those that are exact.
fn reserved(tried: &Tried) -> u64 {
    let bytes = tried.figures.peak_reserved_bytes;
    if tried.errs { bytes.saturating_add(bytes / APPROXIMATE_DIVISOR) } else { bytes }
}

/// The place of the best; `None` where none survives. The first is the baseline, which wins ties.
pub(super) fn best(tried: &[Tried], margin_bytes: u64) -> Option<usize> {
    let baseline = tried.first()?;
    let class = tried.iter().filter_map(class).min()?;
    let eligible = || tried.iter().enumerate().filter(|(_, one)| self::class(one) == Some(class));
    let least = eligible().map(|(_, one)| reserved(one)).min()?;
    let close = || eligible().filter(|(_, one)| reserved(one) <= least.saturating_add(margin_bytes));
    if close().any(|(_, one)| one.stage == Stage::Baseline) {
        return Some(0);
    }
    let key = |one: &Tried| {
        let figures = &one.figures;
        let calls = figures.device_calls / (u64::from(figures.steps) / EQUAL_CALLS_DIVISOR).max(MANY_CALLS / 10);
        (calls, one.candidate.distance(&baseline.candidate), one.candidate.is_approximate())
    };
    close().min_by_key(|(place, one)| (key(one), *place)).map(|(place, _)| place)
}

/// V above which no further play can be the best.
pub(super) fn bound_bytes(tried: &[Tried], margin_bytes: u64) -> u64 {
    let sound = || tried.iter().filter(|one| is_sound(one));
    let Some(least) = sound().map(reserved).min() else { return u64::MAX };
    // What is not better than the baseline by the margin ties with it.
    let to_beat =
        sound().filter(|one| one.stage == Stage::Baseline).map(|one| reserved(one).saturating_sub(margin_bytes));
    to_beat.chain([least.saturating_add(margin_bytes)]).min().unwrap_or(u64::MAX)
}

/// What the better of two sorts before: survivors by what they hold, then the others by how far they got.
pub(super) fn standing(tried: &Tried) -> (u8, bool, u64) {
    match tried.ending {
        Ending::Survived => (0, tried.breach.is_some(), reserved(tried)),
        Ending::Outdone => (1, false, 0),
        Ending::OutOfMemory => (2, false, u64::from(u32::MAX - tried.figures.steps)),
    }
}
