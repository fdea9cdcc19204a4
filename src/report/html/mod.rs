//! The pages: one self-contained HTML file each, without a script and without the network.
//!
//! | function | page |
//! |---|---|
//! | [`page`] | a study: the answer and why, and everything it rests on |
//! | [`comparison`] | two studies side by side |
//! | [`recording`](fn@recording) | a PyTorch snapshot, a trace or an RMM log |
//! | [`long_run`](fn@long_run) | forecast runs, and what would do better |
//! | [`watch`](fn@watch) | a recorded watch of a card |
//!
//! Each is a function of the journal (or the recording) alone, so a page can be made again at any time, on any machine.
//! What a journal of an earlier version lacks is said where it would stand. All texts in a journal are a stranger's: they
//! reach the page through [`markup::text`] only, and the page's own policy forbids it to run or load anything.
//!
//! # To add a figure
//! Create `report/html/<figure>.rs` with a function that writes it from a [`Study`], and add one line to [`page`].

mod answer;
mod block_map;
pub mod chart;
mod compare;
mod document;
mod environment;
mod fragmentation;
mod impossible;
mod loader;
mod long_run;
pub mod markup;
mod places;
mod recording;
mod remedies;
mod scaling;
mod study;
mod trials;
mod watch;

#[cfg(test)]
mod tests;

pub use compare::comparison;
pub use long_run::{ForetoldRun, FoundBetter, Held, LongRunPage, long_run};
pub use recording::{Recorded, recording};
pub use watch::watch;

use block_map::Heading;
use document::Section;
use markup::{Html, text};
use study::Study;

use crate::trial::journal::Contents;

/// A page's name in a study directory.
pub const FILE_NAME: &str = "report.html";

/// The page of a study.
pub fn page(journal: &Contents) -> String {
    let study = Study::new(journal);
    let mut lead = Html::default();
    answer::headline(&study, &mut lead);
    let sections = [
        Section::new("answer", "Answer and checks", |html| answer::write(&study, html)),
        Section::new("scaling", "By batch size", |html| scaling::write(&study, html)),
        Section::new("fragmentation", "Over steps", |html| fragmentation::write(&study, html)),
        Section::new("whole-run", "The whole run", |html| long_run::of_study(&study, html)),
        Section::new("blocks", "Blocks at the worst moment", |html| {
            blocks(&study, "block-map", "Where the blocks lie", html);
        }),
        Section::new("loader", "Loader", |html| loader::write(&study, html)),
        Section::new("rejected", "Rejected", |html| trials::rejected(&study, html)),
        Section::new("trials", "Every trial", |html| trials::all(&study, html)),
        Section::new("warnings", "Warnings", |html| environment::warnings(&study, html)),
        Section::new("environment", "Environment", |html| environment::write(&study, html)),
    ];
    document::page(study.name(), &lead, &sections)
}

/// What of a journal its page leaves out, since it cannot be.
pub fn left_out(journal: &Contents) -> Vec<String> {
    Study::new(journal).left_out
}

/// The block map of a study, or why there is none.
fn blocks(study: &Study<'_>, id: &str, title: &str, html: &mut Html) {
    let Some((point, map)) = study.map else {
        write!(
            html,
            "<figure id=\"{}\"><h3>{}</h3><p class=\"nothing\">The journal holds no block map: it is of an earlier \
             version, the study was cut short, or the events of its point cannot be forecast.</p></figure>",
            text(id),
            text(title)
        );
        return;
    };
    let caption = format!(
        "{point}: by replay of the forecast run under a model of the device's allocator, at event {}: a request that fails, \
         else the one for which most was taken from the device although it lay idle. The map is after that request.",
        map.event
    );
    block_map::write(map, &Heading { id, title, caption: &caption }, html);
}
