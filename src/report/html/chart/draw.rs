//! The drawing of a chart.

use super::{Chart, MOST_STOPS, Scale, Series, Shape};
use crate::report::html::markup::{Html, text};

/// The drawing's size and what lies around the plot, in its own units.
const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 270.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 22.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 40.0;
/// Colours, marks and dashes there are; series beyond them begin anew.
const TONES: usize = 6;

/// Where values lie in the drawing.
struct Plot {
    x: Scale,
    y: Scale,
}

impl Plot {
    fn of(chart: &Chart) -> Self {
        let marks = || chart.series.iter().flat_map(|series| &series.marks);
        let guides = chart.guides.iter().map(|guide| guide.y);
        Self {
            x: Scale::new(&chart.x, marks().map(|mark| mark.x), 6),
            y: Scale::new(&chart.y, marks().map(|mark| mark.y).chain(guides), 5),
        }
    }

    fn left(&self, x: f64) -> f64 {
        LEFT + self.x.place(x) * (WIDTH - LEFT - RIGHT)
    }

    fn top(&self, y: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.place(y) * (HEIGHT - TOP - BOTTOM)
    }
}

/// The drawing of a chart that has something to draw.
pub(super) fn svg(chart: &Chart, html: &mut Html) {
    let plot = Plot::of(chart);
    write!(
        html,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"group\" aria-label=\"{}: {} over {}\">",
        text(&chart.title),
        text(&chart.y.label),
        text(&chart.x.label)
    );
    axes(chart, &plot, html);
    for (place, guide) in chart.guides.iter().enumerate() {
        let top = plot.top(guide.y);
        write!(
            html,
            "<line class=\"guide g{}\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{top:.1}\" y2=\"{top:.1}\"/>",
            place % 2,
            WIDTH - RIGHT
        );
    }
    for (place, series) in chart.series.iter().enumerate().rev() {
        line(series, place % TONES, &plot, html);
    }
    for (place, series) in chart.series.iter().enumerate().rev() {
        points(chart, series, place % TONES, &plot, html);
    }
    write!(html, "</svg>");
}

fn axes(chart: &Chart, plot: &Plot, html: &mut Html) {
    let (right, floor) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for tick in &plot.y.ticks {
        let top = plot.top(*tick);
        write!(
            html,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{top:.1}\" y2=\"{top:.1}\"/>\
             <text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 5.0,
            top + 4.0,
            plot.y.number(*tick)
        );
    }
    for tick in &plot.x.ticks {
        let left = plot.left(*tick);
        write!(
            html,
            "<line class=\"frame\" x1=\"{left:.1}\" x2=\"{left:.1}\" y1=\"{floor}\" y2=\"{}\"/>\
             <text class=\"tick\" x=\"{left:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            floor + 4.0,
            floor + 17.0,
            plot.x.number(*tick)
        );
    }
    write!(
        html,
        "<line class=\"frame\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{floor}\" y2=\"{floor}\"/>\
         <text class=\"label\" x=\"2\" y=\"13\">{}</text>\
         <text class=\"label\" x=\"{right}\" y=\"{}\" text-anchor=\"end\">{}</text>",
        text(with_unit(&chart.y.label, plot.y.unit())),
        HEIGHT - 5.0,
        text(with_unit(&chart.x.label, plot.x.unit())),
    );
}

fn with_unit(label: &str, unit: &str) -> String {
    if unit.is_empty() { label.to_owned() } else { format!("{label}, {unit}") }
}

fn line(series: &Series, tone: usize, plot: &Plot, html: &mut Html) {
    if series.shape == Shape::Points || series.marks.len() < 2 {
        return;
    }
    let dashed = if series.shape == Shape::Dashed { " dashed" } else { "" };
    write!(html, "<polyline class=\"line t{tone}{dashed}\" points=\"");
    for mark in &series.marks {
        write!(html, "{:.1},{:.1} ", plot.left(mark.x), plot.top(mark.y));
    }
    write!(html, "\"/>");
}

/// The points of a series, or of a long one so many as can be told apart. Each is a stop of the keyboard and shows its
/// words above the plot while it is the one.
fn points(chart: &Chart, series: &Series, tone: usize, plot: &Plot, html: &mut Html) {
    let every = if series.shape == Shape::Points { 1 } else { series.marks.len().div_ceil(MOST_STOPS).max(1) };
    let is_crowded = series.marks.len() > MOST_STOPS;
    for (number, mark) in series.marks.iter().step_by(every).enumerate() {
        let words = chart.describe(series, mark);
        let stop = if number < MOST_STOPS { " tabindex=\"0\"" } else { "" };
        write!(html, "<g class=\"point t{tone}\"{stop} role=\"img\"><title>{}</title>", text(&words));
        let (left, top) = (plot.left(mark.x), plot.top(mark.y));
        // What the pointer has to meet is larger than what is seen.
        write!(html, "<circle class=\"target\" cx=\"{left:.1}\" cy=\"{top:.1}\" r=\"9\"/>");
        if series.shape == Shape::Points || !is_crowded {
            glyph(tone, left, top, html);
        } else {
            write!(html, "<circle class=\"hidden\" cx=\"{left:.1}\" cy=\"{top:.1}\" r=\"3.5\"/>");
        }
        write!(html, "<text class=\"readout\" x=\"2\" y=\"28\">{}</text></g>", text(&words));
    }
}

/// The mark of a tone.
fn glyph(tone: usize, left: f64, top: f64, html: &mut Html) {
    match tone {
        1 => write!(html, "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"7\" height=\"7\"/>", left - 3.5, top - 3.5),
        2 => write!(html, "<path d=\"M{left:.1} {:.1}l4.5 4.5l-4.5 4.5l-4.5 -4.5z\"/>", top - 4.5),
        3 => write!(html, "<path d=\"M{left:.1} {:.1}l4.5 8h-9z\"/>", top - 5.0),
        4 => write!(html, "<path class=\"cross\" d=\"M{:.1} {:.1}l8 8m0 -8l-8 8\"/>", left - 4.0, top - 4.0),
        5 => write!(html, "<path d=\"M{left:.1} {:.1}l4.5 -8h-9z\"/>", top + 5.0),
        _ => write!(html, "<circle cx=\"{left:.1}\" cy=\"{top:.1}\" r=\"3.8\"/>"),
    }
}

/// A series in the legend.
pub(super) fn swatch(shape: Shape, place: usize, html: &mut Html) {
    let tone = place % TONES;
    write!(html, "<svg class=\"swatch\" viewBox=\"0 0 26 12\" aria-hidden=\"true\">");
    if shape != Shape::Points {
        let dashed = if shape == Shape::Dashed { " dashed" } else { "" };
        write!(html, "<polyline class=\"line t{tone}{dashed}\" points=\"0,6 26,6\"/>");
    }
    write!(html, "<g class=\"point t{tone}\">");
    glyph(tone, 13.0, 6.0, html);
    write!(html, "</g></svg>");
}

/// A guide in the legend.
pub(super) fn guide_swatch(place: usize, html: &mut Html) {
    write!(
        html,
        "<svg class=\"swatch\" viewBox=\"0 0 26 12\" aria-hidden=\"true\">\
         <line class=\"guide g{}\" x1=\"0\" x2=\"26\" y1=\"6\" y2=\"6\"/></svg>",
        place % 2
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::chart::{Axis, Mark, Unit};

    #[test]
    fn values_lie_within_the_plot() {
        let marks = vec![Mark::at(1.0, 5.0), Mark::at(9.0, -3.0), Mark::at(4.0, 1e12)];
        let chart = Chart {
            id: "a".to_owned(),
            title: String::new(),
            caption: String::new(),
            x: Axis::fitted("x", Unit::Count),
            y: Axis::from_zero("y", Unit::Number("ms")),
            series: vec![Series { name: "s".to_owned(), shape: Shape::Points, marks: marks.clone() }],
            guides: Vec::new(),
        };
        let plot = Plot::of(&chart);
        for mark in &marks {
            assert!((LEFT..=WIDTH - RIGHT).contains(&plot.left(mark.x)));
            assert!((TOP..=HEIGHT - BOTTOM).contains(&plot.top(mark.y)));
        }
    }
}
