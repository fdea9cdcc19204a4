//! The progress room: events in; bars, plain lines or JSON lines out.
//!
//! The driver emits [`Event`]s and knows nothing of terminals. A [`Reporter`] shows them.
//!
//! # To add a reporter
//! Create `progress/<form>.rs` with a type that implements [`Reporter`] and one arm in [`choose`].

pub mod event;

pub use event::Event;

/// Shows the events of a study, in order.
pub trait Reporter {
    /// Takes one event.
    fn report(&mut self, event: &Event);
}

/// Shows nothing.
#[derive(Debug, Default)]
pub struct Silent;

impl Reporter for Silent {
    fn report(&mut self, _event: &Event) {}
}
