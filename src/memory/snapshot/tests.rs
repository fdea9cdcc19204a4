//! Hostile and old files.
