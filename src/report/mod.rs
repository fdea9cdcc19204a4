//! The report room: the recommendation and what is made from it and from the journal: exports, a table, pages.
//!
//! Everything here is a function of the journal: the finished trials, the plan and the device facts. Nothing here
//! prints or runs anything.
//!
//! # To add an export format
//! Create `report/export/<format>.rs` with a type that implements [`export::Exporter`] and add one line to
//! [`export::Format`].

pub mod export;
pub mod html;
pub mod recommendation;
pub mod table;

pub use recommendation::Recommendation;
