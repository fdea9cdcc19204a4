//! Where the trials ran: behind a launcher each may have another machine and another card, and so may each of its replicas.

use std::fmt::Write as _;

use super::document::table;
use super::markup::{Html, brief, text};
use super::study::Study;
use crate::trial::launcher::WorkerFacts;
use crate::trial::{TrialId, TrialRecord};
use crate::units::plural;

/// The most rows: behind a launcher every trial may have a job of its own, and every rank of it.
const MOST_ROWS: usize = 200;
/// The most characters of a name, and of a list of trials.
const LONGEST: usize = 160;

/// A place, and what ran there.
struct Row<'a> {
    /// Which of several replicas.
    rank: Option<usize>,
    place: &'a WorkerFacts,
    trials: Vec<TrialId>,
}

/// Says where each trial ran, unless that was in one place of which the environment says all.
pub(super) fn write(study: &Study<'_>, html: &mut Html) {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for record in study.trials.iter().map(|trial| &trial.record) {
        for (rank, place) in places(record) {
            match rows.iter_mut().find(|row| row.rank == rank && row.place == place) {
                Some(row) => row.trials.push(record.spec.id),
                None => rows.push(Row { rank, place, trials: vec![record.spec.id] }),
            }
        }
    }
    if let [] | [Row { rank: None, place: WorkerFacts { slurm_job_id: None, .. }, .. }] = &rows[..] {
        return;
    }
    write!(html, "<h3>Where the trials ran</h3>");
    let headings = ["trials", "rank#", "node", "device", "name", "uuid", "driver", "job"];
    table(html, "Where the trials ran", &headings, |html| {
        for row in rows.iter().take(MOST_ROWS) {
            write_row(row, html);
        }
    });
    if let Some(more @ 1..) = rows.len().checked_sub(MOST_ROWS) {
        write!(html, "<p>and {} more, which the journal holds</p>", text(plural(more, "row")));
    }
}

/// Where each rank of a trial ran, or the one worker that it had.
fn places(record: &TrialRecord) -> Vec<(Option<usize>, &WorkerFacts)> {
    if record.ranks.is_empty() {
        return record.worker.iter().map(|worker| (None, worker)).collect();
    }
    record.ranks.iter().enumerate().map(|(rank, place)| (Some(rank), place)).collect()
}

fn write_row(row: &Row<'_>, html: &mut Html) {
    let told = |value: &Option<String>| value.clone().unwrap_or_else(|| "–".to_owned());
    let WorkerFacts { node, device, name, uuid, driver, slurm_job_id, slurm_step_id } = row.place;
    let job = match (slurm_job_id, slurm_step_id) {
        (Some(job), Some(step)) => format!("{job}.{step}"),
        _ => told(slurm_job_id),
    };
    let rank = row.rank.map_or_else(|| "–".to_owned(), |rank| rank.to_string());
    write!(html, "<tr><td>{}</td><td class=\"number\">{}</td>", brief(listed(&row.trials), LONGEST), text(rank));
    for value in [node, device, name, &told(uuid), &told(driver), &job] {
        write!(html, "<td>{}</td>", brief(value, LONGEST));
    }
    write!(html, "</tr>");
}

/// Numbers of trials in the order in which they ended, those that follow one another together: `1–4, 6`.
fn listed(trials: &[TrialId]) -> String {
    let mut text = String::new();
    for run in trials.chunk_by(|one, next| one.0.checked_add(1) == Some(next.0)) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let separator = if text.is_empty() { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = match run.len() {
            1 => write!(text, "{separator}{first}"),
            _ => write!(text, "{separator}{first}–{last}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_that_follow_one_another_are_listed_together() {
        let of = |numbers: &[u32]| listed(&numbers.iter().map(|number| TrialId(*number)).collect::<Vec<_>>());
        assert_eq!(of(&[1, 2, 3, 5, 8, 7, u32::MAX]), format!("1–3, 5, 8, 7, {}", u32::MAX));
        assert_eq!(of(&[]), "");
    }
}
