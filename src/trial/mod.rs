//! The trial room: running one configuration for real steps, in a process of its own.
//!
//! A [`TrialSpec`] says what to run. An [`Executor`] runs it and gives back a [`TrialRecord`], which always ends in
//! a named [`Outcome`]. The one that ships ([`process::ProcessExecutor`]) starts a worker process (`tune worker`),
//! speaks the line protocol of [`protocol`] with it, and tells outcomes apart by typed messages, exit status and
//! signal, never by searching text. A [`launcher`] may stand in between and start the worker on another machine. The worker's side is [`worker`], which turns the times of its steps into a
//! [`Measurement`] by [`measure`] and [`statistics`]. [`journal`] keeps every record.
//!
//! This room does not know the search: a verdict is a JSON value to it.

pub mod command;
pub mod disk;
pub mod executor;
pub mod exit_status;
pub mod extension;
pub mod journal;
pub mod launcher;
pub mod measure;
pub mod outcome;
pub mod outlook;
mod placeholders;
pub mod process;
pub mod protocol;
pub mod remedies;
pub mod replicas;
pub mod spawn;
pub mod spec;
pub mod statistics;
pub mod tuned_run;
pub mod unfinished_play;
pub mod worker;
mod worst_rank;

pub use executor::{Executor, ExecutorError, Interrupt, Observation};
pub use outcome::{Measurement, Outcome, TrialRecord};
pub use outlook::Outlook;
pub use spec::{Point, Purpose, TrialId, TrialSpec, WorkloadSpec};
pub use tuned_run::TunedRun;
pub use unfinished_play::{PlayKind, UnfinishedPlay};
