//! Exports as their readers see them: shells, Python, and YAML and JSON parsers read back every value, whatever a text
//! in the recommendation holds, and run none of it.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on must panic")]

mod formats;
mod job_scripts;
mod refusals;
mod support;
