//! Entries that no study writes.
//!
//! A journal may have been edited, merged or made up. A figure that cannot be bends an axis until nothing else is seen on
//! it, and looks like a finding; so an entry that holds one is left out of the page, with a remark.

use crate::memory::forecast::MAX_BATCH_SIZE;
use crate::memory::forecast::curve::Curve;
use crate::memory::fragmentation::Rates;
use crate::trial::outlook::PlayedRun;
use crate::trial::remedies::RunRemedies;
use crate::trial::{Measurement, Outcome, Outlook, Point, TrialRecord, TunedRun, UnfinishedPlay};

/// More than any trial or forecast run comes to.
const MOST_STEPS: u32 = 100_000_000;
/// More than anything that is measured here, in its unit: milliseconds of thirty years, samples a second of no machine.
const MOST: f64 = 1e12;

/// What is impossible in an entry.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub(super) enum Impossible {
    /// A count that can be no such number.
    #[error("`{name}: {value}` is no number that there can be")]
    Count {
        /// Which.
        name: &'static str,
        /// What it is said to be.
        value: u64,
    },
    /// A figure that nothing can be measured to be.
    #[error("`{name}: {value:?}` is no figure that can be measured")]
    Figure {
        /// Which.
        name: &'static str,
        /// What it is said to be.
        value: f64,
    },
    /// Steps that do not follow one another.
    #[error("step {0} comes after a later one")]
    Order(u32),
}

type Checked = Result<(), Impossible>;

/// Whether a configuration can be run.
pub(super) fn of_point(point: &Point) -> Checked {
    batch_size(point.batch_size)?;
    count("accumulation_steps", point.accumulation_steps as u64, MAX_BATCH_SIZE as u64)
}

/// Whether a trial can have come to this.
pub(super) fn of_trial(record: &TrialRecord) -> Checked {
    of_point(&record.spec.point)?;
    figure("seconds", record.seconds)?;
    if let Outcome::TimedOut { seconds } | Outcome::NotStarted { seconds, .. } = record.outcome {
        figure("seconds", seconds)?;
    }
    record.measurement.as_ref().map_or(Ok(()), of_measurement)?;
    in_order(record.samples.iter().map(|sample| sample.step))?;
    for sample in &record.samples {
        rates(&sample.rates)?;
        sample.shadow.as_ref().map_or(Ok(()), rates)?;
    }
    Ok(())
}

fn of_measurement(measured: &Measurement) -> Checked {
    // A program that does not report has made none that are known.
    at_most("steps", measured.steps, MOST_STEPS)?;
    let (low, high) = measured.samples_per_second_interval;
    let phases = measured.phases;
    for (name, value) in [
        ("samples_per_second", measured.samples_per_second),
        ("samples_per_second_interval", low),
        ("samples_per_second_interval", high),
        ("step_ms.p50", measured.step_ms.p50),
        ("step_ms.p95", measured.step_ms.p95),
        ("data_wait_ms", phases.data_wait_ms),
        ("load_ms", phases.load_ms),
        ("forward_ms", phases.forward_ms),
        ("backward_ms", phases.backward_ms),
        ("optimizer_ms", phases.optimizer_ms),
        ("total_ms", phases.total_ms),
        ("data_wait_fraction", measured.data_wait_fraction),
        ("batches_per_second", measured.batches_per_second.unwrap_or(0.0)),
    ] {
        figure(name, value)?;
    }
    Ok(())
}

/// Whether a run can have been forecast so.
pub(super) fn of_run(point: &Point, outlook: &Outlook, runs: &[PlayedRun]) -> Checked {
    of_point(point)?;
    at_most("steps", outlook.steps, MOST_STEPS)?;
    for figures in runs.iter().map(|run| &run.figures) {
        at_most("steps", figures.steps, MOST_STEPS)?;
        share("fragmentation", figures.fragmentation)?;
        in_order(figures.points.iter().map(|point| point.step))?;
        for point in &figures.points {
            rates(&point.rates)?;
            share("against_need", point.against_need)?;
        }
    }
    Ok(())
}

/// Whether other ways to make a run can have been forecast so.
pub(super) fn of_remedies(point: &Point, remedies: &RunRemedies) -> Checked {
    of_point(point)?;
    for run in std::iter::once(&remedies.as_it_is).chain(remedies.ways.iter().map(|way| &way.run)) {
        share("fragmentation", run.fragmentation)?;
        share("padding_share", run.padding_share)?;
    }
    Ok(())
}

/// Whether settings can have been searched for so.
pub(super) fn of_search(point: &Point, found: &TunedRun) -> Checked {
    of_point(point)?;
    at_most("steps", found.steps, MOST_STEPS)
}

/// Whether a play can have been left so.
pub(super) fn of_unfinished(left: &UnfinishedPlay) -> Checked {
    of_point(&left.point)?;
    if left.step <= left.total { Ok(()) } else { Err(Impossible::Count { name: "step", value: left.step }) }
}

/// Whether peaks can have been forecast so.
pub(super) fn of_curve(curve: &Curve) -> Checked {
    curve.points.iter().try_for_each(|point| batch_size(point.batch_size))
}

fn batch_size(samples: usize) -> Checked {
    count("batch_size", samples as u64, MAX_BATCH_SIZE as u64)
}

fn count(name: &'static str, value: u64, most: u64) -> Checked {
    if (1..=most).contains(&value) { Ok(()) } else { Err(Impossible::Count { name, value }) }
}

fn at_most(name: &'static str, value: u32, most: u32) -> Checked {
    if value <= most { Ok(()) } else { Err(Impossible::Count { name, value: u64::from(value) }) }
}

fn figure(name: &'static str, value: f64) -> Checked {
    if (0.0..=MOST).contains(&value) { Ok(()) } else { Err(Impossible::Figure { name, value }) }
}

fn share(name: &'static str, value: Option<f64>) -> Checked {
    match value {
        Some(value) if !(0.0..=1.0).contains(&value) => Err(Impossible::Figure { name, value }),
        _ => Ok(()),
    }
}

fn rates(rates: &Rates) -> Checked {
    share("rates.peak", rates.peak)?;
    share("rates.external", rates.external)?;
    share("rates.reserved", rates.reserved)
}

/// Samples of the same step may follow one another: the soak takes one more after its evaluation pass.
fn in_order(steps: impl Iterator<Item = u32>) -> Checked {
    let mut last = 0;
    for step in steps {
        if step < last {
            return Err(Impossible::Order(step));
        }
        at_most("step", step, MOST_STEPS)?;
        last = step;
    }
    Ok(())
}
