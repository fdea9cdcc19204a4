//! The report page: one self-contained HTML file, a function of the journal.

pub mod chart;
pub mod markup;
