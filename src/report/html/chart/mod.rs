//! A small chart builder: series over two axes as SVG that needs no script.
//!
//! It is meant for figures of a report: a few series, some guides such as a limit, at most some hundred points each
//! (longer series are [thinned](thin()) to their extremes). Everything that an eye sees is also there for a keyboard and for
//! a reader of screens: points can be reached with the tab key and then say what they are in a line above the plot, each
//! has a `<title>` for the pointer, and the figures stand in a table below. Series differ in mark and dash as well as in
//! colour.
//!
//! The drawing is 420 units wide, so that its letters are readable at 400 pixels. Colours are the page's
//! (`report/html/page.css`).

mod axis;
mod draw;
mod thin;

pub use axis::{Axis, Scale, Unit};
pub use thin::thin;

use super::markup::{Html, text};

/// The most points of a series that are drawn.
const MOST_POINTS: usize = 240;
/// The most points of a series that can be reached with the keyboard.
const MOST_STOPS: usize = 24;
/// The most rows of the table of figures.
const MOST_ROWS: usize = 120;

/// One point of a series.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mark {
    /// Along the horizontal axis.
    pub x: f64,
    /// Along the vertical axis.
    pub y: f64,
    /// What else there is to say of it.
    pub note: String,
}

impl Mark {
    /// A point without a note.
    pub fn at(x: f64, y: f64) -> Self {
        Self { x, y, note: String::new() }
    }

    /// The same with a note.
    pub fn noted(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    fn is_drawable(&self) -> bool {
        self.x.is_finite() && self.y.is_finite()
    }
}

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Points alone.
    Points,
    /// A line, with a mark at each point where there are few.
    Line,
    /// A dashed line, for what was computed and not measured.
    Dashed,
}

/// A named set of points.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What it is.
    pub name: String,
    /// How it is drawn.
    pub shape: Shape,
    /// Its points, in the order of a line.
    pub marks: Vec<Mark>,
}

/// A horizontal line across the chart, such as a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Guide {
    /// What it is.
    pub name: String,
    /// Where.
    pub y: f64,
}

/// A chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Its name on the page, which must be unique there and an identifier.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// What there is to know beside that: how to read it, or what is missing.
    pub caption: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The series, the first in front.
    pub series: Vec<Series>,
    /// Lines across.
    pub guides: Vec<Guide>,
}

impl Chart {
    /// Whether there is a point to draw.
    pub fn is_empty(&self) -> bool {
        !self.series.iter().any(|series| series.marks.iter().any(Mark::is_drawable))
    }

    /// The whole figure: heading, drawing, legend, caption and a table of the numbers.
    pub fn write(&self, html: &mut Html) {
        let chart = self.thinned();
        write!(html, "<figure id=\"{0}\" class=\"chart\"><h3>{1}</h3>", text(&self.id), text(&self.title));
        if chart.is_empty() {
            write!(html, "<p class=\"nothing\">There is nothing to draw: no run told these figures.</p>");
        } else {
            draw::svg(&chart, html);
            chart.legend(html);
        }
        if !self.caption.is_empty() {
            write!(html, "<figcaption>{}</figcaption>", text(&self.caption));
        }
        chart.table(html);
        write!(html, "</figure>");
    }

    /// The chart without what cannot be drawn, and with no more points than can be told apart.
    fn thinned(&self) -> Self {
        let series = self.series.iter().map(|series| {
            let drawable: Vec<Mark> = series.marks.iter().filter(|mark| mark.is_drawable()).cloned().collect();
            Series { marks: thin(drawable, MOST_POINTS), ..series.clone() }
        });
        let guides = self.guides.iter().filter(|guide| guide.y.is_finite()).cloned().collect();
        Self { series: series.collect(), guides, ..self.clone() }
    }

    /// A point in words.
    fn describe(&self, series: &Series, mark: &Mark) -> String {
        let x = self.x.unit.show(mark.x);
        let y = self.y.unit.show(mark.y);
        let note = if mark.note.is_empty() { String::new() } else { format!(" ({})", mark.note) };
        format!("{}: {y} at {} {x}{note}", series.name, self.x.label)
    }

    fn legend(&self, html: &mut Html) {
        write!(html, "<ul class=\"legend\">");
        for (place, series) in self.series.iter().enumerate().filter(|(_, series)| !series.marks.is_empty()) {
            write!(html, "<li>");
            draw::swatch(series.shape, place, html);
            write!(html, "{}</li>", text(&series.name));
        }
        for (place, guide) in self.guides.iter().enumerate() {
            write!(html, "<li>");
            draw::guide_swatch(place, html);
            write!(html, "{}: {}</li>", text(&guide.name), text(self.y.unit.show(guide.y)));
        }
        write!(html, "</ul>");
    }

    fn table(&self, html: &mut Html) {
        let rows = self.series.iter().flat_map(|series| series.marks.iter().map(move |mark| (series, mark)));
        let count = rows.clone().count();
        if count == 0 {
            return;
        }
        write!(
            html,
            "<details><summary>The figures</summary><div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Figures of {0}\">\
             <table><thead><tr><th scope=\"col\">what</th><th scope=\"col\" class=\"number\">{1}</th>\
             <th scope=\"col\" class=\"number\">{2}</th><th scope=\"col\">note</th></tr></thead><tbody>",
            text(&self.title),
            text(&self.x.label),
            text(&self.y.label),
        );
        let every = count.div_ceil(MOST_ROWS);
        for (series, mark) in rows.step_by(every) {
            write!(
                html,
                "<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td>{}</td></tr>",
                text(&series.name),
                text(self.x.unit.show(mark.x)),
                text(self.y.unit.show(mark.y)),
                text(&mark.note),
            );
        }
        write!(html, "</tbody></table></div>");
        if every > 1 {
            write!(html, "<p>One in {every} points is listed.</p>");
        }
        write!(html, "</details>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(series: Vec<Series>) -> Chart {
        Chart {
            id: "memory".to_owned(),
            title: "Memory <b>".to_owned(),
            caption: String::new(),
            x: Axis::fitted("batch size", Unit::Count),
            y: Axis::from_zero("reserved", Unit::Bytes),
            series,
            guides: vec![Guide { name: "limit".to_owned(), y: 3e9 }],
        }
    }

    fn written(chart: &Chart) -> String {
        let mut html = Html::default();
        chart.write(&mut html);
        html.into_string()
    }

    #[test]
    fn a_point_says_what_it_is_to_pointer_keyboard_and_table() {
        let marks = vec![Mark::at(8.0, 1e9).noted("trial 3"), Mark::at(16.0, 2e9)];
        let page = written(&chart(vec![Series { name: "<i>me".to_owned(), shape: Shape::Line, marks }]));
        assert!(page.contains("<title>&lt;i&gt;me: 953.7 MiB at batch size 8 (trial 3)</title>"), "{page}");
        assert_eq!(page.matches("tabindex=\"0\" role=\"img\"").count(), 2, "{page}");
        assert!(page.contains("<td>trial 3</td>"));
        assert!(!page.contains("<i>") && !page.contains("<b>"), "{page}");
        assert!(page.contains("limit: 2.8 GiB"));
    }

    #[test]
    fn nothing_to_draw_is_said() {
        let series = Series { name: "a".to_owned(), shape: Shape::Line, marks: vec![Mark::at(f64::NAN, 1.0)] };
        let page = written(&chart(vec![series]));
        assert!(page.contains("nothing to draw") && !page.contains("<svg"), "{page}");
    }

    #[test]
    fn a_long_series_makes_no_long_page() {
        let marks = (0..100_000).map(|n| Mark::at(f64::from(n), f64::from(n % 97))).collect();
        let page = written(&chart(vec![Series { name: "a".to_owned(), shape: Shape::Line, marks }]));
        assert!(page.len() < 40_000, "{}", page.len());
        assert!(!page.contains("NaN") && !page.contains("inf"));
    }
}
