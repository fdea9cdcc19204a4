//! The sections of `model.yaml`, one file each.
//!
//! A section is a struct whose fields are its keys. Its `Default` is what a file without the section means, and its
//! comments are the descriptions in the JSON Schema, so each is written for the person who writes the file.
//!
//! # To add a key
//! Add a field here, resolve it in [`crate::config::resolve`], print it in [`crate::config::write`], and describe it
//! in `configs/reference.yaml`; tests fail until all four agree.

pub mod budget;
pub mod command;
pub mod data;
pub mod launcher;
pub mod memory;
pub mod model;
pub mod safety;
pub mod search;
pub mod target;
pub mod train;
pub mod trial;
