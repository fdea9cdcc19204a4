//! The page of a watch: what `tune watch --replay FILE --html PAGE` writes.

use super::chart::{Axis, Chart, Guide, Mark, Series, Shape, Unit};
use super::document::{Section, fact, page, table};
use super::markup::{Html, text};
use crate::units::{Bytes, format_duration, plural};
use crate::watch::{Ending, Exit, Observations, Point, Subject, Summary};

/// The page of a watch.
pub fn watch(subject: &Subject, observations: &Observations, summary: &Summary) -> String {
    let mut lead = Html::default();
    let seconds = std::time::Duration::try_from_secs_f64(summary.seconds.round()).unwrap_or_default();
    write!(
        lead,
        "<p>{} of {} over {}: {}.</p>",
        text(plural(summary.samples as usize, "sample")),
        text(&subject.name),
        text(format_duration(seconds)),
        text(ending(summary.ending))
    );
    let sections = [
        Section::new("findings", "What is concluded", |html| findings(summary, html)),
        Section::new("memory", "Memory over time", |html| over_time(observations.points(), summary, html)),
        Section::new("figures", "Figures", |html| figures(summary, html)),
    ];
    page(&format!("Watch of {}", who(subject)), &lead, &sections)
}

fn who(subject: &Subject) -> String {
    match (subject.pid, &subject.process) {
        (Some(pid), Some(name)) => format!("{name} (process {pid})"),
        (Some(pid), None) => format!("process {pid}"),
        (None, _) => subject.name.clone(),
    }
}

fn ending(ending: Ending) -> String {
    match ending {
        Ending::ProcessEnded { exit: Some(Exit::Code(code)) } => format!("the process ended with exit code {code}"),
        Ending::ProcessEnded { exit: Some(Exit::Signal(signal)) } => {
            format!("the process was ended by signal {signal}")
        }
        Ending::ProcessEnded { exit: None } => "the process ended, with an exit code that was not seen".to_owned(),
        Ending::Interrupted | Ending::Unread => "the watch was stopped".to_owned(),
        Ending::CardLost => "the card no longer answered".to_owned(),
        Ending::CutOff => "the recording has no end".to_owned(),
    }
}

fn findings(summary: &Summary, html: &mut Html) {
    if summary.findings.is_empty() {
        write!(html, "<p class=\"nothing\">Nothing stands out.</p>");
    }
    for finding in &summary.findings {
        write!(html, "<p><strong>{}</strong></p><ol>", text(finding.sentence()));
        for advice in &finding.advice {
            write!(html, "<li>{}</li>", text(advice));
        }
        write!(html, "</ol>");
    }
}

fn over_time(points: &[Point], summary: &Summary, html: &mut Html) {
    let series = |name: &str, shape, bytes: &dyn Fn(&Point) -> Option<u64>| Series {
        name: name.to_owned(),
        shape,
        marks: points.iter().filter_map(|point| Some(Mark::at(point.at_seconds, bytes(point)? as f64))).collect(),
    };
    let mut drawn = vec![
        series("highest in use", Shape::Line, &|point| Some(point.high_bytes)),
        series("lowest in use", Shape::Dashed, &|point| Some(point.low_bytes)),
    ];
    let own = series("of the watched process", Shape::Line, &|point| point.watched_bytes);
    if !own.marks.is_empty() {
        drawn.push(own);
    }
    let total = summary.total_bytes as f64;
    let chart = Chart {
        id: "watch-memory".to_owned(),
        title: "Memory in use on the card".to_owned(),
        caption:
            "Of each interval the highest and the lowest of ten looks a second, as the driver counts: an allocator's \
                  segments and not the tensors in them."
                .to_owned(),
        x: Axis::from_zero("time", Unit::Number("s")),
        y: Axis::from_zero("memory", Unit::Bytes),
        series: drawn,
        guides: vec![
            Guide { name: "the card".to_owned(), y: total },
            Guide { name: "80% of it".to_owned(), y: 0.8 * total },
        ],
    };
    chart.write(html);
}

fn figures(summary: &Summary, html: &mut Html) {
    table(html, "Figures", &["what", "value"], |html| {
        fact(html, "highest in use", Bytes(summary.peak_bytes));
        fact(html, "in use in the last seconds", Bytes(summary.end_bytes));
        fact(html, "of the card", Bytes(summary.total_bytes));
        fact(html, "falls by more than 2% of the card", summary.falls);
        fact(html, "samples that the card did not answer", summary.missed_samples);
        fact(html, "samples out of order", summary.disordered_samples);
        for holder in &summary.processes {
            fact(html, "at most", holder);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::GIB;
    use crate::watch::Sample;

    #[test]
    fn a_page_has_its_chart_and_findings_and_obeys_no_name() {
        let subject = Subject {
            name: "<script>alert(1)</script>".to_owned(),
            pid: Some(7),
            process: Some("<img src=x>".to_owned()),
            total_bytes: 100 * GIB,
            ..Subject::default()
        };
        let mut observations = Observations::of(&subject);
        for second in 0..60_u32 {
            let used_bytes = u64::from(second + 10) * GIB;
            let sample = Sample { at_seconds: second.into(), used_bytes, low_bytes: used_bytes, ..Sample::default() };
            observations.add(&sample);
        }
        let page = watch(&subject, &observations, &observations.summary(Ending::Interrupted));
        assert!(page.contains("watch-memory") && page.contains("<svg") && page.contains("climbs steadily"));
        assert!(!page.contains("<script") && !page.contains("<img"));
        let nothing = Observations::of(&subject);
        assert!(watch(&subject, &nothing, &nothing.summary(Ending::CutOff)).contains("Nothing stands out."));
    }
}
