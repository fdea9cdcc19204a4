//! Forecast runs over their steps: what is held against what is live, the rate that decides, and where a run breaks; with
//! the settings and the ways to batch that were compared, where they were.

use super::answer::LONGEST_REASON;
use super::chart::{Axis, Chart, Guide, Mark, Series, Shape, Unit};
use super::document::{Section, page, table};
use super::markup::{Html, brief, text};
use super::remedies;
use super::study::Study;
use crate::memory::forecast::batching::Remedies;
use crate::memory::forecast::long_run::{Breach, LongRunFigures, LongRunPoint};
use crate::memory::forecast::tuning::{MAX_PLAYS, Tuning};
use crate::search::rules::whole_run::sentence;
use crate::trial::outlook::PlayedRun;
use crate::trial::tuned_run::TriedSetting;
use crate::trial::{Outlook, Point};
use crate::units::{Bytes, Fraction};

/// The most runs in one drawing: so many can be told apart.
const MOST_RUNS: usize = 4;

/// A forecast run.
#[derive(Clone, Debug)]
pub struct ForetoldRun<'a> {
    /// What tells it apart: its setting, its batch.
    pub name: String,
    /// Its figures.
    pub figures: &'a LongRunFigures,
    /// The step in which it breaks, and how.
    pub breach: Option<(u32, String)>,
}

/// What the runs are held to.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// C.
    pub limit_bytes: Option<u64>,
    /// The rate that they should keep below.
    pub threshold: Option<f64>,
}

/// What was found for one batch size.
#[derive(Clone, Copy, Debug)]
pub struct FoundBetter<'a> {
    /// Samples of a batch.
    pub batch_size: usize,
    /// The settings.
    pub tuning: &'a Tuning,
    /// The ways to batch.
    pub remedies: &'a Remedies,
}

/// Forecast runs, for a page of their own.
#[derive(Clone, Debug)]
pub struct LongRunPage<'a> {
    /// How the forecast was made.
    pub method: String,
    /// What its samples have on each axis, where they are more than lengths.
    pub axes: Vec<String>,
    /// What is to be known of its shapes.
    pub notes: Vec<String>,
    /// The runs.
    pub runs: Vec<ForetoldRun<'a>>,
    /// What they are held to.
    pub held: Held,
    /// What would do better, where it was asked for.
    pub better: Vec<FoundBetter<'a>>,
}

/// The page of forecast runs.
pub fn long_run(found: &LongRunPage<'_>) -> String {
    let mut lead = Html::default();
    write!(lead, "<p>Forecast, not run. {}.</p>", brief(&found.method, LONGEST_REASON));
    for note in &found.notes {
        write!(lead, "<p>{}.</p>", brief(note, LONGEST_REASON));
    }
    if !found.axes.is_empty() {
        let axes = found.axes.join("; ");
        write!(lead, "<p>Axes of its samples: {}.</p>", brief(&axes, LONGEST_REASON));
    }
    let mut sections = vec![Section::new("whole-run", "Over the steps", |html| figures(&found.runs, found.held, html))];
    if !found.better.is_empty() {
        sections.push(Section::new("settings", "Settings of the allocator", |html| {
            for better in &found.better {
                let title = format!("At a batch of {}", better.batch_size);
                settings(&title, &better.tuning.reason, &TriedSetting::all(better.tuning), html);
            }
        }));
        sections.push(Section::new("batches", "Other ways to batch", |html| {
            found.better.iter().for_each(|better| ways(better, html));
        }));
    }
    page("A whole run, forecast", &lead, &sections)
}

/// The whole runs that a study forecast: that of its answer first.
pub(super) fn of_study(study: &Study<'_>, html: &mut Html) {
    let mut played = study.whole_runs.clone();
    played.sort_by_key(|(point, ..)| !study.is_answer(point));
    let said: Vec<&(&Point, &Outlook, &[PlayedRun])> = played.iter().filter(|(_, _, runs)| runs.is_empty()).collect();
    let runs = played.iter().flat_map(|(point, outlook, runs)| {
        let several = played.len() > 1;
        runs.iter().map(move |run| ForetoldRun {
            name: if several { format!("{}, {point}", name(run)) } else { name(run) },
            figures: &run.figures,
            breach: breach(outlook, run),
        })
    });
    let runs: Vec<ForetoldRun<'_>> = runs.collect();
    for (point, outlook, _) in &said {
        write!(html, "<p class=\"nothing\">{}: {}.</p>", brief(point, 160), brief(sentence(outlook), LONGEST_REASON));
    }
    if runs.is_empty() && said.is_empty() {
        write!(
            html,
            "<p class=\"nothing\">No whole run was forecast: the journal is of an earlier version, the study ended before, or \
             <code>safety.horizon_steps</code> is 0.</p>"
        );
    }
    if !runs.is_empty() {
        figures(&runs, Held { limit_bytes: study.limit_bytes(), threshold: study.threshold() }, html);
    }
    for (point, found) in &study.remedies {
        remedies::write(point, found, html);
    }
    for (point, found, tried) in &study.tuned {
        settings(&format!("Settings of the allocator, {point}"), &found.reason, tried, html);
    }
}

/// The allocator, and of several ranks the worst.
fn name(run: &PlayedRun) -> String {
    run.rank.map_or_else(|| run.allocator.clone(), |rank| format!("{}, rank {rank}", run.allocator))
}

/// Where a run of a study breaks, if it is the one that its outlook tells of.
fn breach(outlook: &Outlook, run: &PlayedRun) -> Option<(u32, String)> {
    let told = outlook.breach.as_ref().or(outlook.doubt.as_ref());
    let told = told.filter(|breach| breach.reason.contains(&format!("allocator {}", run.allocator)));
    let told = told.map(|breach| (breach.step, breach.reason.clone()));
    let end = || run.figures.out_of_memory.map(|end| (end.step, Breach::OutOfMemory(end).to_string()));
    told.or_else(end)
}

/// The drawings of runs, and their table.
pub(super) fn figures(runs: &[ForetoldRun<'_>], held: Held, html: &mut Html) {
    write!(html, "<div class=\"figures\">");
    memory(runs, held, html);
    rates(runs, held, html);
    write!(html, "</div>");
    let headings =
        ["run", "steps#", "peak allocated#", "peak reserved#", "last growth#", "device calls#", "what comes of it"];
    table(html, "Forecast runs", &headings, |html| {
        for run in runs {
            let figures = run.figures;
            write!(
                html,
                "<tr><td class=\"long\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
                 <td class=\"number\">{}</td><td class=\"number\">step {}</td><td class=\"number\">{}</td>",
                brief(&run.name, LONGEST_REASON),
                figures.steps,
                Bytes(figures.peak_allocated_bytes),
                Bytes(figures.peak_reserved_bytes),
                figures.last_growth_step,
                figures.device_calls,
            );
            match &run.breach {
                None => write!(html, "<td class=\"passed\">comes to its end</td></tr>"),
                Some((_, reason)) => write!(html, "<td class=\"long\">{}</td></tr>", brief(reason, LONGEST_REASON)),
            }
        }
    });
}

fn memory(runs: &[ForetoldRun<'_>], held: Held, html: &mut Html) {
    let drawn = || runs.iter().take(MOST_RUNS);
    let mut series: Vec<Series> = drawn()
        .map(|run| Series {
            name: format!("reserved, {}", run.name),
            shape: Shape::Line,
            marks: marks(run.figures, |point| Some(point.peak_reserved_bytes as f64)),
        })
        .collect();
    // What is live is the same under every setting; the run that came furthest shows the most of it.
    series.extend(drawn().max_by_key(|run| run.figures.steps).map(|run| Series {
        name: "allocated".to_owned(),
        shape: Shape::Dashed,
        marks: marks(run.figures, |point| Some(point.peak_allocated_bytes as f64)),
    }));
    let breaks = drawn().filter_map(|run| {
        let (step, reason) = run.breach.as_ref()?;
        let held = run.figures.points.iter().take_while(|point| point.step <= *step).last();
        let reserved_bytes = held.map_or(run.figures.peak_reserved_bytes, |point| point.peak_reserved_bytes);
        Some(Mark::at(f64::from(*step), reserved_bytes as f64).noted(format!("{}: {reason}", run.name)))
    });
    series.push(Series { name: "where a run breaks".to_owned(), shape: Shape::Points, marks: breaks.collect() });
    let limit = held.limit_bytes.map(|limit| Guide { name: "limit".to_owned(), y: limit as f64 });
    let left_out = runs.len().saturating_sub(MOST_RUNS);
    let others = if left_out > 0 { format!(" {left_out} more are in the table.") } else { String::new() };
    let chart = Chart {
        id: "whole-run-memory".to_owned(),
        title: "Memory over the steps of the run".to_owned(),
        caption: format!("By forecast. The highest of each step, or of several where there are many.{others}"),
        x: Axis::from_zero("step", Unit::Count),
        y: Axis::from_zero("memory", Unit::Bytes),
        series,
        guides: limit.into_iter().collect(),
    };
    chart.write(html);
}

fn rates(runs: &[ForetoldRun<'_>], held: Held, html: &mut Html) {
    let series = runs.iter().take(MOST_RUNS).map(|run| Series {
        name: run.name.clone(),
        shape: Shape::Line,
        marks: marks(run.figures, |point| point.against_need),
    });
    let chart = Chart {
        id: "whole-run-rate".to_owned(),
        title: "Fragmentation rate over the steps of the run".to_owned(),
        caption: "What is reserved, against the highest need up to there.".to_owned(),
        x: Axis::from_zero("step", Unit::Count),
        y: Axis::from_zero("rate", Unit::Share),
        series: series.collect(),
        guides: held.threshold.map(|y| Guide { name: "threshold".to_owned(), y }).into_iter().collect(),
    };
    chart.write(html);
}

fn marks(figures: &LongRunFigures, value: fn(&LongRunPoint) -> Option<f64>) -> Vec<Mark> {
    let points = figures.points.iter();
    points.filter_map(|point| Some(Mark::at(f64::from(point.step), value(point)?))).collect()
}

/// What settings were compared by playing a run under each.
fn settings(title: &str, reason: &str, tried: &[TriedSetting], html: &mut Html) {
    write!(html, "<h3>{}</h3><p>{}.</p>", brief(title, 160), brief(reason, LONGEST_REASON));
    let headings = ["setting", "what was tried", "peak reserved#", "device calls#", "what comes of it"];
    table(html, "Settings", &headings, |html| {
        for one in tried.iter().take(MAX_PLAYS) {
            let best = if one.is_best { " class=\"best\"" } else { "" };
            write!(
                html,
                "<tr{best}><td class=\"long\">{}</td><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
                 <td class=\"long\">{}</td></tr>",
                brief(&one.name, LONGEST_REASON),
                brief(&one.stage, LONGEST_REASON),
                one.peak_reserved(),
                one.device_calls,
                brief(&one.result, LONGEST_REASON)
            );
        }
    });
}

fn ways(found: &FoundBetter<'_>, html: &mut Html) {
    write!(html, "<h3>Instead of a batch of {}</h3>", found.batch_size);
    let headings =
        ["batches", "peak allocated#", "peak reserved#", "padding#", "steps of an epoch#", "what it changes"];
    table(html, "Ways to batch", &headings, |html| {
        for (place, way) in found.remedies.ways.iter().enumerate() {
            let best = if found.remedies.advised == Some(place) { " class=\"best\"" } else { "" };
            let padding = way.figures.padding_share.map_or_else(|| "–".to_owned(), |share| Fraction(share).to_string());
            write!(
                html,
                "<tr{best}><td class=\"long\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
                 <td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"long\">{}</td></tr>",
                brief(&way.name, LONGEST_REASON),
                Bytes(way.run.peak_allocated_bytes),
                Bytes(way.run.peak_reserved_bytes),
                text(padding),
                way.figures.epoch_steps,
                brief(&way.reason, LONGEST_REASON)
            );
        }
    });
}
