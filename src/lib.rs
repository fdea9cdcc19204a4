//! batchtune: `tune --config model.yaml` finds the fastest batch configuration that is shown to be safe.

pub mod config;
pub mod data;
pub mod device;
pub mod exit_code;
pub mod memory;
pub mod model;
pub mod progress;
pub mod search;
pub mod train;
pub mod trial;
pub mod units;
