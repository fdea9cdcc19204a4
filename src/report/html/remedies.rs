//! What other shapes would do to the whole run of a point: every way that was played, beside the run as it is.

use super::answer::LONGEST_REASON;
use super::document::table;
use super::markup::{Html, brief, text};
use crate::memory::forecast::batching::BatchedRun;
use crate::trial::Point;
use crate::trial::remedies::RunRemedies;
use crate::units::{Bytes, Fraction, plural};

/// The ways of one point.
pub(super) fn write(point: &Point, found: &RunRemedies, html: &mut Html) {
    write!(html, "<h3>Other shapes for {}</h3>", brief(point, 160));
    let headings =
        ["with", "peak reserved#", "fragmented#", "padding#", "steps of an epoch#", "offered", "what it changes"];
    table(html, "Other shapes", &headings, |html| {
        row("as it is", &found.as_it_is, "", &found.as_it_is.of_itself(), html);
        for way in &found.ways {
            let offered = if way.offered { "yes" } else { "no" };
            row(&way.changes.to_string(), &way.run, offered, &way.reason, html);
        }
    });
    if found.unplayed > 0 {
        write!(html, "<p class=\"nothing\">There was no time for {} more.</p>", text(plural(found.unplayed, "way")));
    }
}

fn row(name: &str, run: &BatchedRun, offered: &str, reason: &str, html: &mut Html) {
    let share = |share: Option<f64>| share.map_or_else(|| "–".to_owned(), |share| Fraction(share).to_string());
    let steps = run.epoch_steps.map_or_else(|| "–".to_owned(), |steps| steps.to_string());
    write!(
        html,
        "<tr><td class=\"long\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
         <td class=\"number\">{}</td><td>{}</td><td class=\"long\">{}</td></tr>",
        text(name),
        Bytes(run.peak_reserved_bytes),
        text(share(run.fragmentation)),
        text(share(run.padding_share)),
        text(steps),
        text(offered),
        brief(reason, LONGEST_REASON)
    );
}
