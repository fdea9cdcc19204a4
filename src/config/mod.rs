//! The config room: `model.yaml` in, a [`Plan`] out.

pub mod plan;

pub use plan::Plan;
