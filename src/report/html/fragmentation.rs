//! Fragmentation and memory over the steps of the run that decides, and the worst of every run.

use super::chart::{Axis, Chart, Guide, Mark, Series, Shape, Unit};
use super::markup::Html;
use super::study::Study;
use crate::memory::fragmentation::against_need;
use crate::memory::{MemorySample, Rates};
use crate::search::JudgedTrial;
use crate::search::rules::WARM_UP_STEPS;

/// From this share of the threshold on the rule warns.
const WARNING_SHARE: f64 = 2.0 / 3.0;

pub(super) fn write(study: &Study<'_>, html: &mut Html) {
    write!(html, "<div class=\"figures\">");
    over_steps(study).write(html);
    memory(study).write(html);
    by_run(study).write(html);
    write!(html, "</div>");
}

fn guides(study: &Study<'_>) -> Vec<Guide> {
    let Some(threshold) = study.threshold() else { return Vec::new() };
    vec![
        Guide { name: "threshold".to_owned(), y: threshold },
        Guide { name: "warning".to_owned(), y: threshold * WARNING_SHARE },
    ]
}

fn which(trial: Option<&JudgedTrial>) -> String {
    trial.map_or_else(
        || "no run has ended".to_owned(),
        |trial| {
            let spec = &trial.record.spec;
            format!("trial {} ({}), {}", spec.id, spec.purpose, spec.point)
        },
    )
}

fn over_steps(study: &Study<'_>) -> Chart {
    let trial = study.main_trial();
    let metric = study.metric();
    let samples = trial.map_or(&[][..], |trial| trial.record.samples.as_slice());
    let samples: Vec<MemorySample> = against_need(samples).collect();
    let marks = |rates: fn(&MemorySample) -> Option<Rates>| {
        let marks = samples.iter().filter_map(move |sample| {
            let rate = rates(sample)?.get(metric)?;
            Some(Mark::at(f64::from(sample.step), rate).noted(steadiness(sample)))
        });
        marks.collect::<Vec<Mark>>()
    };
    let mut series =
        vec![Series { name: "the device's allocator".to_owned(), shape: Shape::Line, marks: marks(|s| Some(s.rates)) }];
    let shadow = marks(|sample| sample.shadow);
    if !shadow.is_empty() {
        let name = "the planned run's allocator, by replay".to_owned();
        series.push(Series { name, shape: Shape::Dashed, marks: shadow });
    }
    Chart {
        id: "fragmentation-by-step".to_owned(),
        title: format!("Fragmentation rate ({}) over steps", study.metric_name()),
        caption: format!(
            "Of {}. What is reserved, against the highest need up to there. No rule reads the first {WARM_UP_STEPS} steps.",
            which(trial)
        ),
        x: Axis::from_zero("step", Unit::Count),
        y: Axis::from_zero("rate", Unit::Share),
        series,
        guides: guides(study),
    }
}

fn steadiness(sample: &MemorySample) -> &'static str {
    if sample.step > WARM_UP_STEPS { "" } else { "warm-up" }
}

fn memory(study: &Study<'_>) -> Chart {
    let trial = study.main_trial();
    let samples = trial.map_or(&[][..], |trial| trial.record.samples.as_slice());
    let series = |name: &str, bytes: fn(&MemorySample) -> u64| Series {
        name: name.to_owned(),
        shape: Shape::Line,
        marks: samples
            .iter()
            .filter(|sample| sample.reserved_bytes > 0)
            .map(|sample| Mark::at(f64::from(sample.step), bytes(sample) as f64))
            .collect(),
    };
    let limit = study.limit_bytes().map(|limit| Guide { name: "limit".to_owned(), y: limit as f64 });
    Chart {
        id: "memory-by-step".to_owned(),
        title: "Memory over steps".to_owned(),
        caption: format!("Of {}. Peaks are since the sample before.", which(trial)),
        x: Axis::from_zero("step", Unit::Count),
        y: Axis::from_zero("memory", Unit::Bytes),
        series: vec![
            series("peak reserved", |sample| sample.peak_reserved_bytes),
            series("peak allocated", |sample| sample.peak_allocated_bytes),
            series("largest request that would succeed", |sample| sample.largest_satisfiable_bytes),
        ],
        guides: limit.into_iter().collect(),
    }
}

fn by_run(study: &Study<'_>) -> Chart {
    let metric = study.metric();
    let worst = |rates: fn(&MemorySample) -> Option<Rates>| {
        let trials = study.trials.iter().filter(|trial| trial.record.spec.is_judged());
        let marks = trials.filter_map(move |trial| {
            let steady = against_need(&trial.record.samples).filter(|sample| sample.step > WARM_UP_STEPS);
            let highest = steady.filter_map(|sample| rates(&sample)?.get(metric)).reduce(f64::max)?;
            let spec = &trial.record.spec;
            let note = format!("trial {}, {}", spec.id, spec.purpose);
            Some(Mark::at(spec.point.batch_size as f64, highest).noted(note))
        });
        marks.collect::<Vec<Mark>>()
    };
    let mut series = vec![Series {
        name: "the device's allocator".to_owned(),
        shape: Shape::Points,
        marks: worst(|s| Some(s.rates)),
    }];
    let shadow = worst(|sample| sample.shadow);
    if !shadow.is_empty() {
        let name = "the planned run's allocator, by replay".to_owned();
        series.push(Series { name, shape: Shape::Points, marks: shadow });
    }
    Chart {
        id: "fragmentation-by-run".to_owned(),
        title: "Highest rate of every run".to_owned(),
        caption: "After the warm-up.".to_owned(),
        x: Axis::from_zero("micro-batch", Unit::Count),
        y: Axis::from_zero("rate", Unit::Share),
        series,
        guides: guides(study),
    }
}
