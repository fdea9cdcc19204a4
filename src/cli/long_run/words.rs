//! The forecast of a long run as tables.

use std::fmt::Write;

use super::samples::{Column, Values};
use super::{LongRunReport, LongRunRow, Source, Tuned};
use crate::cli::rate;
use crate::memory::forecast::batching::{Batching, Order, Remedies, Remedy};
use crate::memory::forecast::long_run::LongRunFigures;
use crate::memory::forecast::tuning::Tuning;
use crate::units::{Bytes, plural};

/// Everything.
pub(super) fn report(report: &LongRunReport, source: &Source<'_>) -> String {
    // Writing to a String cannot fail.
    let mut text = format!("{}: {}\n", report.method, report.reason);
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    if !source.is_of_lengths() {
        text.push_str("\naxes of the run's samples:\n\n");
        for axis in axes(source.samples.columns()) {
            let _ = writeln!(text, "   {axis}");
        }
    }
    text.push('\n');
    runs(&report.runs, &mut text);
    for tuned in &report.tuned {
        let _ =
            writeln!(text, "\nsettings of the allocator at a batch of {}: {}\n", tuned.batch_size, tuned.tuning.reason);
        tuning(&tuned.tuning, &mut text);
        how_to_set(tuned, &mut text);
        let _ = writeln!(text, "\nother ways to batch, under `{}`:\n", tuned.remedies_under);
        remedies(&tuned.remedies, &mut text);
    }
    text
}

/// What samples have on each axis, a sentence each.
pub(super) fn axes(columns: &[Column]) -> Vec<String> {
    let axis = |Column { name, values, is_per_batch, .. }: &Column| match values {
        Values::Drawn(bounds) => {
            let step = if bounds.step > 1 { format!(" in steps of {}", bounds.step) } else { String::new() };
            let whose = if *is_per_batch { "each batch" } else { "each sample" };
            if bounds.min == bounds.max {
                format!("{name} {}", bounds.max)
            } else {
                format!("{name} {} to {}{step}, drawn for {whose}", bounds.min, bounds.max)
            }
        }
        Values::Listed { path, min, max, .. } => format!("{name} {min} to {max}, as in {}", path.display()),
    };
    columns.iter().map(axis).collect()
}

fn runs(runs: &[LongRunRow], text: &mut String) {
    let width = widest(runs.iter().map(LongRunRow::setting), "setting");
    let _ = writeln!(
        text,
        "{:>6}  {:<width$}  {:>14}  {:>14}  {:>10}  {:>11}  {:>12}  result",
        "batch", "setting", "peak allocated", "peak reserved", "fragmented", "last growth", "device calls"
    );
    for run in runs {
        let figures = &run.figures;
        let rounded = if u64::from(figures.steps) > run.batches.steps { ", rounded up to whole updates" } else { "" };
        let result = run.breach.as_ref().map_or_else(|| format!("{}{rounded}", survived(figures)), ToString::to_string);
        let _ = writeln!(
            text,
            "{:>6}  {:<width$}  {:>14}  {:>14}  {:>10}  {:>11}  {:>12}  {result}",
            run.batch_size,
            run.setting(),
            Bytes(figures.peak_allocated_bytes).to_string(),
            Bytes(figures.peak_reserved_bytes).to_string(),
            rate(figures.fragmentation),
            format!("step {}", figures.last_growth_step),
            figures.device_calls,
        );
    }
}

fn survived(figures: &LongRunFigures) -> String {
    if figures.retries > 0 {
        format!("{} steps, releasing its cache {}", figures.steps, plural(figures.retries as usize, "time"))
    } else {
        format!("{} steps", figures.steps)
    }
}

fn tuning(tuning: &Tuning, text: &mut String) {
    let width = widest(tuning.tried.iter().map(|one| one.candidate.to_string()), "setting");
    let _ = writeln!(text, "   {:<width$}  {:>14}  {:>12}  result", "setting", "peak reserved", "device calls");
    for (place, one) in tuning.tried.iter().enumerate() {
        let mark = if tuning.chosen == Some(place) { '*' } else { ' ' };
        let _ = writeln!(
            text,
            " {mark} {:<width$}  {:>14}  {:>12}  {}",
            one.candidate.to_string(),
            one.peak_reserved(),
            one.figures.device_calls,
            one.trouble().unwrap_or_else(|| survived(&one.figures))
        );
    }
}

fn how_to_set(tuned: &Tuned, text: &mut String) {
    let Some(change) = tuned.tuning.change() else { return };
    text.push('\n');
    if let Some(conf) = change.candidate.conf() {
        let _ = writeln!(text, "export PYTORCH_CUDA_ALLOC_CONF={conf}");
    }
    if let Some(every) = change.candidate.trim_every {
        let when = if every == 1 { "step".to_owned() } else { format!("{every} steps") };
        let _ =
            writeln!(text, "every {when}: torch.cuda.empty_cache() in PyTorch, `memory.trim` in tune's configuration");
    }
}

fn remedies(remedies: &Remedies, text: &mut String) {
    let width = widest(remedies.ways.iter().map(|way| way.name.clone()), "batches");
    let _ = writeln!(
        text,
        "   {:<width$}  {:>14}  {:>14}  {:>10}  {:>7}  {:>11}  what it changes",
        "batches", "peak allocated", "peak reserved", "fragmented", "padding", "epoch steps"
    );
    for (place, way) in remedies.ways.iter().enumerate() {
        let mark = if remedies.advised == Some(place) { '*' } else { ' ' };
        let Remedy { name, figures, reason, run, .. } = way;
        let _ = writeln!(
            text,
            " {mark} {name:<width$}  {:>14}  {:>14}  {:>10}  {:>7}  {:>11}  {reason}",
            Bytes(run.peak_allocated_bytes).to_string(),
            Bytes(run.peak_reserved_bytes).to_string(),
            rate(run.fragmentation),
            rate(figures.padding_share),
            figures.epoch_steps,
        );
    }
    if let Some(way) = remedies.advised.and_then(|place| remedies.ways.get(place)) {
        let _ = writeln!(text, "\nits options: {}", options(&way.batching));
    }
}

/// What asks for a way to batch.
fn options(batching: &Batching) -> String {
    let mut options = format!("--to {}", batching.samples);
    if let Some(budget) = batching.token_budget {
        let _ = write!(options, " --token-budget {budget}");
    }
    if batching.pad_to > 1 {
        let _ = write!(options, " --pad-to {}", batching.pad_to);
    }
    if batching.order == Order::ByLength {
        options.push_str(" --group-by-length");
    }
    options
}

fn widest(texts: impl Iterator<Item = String>, heading: &str) -> usize {
    texts.map(|text| text.chars().count()).max().unwrap_or(0).max(heading.len())
}
