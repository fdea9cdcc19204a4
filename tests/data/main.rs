//! Datasets of every kind, by themselves and through the loader.

mod contract;
mod fixtures;
mod hostile;
mod sources;
