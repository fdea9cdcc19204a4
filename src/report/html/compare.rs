//! Two studies side by side: two cards, two limits, before and after.

use super::chart::{Axis, Chart, Guide, Mark, Series, Shape, Unit};
use super::document::{Section, page, table};
use super::markup::{Html, brief, text};
use super::study::Study;
use super::{answer, blocks, trials};
use crate::trial::Measurement;
use crate::trial::journal::Contents;
use crate::units::{Bytes, Fraction};

/// The page of two studies.
pub fn comparison(left: &Contents, right: &Contents) -> String {
    let studies = [Study::new(left), Study::new(right)];
    let labels = labels(&studies);
    let mut lead = Html::default();
    side_by_side(&studies, &labels, &mut lead, answer::headline);
    let sections = [
        Section::new("difference", "What differs", |html| differences(&studies, &labels, html)),
        Section::new("scaling", "By batch size", |html| scaling(&studies, &labels, html)),
        Section::new("answer", "Answers and checks", |html| side_by_side(&studies, &labels, html, answer::write)),
        Section::new("blocks", "Blocks at the worst moment", |html| {
            write!(html, "<div class=\"studies\">");
            for (place, study) in studies.iter().enumerate() {
                blocks(study, &format!("block-map-{place}"), &labels[place], html);
            }
            write!(html, "</div>");
        }),
        Section::new("rejected", "Rejected", |html| side_by_side(&studies, &labels, html, trials::rejected)),
    ];
    page(&format!("{} and {}", labels[0], labels[1]), &lead, &sections)
}

/// What tells the two apart: their names, with the device or the limit where the names are the same.
fn labels(studies: &[Study<'_>; 2]) -> [String; 2] {
    let [left, right] = studies;
    let device = |study: &Study<'_>| study.facts.map_or_else(|| "no device".to_owned(), |facts| facts.name.clone());
    let limit =
        |study: &Study<'_>| study.limit_bytes().map_or_else(|| "no limit".to_owned(), |bytes| Bytes(bytes).to_string());
    if left.name() != right.name() {
        [left.name().to_owned(), right.name().to_owned()]
    } else if device(left) != device(right) {
        [left, right].map(|study| format!("{} on {}", study.name(), device(study)))
    } else if left.limit_bytes() != right.limit_bytes() {
        [left, right].map(|study| format!("{} under {}", study.name(), limit(study)))
    } else {
        [left, right].map(|study| format!("{} of {}", study.name(), study.header.started.get(..19).unwrap_or("")))
    }
}

fn side_by_side(studies: &[Study<'_>; 2], labels: &[String; 2], html: &mut Html, fill: fn(&Study<'_>, &mut Html)) {
    write!(html, "<div class=\"studies\">");
    for (study, label) in studies.iter().zip(labels) {
        write!(html, "<div><h3>{}</h3>", text(label));
        fill(study, html);
        write!(html, "</div>");
    }
    write!(html, "</div>");
}

fn differences(studies: &[Study<'_>; 2], labels: &[String; 2], html: &mut Html) {
    type Row = (&'static str, fn(&Study<'_>) -> Option<String>);
    let rows: [Row; 17] = [
        ("status", |study| Some(study.recommendation.as_ref()?.status.name().to_owned())),
        ("batch size", |study| Some(study.recommended()?.batch_size.to_string())),
        ("accumulation steps", |study| Some(study.recommended()?.accumulation_steps.to_string())),
        ("loader workers", |study| Some(study.recommended()?.loader_workers.to_string())),
        ("prefetch depth", |study| Some(study.recommended()?.prefetch_depth.to_string())),
        ("allocator settings", |study| study.recommended()?.allocator.conf.clone()),
        ("samples a second", |study| Some(format!("{:.1}", measured(study)?.samples_per_second))),
        ("step, median", |study| Some(format!("{:.1} ms", measured(study)?.step_ms.p50))),
        ("peak reserved", |study| Some(Bytes(measured(study)?.peak_reserved_bytes).to_string())),
        ("free at the peak", |study| Some(Bytes(measured(study)?.headroom_bytes).to_string())),
        ("highest fragmentation", |study| Some(Fraction(measured(study)?.fragmentation.max?).to_string())),
        ("waiting for data", |study| Some(Fraction(measured(study)?.data_wait_fraction).to_string())),
        ("limit", |study| Some(Bytes(study.limit_bytes()?).to_string())),
        ("device", |study| Some(study.facts?.name.clone())),
        ("driver", |study| study.facts?.driver.clone()),
        ("trials", |study| Some(study.trials.len().to_string())),
        ("configuration", |study| Some(study.header.config_sha256.chars().take(12).collect())),
    ];
    table(html, "What differs", &["what", &labels[0], &labels[1], ""], |html| {
        for (name, of) in rows {
            let [left, right] = studies.each_ref().map(of);
            let differs = if left == right { "" } else { "differs" };
            let shown = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
            write!(
                html,
                "<tr><th scope=\"row\">{name}</th><td>{}</td><td>{}</td><td class=\"soft\">{differs}</td></tr>",
                brief(shown(left), 200),
                brief(shown(right), 200)
            );
        }
    });
}

fn measured<'a>(study: &'a Study<'_>) -> Option<&'a crate::report::recommendation::Measured> {
    study.recommendation.as_ref()?.measured.as_ref()
}

fn scaling(studies: &[Study<'_>; 2], labels: &[String; 2], html: &mut Html) {
    let series = |figure: fn(&Measurement) -> f64| {
        studies.iter().zip(labels).map(move |(study, label)| {
            let trials = study.trials.iter().filter(|trial| trial.record.spec.is_judged());
            let marks = trials.filter_map(|trial| {
                let value = figure(trial.record.measurement.as_ref()?);
                let spec = &trial.record.spec;
                let note = format!("trial {}, {}, {}", spec.id, spec.purpose, spec.point);
                (value > 0.0).then(|| Mark::at(spec.point.batch_size as f64, value).noted(note))
            });
            Series { name: label.clone(), shape: Shape::Points, marks: marks.collect() }
        })
    };
    let limits = studies
        .iter()
        .zip(labels)
        .filter_map(|(study, label)| Some(Guide { name: format!("limit of {label}"), y: study.limit_bytes()? as f64 }));
    write!(html, "<div class=\"figures\">");
    let throughput = Chart {
        id: "throughput".to_owned(),
        title: "Throughput by batch size".to_owned(),
        caption: "At the effective batch size, the loader included.".to_owned(),
        x: Axis::from_zero("micro-batch", Unit::Count),
        y: Axis::from_zero("throughput", Unit::Number("samples/s")),
        series: series(|measurement| measurement.samples_per_second).collect(),
        guides: Vec::new(),
    };
    throughput.write(html);
    let memory = Chart {
        id: "memory".to_owned(),
        title: "Peak reserved memory by batch size".to_owned(),
        caption: "Measured; every mark is a run.".to_owned(),
        x: Axis::from_zero("micro-batch", Unit::Count),
        y: Axis::from_zero("memory", Unit::Bytes),
        series: series(|measurement| measurement.peak_reserved_bytes as f64).collect(),
        guides: limits.collect(),
    };
    memory.write(html);
    write!(html, "</div>");
}
