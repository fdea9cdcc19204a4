//! The page around the figures: head, policy, style, sections.

use super::markup::{Html, text};

/// What the page may do: nothing but be styled by what stands in it. Should a stranger's text ever get past
/// [`text`], it still runs nothing and loads nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";
/// The style, for light and dark, narrow and wide, screen and paper.
const STYLE: &str = include_str!("page.css");

/// A part of a page with a heading, which the navigation names.
pub(super) struct Section {
    id: &'static str,
    title: &'static str,
    content: Html,
}

impl Section {
    /// A section whose content `fill` writes.
    pub(super) fn new(id: &'static str, title: &'static str, fill: impl FnOnce(&mut Html)) -> Self {
        let mut content = Html::default();
        fill(&mut content);
        Self { id, title, content }
    }
}

/// A page: a title, what is said first, and the sections.
pub(super) fn page(title: &str, lead: &Html, sections: &[Section]) -> String {
    let mut html = Html::default();
    write!(
        html,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n<title>{0}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <header><h1>{0}</h1>{lead}<nav aria-label=\"Sections\"><ul>",
        text(title)
    );
    for Section { id, title, .. } in sections {
        write!(html, "<li><a href=\"#{id}\">{title}</a></li>");
    }
    write!(html, "</ul></nav></header>\n<main>\n");
    for Section { id, title, content } in sections {
        write!(
            html,
            "<section id=\"{id}\" aria-labelledby=\"{id}-title\"><h2 id=\"{id}-title\">{title}</h2>\n{content}</section>"
        );
    }
    write!(
        html,
        "</main>\n<footer>Made by batchtune {}. This file needs no network and runs no script.</footer>\n</body>\n</html>",
        env!("CARGO_PKG_VERSION")
    );
    html.into_string()
}

/// A table that scrolls by itself where it is too wide. A heading that ends with `#` is of numbers.
pub(super) fn table(html: &mut Html, name: &str, headings: &[&str], fill: impl FnOnce(&mut Html)) {
    write!(html, "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table><thead><tr>", text(name));
    for heading in headings {
        match heading.strip_suffix('#') {
            Some(heading) => write!(html, "<th scope=\"col\" class=\"number\">{}</th>", text(heading)),
            None => write!(html, "<th scope=\"col\">{}</th>", text(heading)),
        }
    }
    write!(html, "</tr></thead><tbody>");
    fill(html);
    write!(html, "</tbody></table></div>");
}

/// A row of a table of names and values.
pub(super) fn fact(html: &mut Html, name: &str, value: impl std::fmt::Display) {
    write!(html, "<tr><th scope=\"row\">{}</th><td>{}</td></tr>", text(name), text(value));
}

/// A figure that stands alone, large.
pub(super) fn tile(html: &mut Html, name: &str, value: impl std::fmt::Display) {
    write!(html, "<div><dt>{}</dt><dd>{}</dd></div>", text(name), text(value));
}
