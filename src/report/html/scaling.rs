//! Throughput and memory against the batch size, with the forecast and the limit.

use super::chart::{Axis, Chart, Guide, Mark, Series, Shape, Unit};
use super::markup::{Html, text};
use super::study::Study;
use crate::memory::forecast::Method;
use crate::search::JudgedTrial;
use crate::trial::Outcome;

pub(super) fn write(study: &Study<'_>, html: &mut Html) {
    write!(html, "<div class=\"figures\">");
    throughput(study).write(html);
    memory(study).write(html);
    write!(html, "</div>");
    if let Some(curve) = study.curve {
        write!(html, "<p class=\"soft\">The forecast is {} ({}).</p>", curve.method, text(&curve.reason));
    }
}

/// Runs under the limit: no probe, no loader alone.
fn judged<'a>(study: &'a Study<'_>) -> impl Iterator<Item = &'a JudgedTrial> {
    study.trials.iter().filter(|trial| trial.record.spec.is_judged())
}

fn note(trial: &JudgedTrial) -> String {
    let record = &trial.record;
    format!("trial {}, {}, {}", record.spec.id, record.spec.purpose, record.spec.point)
}

fn throughput(study: &Study<'_>) -> Chart {
    let marks = |is_safe: bool| {
        let trials = judged(study).filter(move |trial| trial.is_safe() == is_safe);
        let marks = trials.filter_map(|trial| {
            let rate = trial.samples_per_second().filter(|rate| *rate > 0.0)?;
            Some(Mark::at(trial.record.spec.point.batch_size as f64, rate).noted(note(trial)))
        });
        marks.collect()
    };
    Chart {
        id: "throughput".to_owned(),
        title: "Throughput by batch size".to_owned(),
        caption: "At the effective batch size, the loader included. Every mark is a run.".to_owned(),
        x: Axis::from_zero("micro-batch", Unit::Count),
        y: Axis::from_zero("throughput", Unit::Number("samples/s")),
        series: vec![
            Series { name: "passed every rule".to_owned(), shape: Shape::Points, marks: marks(true) },
            Series { name: "broke a rule".to_owned(), shape: Shape::Points, marks: marks(false) },
        ],
        guides: Vec::new(),
    }
}

fn memory(study: &Study<'_>) -> Chart {
    let measured = |bytes: fn(&crate::trial::Measurement) -> u64| {
        let marks = judged(study).filter_map(move |trial| {
            let bytes = bytes(trial.record.measurement.as_ref()?);
            (bytes > 0).then(|| Mark::at(trial.record.spec.point.batch_size as f64, bytes as f64).noted(note(trial)))
        });
        marks.collect::<Vec<Mark>>()
    };
    let failed = judged(study).filter_map(|trial| match &trial.record.outcome {
        Outcome::OutOfMemory { allocated_bytes, requested_bytes, reserved_bytes, .. } => {
            let wanted = reserved_bytes.or(*allocated_bytes)?.saturating_add(requested_bytes.unwrap_or(0));
            Some(Mark::at(trial.record.spec.point.batch_size as f64, wanted as f64).noted(note(trial)))
        }
        _ => None,
    });
    let mut series = vec![
        Series {
            name: "peak reserved, measured".to_owned(),
            shape: Shape::Points,
            marks: measured(|measurement| measurement.peak_reserved_bytes),
        },
        Series {
            name: "peak allocated, measured".to_owned(),
            shape: Shape::Points,
            marks: measured(|measurement| measurement.peak_allocated_bytes),
        },
        Series {
            name: "reserved and requested where it ran out".to_owned(),
            shape: Shape::Points,
            marks: failed.collect(),
        },
    ];
    series.extend(forecast(study));
    Chart {
        id: "memory".to_owned(),
        title: "Memory by batch size".to_owned(),
        caption: caption(study),
        x: Axis::from_zero("micro-batch", Unit::Count),
        y: Axis::from_zero("memory", Unit::Bytes),
        series,
        guides: study
            .limit_bytes()
            .map(|limit| Guide { name: "limit".to_owned(), y: limit as f64 })
            .into_iter()
            .collect(),
    }
}

/// Where the line may end: it is about the limit, not about what lies far beyond.
const MOST_LIMITS: f64 = 1.6;

fn forecast(study: &Study<'_>) -> Option<Series> {
    let curve = study.curve?;
    let most = study.limit_bytes().map_or(f64::INFINITY, |limit| limit as f64 * MOST_LIMITS);
    let marks = curve.points.iter().filter(|point| point.peak_reserved_bytes < u64::MAX);
    let marks = marks.map(|point| {
        let fits = if point.fits { "fits" } else { "does not fit" };
        Mark::at(point.batch_size as f64, point.peak_reserved_bytes as f64).noted(fits)
    });
    let marks = marks.filter(|mark| mark.y <= most).collect();
    Some(Series { name: format!("peak reserved, forecast ({})", curve.method), shape: Shape::Dashed, marks })
}

fn caption(study: &Study<'_>) -> String {
    let method = study.recommendation.as_ref().and_then(|found| found.forecast.as_ref());
    match (study.curve, method) {
        (Some(_), _) => "The dashed line is what the probes foretold before anything of that size had run.".to_owned(),
        (None, Some(forecast)) if forecast.method != Method::None => {
            let largest = forecast.largest_batch_size;
            let largest =
                largest.map_or_else(String::new, |size| format!("; by it the largest batch that fits is {size}"));
            format!(
                "The journal holds no forecast line: it is of an earlier version, or was cut short. Its forecast is {}{largest}.",
                forecast.method
            )
        }
        (None, _) => "There is no forecast: its probes did not run, or could not be read.".to_owned(),
    }
}
