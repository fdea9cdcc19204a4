//! Why a setting was chosen, in a sentence.

use super::choice::{is_busy, margin};
use super::{Ending, Stage, Task, Tried};
use crate::memory::forecast::Method;
use crate::memory::forecast::long_run::LongRunEnd;
use crate::units::{Bytes, plural};

/// What else there is to be told.
pub(super) struct Told<'a> {
    pub(super) task: &'a Task<'a>,
    /// Where the live bytes alone run out.
    pub(super) hopeless: Option<LongRunEnd>,
}

/// The sentence.
pub(super) fn of(tried: &[Tried], chosen: Option<usize>, told: &Told<'_>) -> String {
    let Some(baseline) = tried.first() else { return String::new() };
    let sentence = match chosen.and_then(|place| tried.get(place)) {
        None => of_none(tried, baseline, told),
        Some(choice) if choice.stage == Stage::Baseline => of_baseline(tried, baseline, told),
        Some(choice) => of_change(choice, baseline),
    };
    match told.task.method {
        Method::Exact => sentence,
        method if tried.len() == 1 => format!("{sentence} ({method}: by a forecast that may err)"),
        method => format!(
            "{sentence} ({method}: by a forecast that may err, so other settings had to leave {} of the limit free, and to \
             save as much)",
            method.error_of_a_play()
        ),
    }
}

fn of_none(tried: &[Tried], baseline: &Tried, told: &Told<'_>) -> String {
    let (limit, steps) = (Bytes(told.task.limit_bytes), told.task.steps);
    if let Some(end) = told.hopeless {
        return format!(
            "no setting helps: at step {} the run needs {} at once, and the limit is {limit}",
            end.step,
            Bytes(end.allocated_bytes.saturating_add(end.requested_bytes))
        );
    }
    let furthest = tried
        .iter()
        .max_by_key(|one| (one.figures.steps, std::cmp::Reverse(one.candidate.distance(&baseline.candidate))));
    let furthest = furthest.unwrap_or(baseline);
    format!(
        "none of {} survives under {limit}: `{}` gets furthest, to step {} of {}",
        plural(tried.len(), "setting"),
        furthest.candidate,
        furthest.figures.steps,
        steps
    )
}

fn of_baseline(tried: &[Tried], baseline: &Tried, told: &Told<'_>) -> String {
    let figures = &baseline.figures;
    let (held, needed) = (Bytes(figures.peak_reserved_bytes), Bytes(figures.peak_allocated_bytes));
    // Nothing keeps the terms where the baseline breaks them and is best.
    if let Some(breach) = &baseline.breach {
        return format!("`{}` stays, since no other setting does better: {breach}", baseline.candidate);
    }
    let percent = margin(told.task.method).0 * 100.0;
    let others = match tried {
        [] | [_] => "what no setting can save is no gain".to_owned(),
        [_, other] => format!("`{}` is not better by {percent} % of the limit", other.candidate),
        [_, others @ ..] => {
            format!("none of {} is better by {percent} % of the limit", plural(others.len(), "other setting"))
        }
    };
    format!("`{}` stays: it holds {held} where {needed} are live at once, and {others}", baseline.candidate)
}

fn of_change(choice: &Tried, baseline: &Tried) -> String {
    let figures = &choice.figures;
    let held = format!(
        "`{}` holds {} where {} are live at once",
        choice.candidate,
        Bytes(figures.peak_reserved_bytes),
        Bytes(figures.peak_allocated_bytes)
    );
    let busy = if is_busy(choice) {
        format!("; it goes to the device {} times in {} steps, which costs time", figures.device_calls, figures.steps)
    } else {
        String::new()
    };
    match (baseline.ending, baseline.figures.out_of_memory) {
        (Ending::OutOfMemory, Some(end)) => format!(
            "{held} and survives {}; `{}` runs out of memory at step {}{busy}",
            plural(figures.steps as usize, "step"),
            baseline.candidate,
            end.step
        ),
        _ if baseline.breach.is_some() && choice.breach.is_none() => format!(
            "{held}; under `{}`: {}{busy}",
            baseline.candidate,
            baseline.breach.as_ref().map(ToString::to_string).unwrap_or_default()
        ),
        _ if is_busy(baseline) && !is_busy(choice) => format!(
            "{held}; `{}` goes to the device {} times in {}{busy}",
            baseline.candidate,
            baseline.figures.device_calls,
            plural(baseline.figures.steps as usize, "step")
        ),
        _ => format!(
            "{held}, {} less than `{}`{busy}",
            Bytes(baseline.figures.peak_reserved_bytes.saturating_sub(figures.peak_reserved_bytes)),
            baseline.candidate
        ),
    }
}
