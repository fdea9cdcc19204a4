//! The loader: samples a second and waiting by workers and prefetch depth.

use std::collections::{BTreeMap, BTreeSet};

use super::markup::{Html, text};
use super::study::Study;
use crate::search::JudgedTrial;
use crate::units::Fraction;

/// The most workers and depths that have a row or a column.
const MOST: usize = 32;

pub(super) fn write(study: &Study<'_>, html: &mut Html) {
    let batch_size = study.recommended().map(|recommended| recommended.batch_size);
    // One batch size: other sizes have other demands.
    let batch_size = batch_size.or_else(|| study.main_trial().map(|trial| trial.record.spec.point.batch_size));
    let trials = study.trials.iter().filter(|trial| !trial.record.spec.is_probe());
    let trials = trials.filter(|trial| Some(trial.record.spec.point.batch_size) == batch_size);
    let mut cells: BTreeMap<(usize, usize), Vec<&JudgedTrial>> = BTreeMap::new();
    for trial in trials {
        let point = &trial.record.spec.point;
        cells.entry((point.loader_workers, point.prefetch_depth)).or_default().push(trial);
    }
    let Some(batch_size) = batch_size.filter(|_| !cells.is_empty()) else {
        write!(html, "<p id=\"loader-grid\">No run has ended.</p>");
        return;
    };
    let workers: BTreeSet<usize> = cells.keys().map(|(workers, _)| *workers).collect();
    let depths: BTreeSet<usize> = cells.keys().map(|(_, depth)| *depth).collect();
    write!(
        html,
        "<figure id=\"loader-grid\"><h3>Workers × prefetch depth at batch size {batch_size}</h3>\
         <div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Loader grid\"><table><thead><tr><th scope=\"col\">workers</th>"
    );
    for depth in depths.iter().take(MOST) {
        write!(html, "<th scope=\"col\">prefetch depth {depth}</th>");
    }
    write!(html, "</tr></thead><tbody>");
    for workers in workers.iter().take(MOST) {
        write!(html, "<tr><th scope=\"row\">{workers}</th>");
        for depth in depths.iter().take(MOST) {
            cell(study, cells.get(&(*workers, *depth)), html);
        }
        write!(html, "</tr>");
    }
    write!(
        html,
        "</tbody></table></div><figcaption>An empty cell was not run: the search climbs to the fewest workers that keep \
         up, and then to the smallest prefetch.</figcaption></figure>"
    );
}

fn cell(study: &Study<'_>, trials: Option<&Vec<&JudgedTrial>>, html: &mut Html) {
    let Some(trials) = trials else {
        write!(html, "<td><span class=\"soft\">not run</span></td>");
        return;
    };
    let is_answer = trials.iter().any(|trial| study.is_answer(&trial.record.spec.point));
    write!(html, "<td>{}", if is_answer { "<strong>the answer</strong><br>" } else { "" });
    for trial in trials.iter().rev().take(4) {
        let record = &trial.record;
        let spec = &record.spec;
        write!(html, "<span>{}: ", text(spec.purpose));
        match &record.measurement {
            Some(measurement) if spec.is_throughput() => {
                let rate = measurement.batches_per_second.unwrap_or(0.0);
                write!(html, "{rate:.1} batches/s alone");
            }
            Some(measurement) => write!(
                html,
                "{:.1} samples/s, {} waiting",
                measurement.samples_per_second,
                Fraction(measurement.data_wait_fraction)
            ),
            None => write!(html, "{}", text(record.outcome.name().replace('_', " "))),
        }
        if spec.point.device_prefetch > 0 {
            write!(html, ", {} staged", spec.point.device_prefetch);
        }
        write!(html, "</span><br>");
    }
    write!(html, "</td>");
}
