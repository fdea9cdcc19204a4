//! Memory that grows to the end of a run.
//!
//! V grows for many reasons, and most of them end: a cache fills, and of random lengths the longest batch yet may come late.
//! So two questions are asked of the second half of a run, cut into [`PARTS`] parts of equal length:
//!
//! 1. **Does what is live between steps grow?** Between two steps nothing of a batch is needed, so whatever the lengths are,
//!    the same allocations are live there each time: weights, the optimizer's state, what was staged ahead. The least number
//!    of live allocations in a part is therefore the same in all parts of a healthy run, also where its highest peak comes in
//!    the last step. A number that is higher in each part than in the one before is a [leak](Growing::Live), whatever V does
//!    and however far away the limit is. (A count and no bytes, since a batch that is staged ahead has a length.)
//! 2. **Does V grow although no more is needed?** V reached a new height in each of the parts, A in none of them, and the
//!    pace did not slow down: a cache that fills grows by less in every doubling of the time, one that will never be full by
//!    twice as much. That is [growth](Growing::Reserved) without a plateau, with or without a limit.
//!
//! Less is asked where the limit is near: V that reached a new height in the third quarter of the run and another one in the
//! last, and would meet the limit within the horizon at the pace of the second half. What V grew by because A did, as where
//! the longest batch so far comes late, is left out of that pace.
//!
//! Growth by less than 1 % of what is held is none, but for V alone on its way to a near limit: a loss kept in a list at
//! every step is no reason to refuse a run that it will not end.

use super::LongRunFigures;
use super::breach::{Breach, Growing};

/// Parts of the second half.
const PARTS: u32 = 8;
/// Runs of fewer steps have no parts that say anything.
const FEWEST_STEPS: u32 = 40;
/// What growth over the second half has to exceed, as a divisor of V.
const NEGLIGIBLE_DIVISOR: u64 = 100;
/// V grows by twice as much in the second half as in the quarter before it if its pace is steady, by as much as there if it
/// follows a logarithm. Above this it is nearer to the former.
const STEADY_RATIO: f64 = 1.5;

/// Steps in a row.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// The fewest allocations live at the end of a step.
    live_blocks: u64,
    /// The least A at the end of a step.
    live_bytes: u64,
    /// The highest A up to its end, and V.
    need_bytes: u64,
    reserved_bytes: u64,
}

/// Growth that ends the run, or does not end with it.
pub(super) fn growth(figures: &LongRunFigures, horizon_steps: u32) -> Option<Breach> {
    if figures.steps < FEWEST_STEPS {
        return None;
    }
    leak(figures).or_else(|| towards_the_limit(figures, horizon_steps)).or_else(|| without_a_plateau(figures))
}

/// The last part of the first half, and those of the second.
fn parts(figures: &LongRunFigures) -> Option<Vec<Part>> {
    let steps = u64::from(figures.steps);
    let begins = |part: u32| u64::from(part) * steps / u64::from(2 * PARTS);
    let part = |number: u32| {
        let points = || figures.points.iter();
        let before_its_end = || points().take_while(|point| u64::from(point.step) < begins(number + 1));
        let own = || before_its_end().skip_while(|point| u64::from(point.step) < begins(number));
        Some(Part {
            live_blocks: own().map(|point| point.live_blocks).min()?,
            live_bytes: own().map(|point| point.live_bytes).min()?,
            need_bytes: before_its_end().map(|point| point.peak_allocated_bytes).max()?,
            reserved_bytes: before_its_end().map(|point| point.peak_reserved_bytes).max()?,
        })
    };
    (PARTS - 1..2 * PARTS).map(part).collect()
}

fn rises_in_each(parts: &[Part], of: fn(&Part) -> u64) -> bool {
    parts.is_sorted_by(|before, after| of(before) < of(after))
}

fn is_negligible(bytes: u64, figures: &LongRunFigures) -> bool {
    bytes <= figures.peak_reserved_bytes / NEGLIGIBLE_DIVISOR
}

fn leak(figures: &LongRunFigures) -> Option<Breach> {
    // Within an update a gradient may come to another; between two of them nothing does.
    if figures.steps / (2 * PARTS) < figures.steps_of_an_update {
        return None;
    }
    let parts = parts(figures)?;
    let (first, last) = (parts.first()?, parts.last()?);
    let grown = last.live_bytes.saturating_sub(first.live_bytes);
    if !rises_in_each(&parts, |part| part.live_blocks) || is_negligible(grown, figures) {
        return None;
    }
    // From the middle of the first part to the middle of the last.
    let a_step = grown as f64 / (f64::from(figures.steps) / 2.0);
    Some(breach(figures, Growing::Live, a_step))
}

fn towards_the_limit(figures: &LongRunFigures, horizon_steps: u32) -> Option<Breach> {
    let parts = parts(figures)?;
    let at = |place: u32| parts.get(place as usize).map(|part| part.reserved_bytes);
    let (at_half, at_quarter, at_end) = (at(0)?, at(PARTS / 2)?, figures.peak_reserved_bytes);
    if at_half >= at_quarter || at_quarter >= at_end {
        return None;
    }
    let (first, last) = (parts.first()?, parts.last()?);
    let needed = last.need_bytes.saturating_sub(first.need_bytes);
    let grown = (at_end - at_half).saturating_sub(needed);
    if needed > 0 && is_negligible(grown, figures) {
        return None;
    }
    let a_step = grown as f64 / f64::from(figures.steps - figures.steps / 2);
    let left = figures.limit_bytes.saturating_sub(at_end) as f64 / a_step;
    (left <= f64::from(horizon_steps)).then(|| breach(figures, Growing::Reserved, a_step))
}

fn without_a_plateau(figures: &LongRunFigures) -> Option<Breach> {
    let parts = parts(figures)?;
    let (first, last) = (parts.first()?, parts.last()?);
    let quarter = figures.steps / 4;
    let before_it = figures.points.iter().take_while(|point| point.step < quarter);
    let at_quarter = before_it.map(|point| point.peak_reserved_bytes).max()?;
    let grown = last.reserved_bytes.saturating_sub(first.reserved_bytes);
    let before = first.reserved_bytes.saturating_sub(at_quarter);
    let is_steady = grown as f64 >= STEADY_RATIO * before as f64 && before > 0;
    let needs_no_more = first.need_bytes == last.need_bytes;
    if !is_steady
        || !needs_no_more
        || !rises_in_each(&parts, |part| part.reserved_bytes)
        || is_negligible(grown, figures)
    {
        return None;
    }
    Some(breach(figures, Growing::Reserved, grown as f64 / f64::from(figures.steps - figures.steps / 2)))
}

/// The step is where the limit is met; of a run without one, its last.
fn breach(figures: &LongRunFigures, what: Growing, a_step: f64) -> Breach {
    let reserved_bytes = figures.peak_reserved_bytes;
    let limit_bytes = Some(figures.limit_bytes).filter(|limit_bytes| *limit_bytes < u64::MAX);
    let last_step = figures.steps.saturating_sub(1);
    let meets = |limit_bytes: u64| {
        let left = limit_bytes.saturating_sub(reserved_bytes) as f64 / a_step;
        figures.steps.saturating_add(left.ceil() as u32)
    };
    let step = limit_bytes.map_or(last_step, meets);
    Breach::Growth { step, what, bytes_a_step: a_step as u64, last_step, reserved_bytes, limit_bytes }
}

#[cfg(test)]
mod tests;
