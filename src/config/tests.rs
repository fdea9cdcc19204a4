//! Whole configurations.
