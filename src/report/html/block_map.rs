//! A block map as a drawing: all the memory held, written like a text in lines of equal length.

use super::document::table;
use super::markup::{Html, text};
use crate::memory::blocks::{BlockMap, Run, RunKind};
use crate::units::{Bytes, plural};

/// The drawing's width, and the height of a line with the space below it, in its own units.
const WIDTH: f64 = 420.0;
const LINE: f64 = 12.0;
const LINE_GAP: f64 = 3.0;
/// Lines of a full map.
const MOST_LINES: u64 = 24;
/// The most runs that say what they are when pointed at.
const MOST_WORDS: usize = 300;
/// The free runs that are listed.
const MOST_LISTED: usize = 12;

const KINDS: [(RunKind, &str, &str); 4] = [
    (RunKind::Live, "b-live", "in use"),
    (RunKind::Kept, "b-kept", "free, kept by neighbours in use"),
    (RunKind::Cache, "b-cache", "free, could be given back"),
    (RunKind::Mixed, "b-mixed", "small blocks of several kinds"),
];

/// What a map is of.
pub(super) struct Heading<'a> {
    pub(super) id: &'a str,
    pub(super) title: &'a str,
    pub(super) caption: &'a str,
}

/// The figure of a map.
pub(super) fn write(map: &BlockMap, heading: &Heading<'_>, html: &mut Html) {
    write!(html, "<figure id=\"{}\"><h3>{}</h3>", text(heading.id), text(heading.title));
    if map.runs.is_empty() {
        write!(html, "<p class=\"nothing\">Nothing was held from the device.</p>");
    } else {
        drawing(map, html);
        legend(html);
    }
    write!(html, "<figcaption>{}</figcaption>", text(heading.caption));
    write!(html, "<p>{}</p>", text(sentence(map)));
    free_runs(map, html);
    write!(html, "</figure>");
}

/// The figures of a map in words.
fn sentence(map: &BlockMap) -> String {
    let words = format!(
        "{} held in {}: {} in use, {} free, of which {} is kept by neighbours in use; the largest free block has {}.",
        Bytes(map.reserved_bytes),
        plural(map.segments as usize, "segment"),
        Bytes(map.allocated_bytes),
        Bytes(map.free_bytes()),
        Bytes(map.kept_bytes),
        Bytes(map.largest_free_bytes),
    );
    let request = Bytes(map.request_bytes);
    match (map.request_bytes, map.failed) {
        (0, _) => words,
        (_, true) => format!("{words} A request for {request} failed."),
        (_, false) => format!("{words} A request for {request} had to be met by the device."),
    }
}

fn style_of(kind: RunKind) -> (&'static str, &'static str) {
    KINDS.iter().find(|(known, ..)| *known == kind).map_or(("b-mixed", ""), |(_, class, words)| (class, words))
}

fn drawing(map: &BlockMap, html: &mut Html) {
    let total = map.runs.iter().fold(0_u64, |sum, run| sum.saturating_add(run.bytes)).max(1);
    let lines = MOST_LINES.min(total);
    let per_line = total.div_ceil(lines).max(1);
    let height = lines as f64 * (LINE + LINE_GAP);
    write!(
        html,
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
        text(format!("{} A line of the map is {}.", sentence(map), Bytes(per_line)))
    );
    let mut sizes: Vec<u64> = map.runs.iter().map(|run| run.bytes).collect();
    sizes.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
    // Pieces too small to be pointed at are one path a kind: hundreds of elements less.
    let least = sizes.get(MOST_WORDS).copied().unwrap_or(0).max(per_line / 400);
    let mut paths: [Html; 4] = Default::default();
    let (mut at, mut borders) = (0_u64, Html::default());
    for run in &map.runs {
        let pieces = pieces(at, run.bytes, per_line);
        if run.opens_segment && at > 0 {
            let (left, top, _) = place(at, 0, per_line);
            write!(borders, "M{left:.1} {top:.1}v{LINE}");
        }
        at = at.saturating_add(run.bytes);
        let (class, _) = style_of(run.kind());
        if run.bytes > least {
            write!(html, "<g class=\"{class}\"><title>{}</title>", text(describe(run)));
            for (left, top, width) in pieces {
                write!(html, "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.2}\" height=\"{LINE}\"/>");
            }
            write!(html, "</g>");
        } else if let Some(path) = paths.get_mut(run.kind() as usize) {
            for (left, top, width) in pieces {
                write!(path, "M{left:.1} {top:.1}h{width:.2}v{LINE}h-{width:.2}z");
            }
        }
    }
    for ((_, class, _), path) in KINDS.iter().zip(paths).filter(|(_, path)| !path.as_str().is_empty()) {
        write!(html, "<path class=\"{class}\" d=\"{path}\"/>");
    }
    write!(html, "<path class=\"b-segment\" d=\"{borders}\"/></svg>");
    write!(html, "<p class=\"soft\">In the order of addresses, {} a line.</p>", Bytes(per_line));
}

/// Where bytes from `at` on lie: left, top and width.
fn place(at: u64, bytes: u64, per_line: u64) -> (f64, f64, f64) {
    let scale = WIDTH / per_line as f64;
    ((at % per_line) as f64 * scale, (at / per_line) as f64 * (LINE + LINE_GAP), bytes as f64 * scale)
}

/// A run in pieces that do not cross the end of a line.
fn pieces(mut at: u64, mut bytes: u64, per_line: u64) -> Vec<(f64, f64, f64)> {
    let mut pieces = Vec::new();
    while bytes > 0 && pieces.len() <= MOST_LINES as usize {
        let here = bytes.min(per_line - at % per_line);
        pieces.push(place(at, here, per_line));
        at = at.saturating_add(here);
        bytes -= here;
    }
    pieces
}

fn describe(run: &Run) -> String {
    let (_, words) = style_of(run.kind());
    let blocks = plural(run.blocks as usize, "block");
    match run.kind() {
        RunKind::Mixed => format!("{} in {blocks}, {} of it in use", Bytes(run.bytes), Bytes(run.live_bytes)),
        _ => format!("{} {words}, {blocks}", Bytes(run.bytes)),
    }
}

fn legend(html: &mut Html) {
    write!(html, "<ul class=\"legend\">");
    for (_, class, words) in KINDS {
        write!(
            html,
            "<li><svg class=\"swatch\" viewBox=\"0 0 26 12\" aria-hidden=\"true\">\
             <rect class=\"{class}\" width=\"26\" height=\"12\"/></svg>{words}</li>"
        );
    }
    write!(html, "</ul>");
}

/// The largest free spaces, for those who cannot see the drawing.
fn free_runs(map: &BlockMap, html: &mut Html) {
    let mut free: Vec<&Run> = map.runs.iter().filter(|run| run.live_bytes == 0 && run.bytes > 0).collect();
    if free.is_empty() {
        return;
    }
    free.sort_by_key(|run| std::cmp::Reverse(run.bytes));
    write!(html, "<details><summary>The largest free spaces</summary>");
    table(html, "The largest free spaces", &["bytes#", "what"], |html| {
        for run in free.iter().take(MOST_LISTED) {
            let (_, words) = style_of(run.kind());
            write!(html, "<tr><td class=\"number\">{}</td><td>{words}</td></tr>", Bytes(run.bytes));
        }
    });
    write!(html, "</details>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_over_the_end_of_a_line_goes_on_in_the_next() {
        let pieces = pieces(90, 120, 100);
        assert_eq!(pieces.len(), 3);
        assert_eq!(pieces[0], (378.0, 0.0, 42.0));
        assert_eq!(pieces[1], (0.0, 15.0, 420.0));
        let width: f64 = pieces.iter().map(|piece| piece.2).sum();
        assert!((width - 1.2 * WIDTH).abs() < 1e-9);
    }

    #[test]
    fn absurd_sizes_make_a_small_drawing() {
        let run = Run { bytes: u64::MAX, live_bytes: 1, blocks: u64::MAX, ..Run::default() };
        let map = BlockMap { runs: vec![run; 100], ..BlockMap::default() };
        let mut html = Html::default();
        write(&map, &Heading { id: "map", title: "t", caption: "c" }, &mut html);
        assert!(html.as_str().len() < 500_000 && !html.as_str().contains("NaN"), "{}", html.as_str().len());
    }
}
