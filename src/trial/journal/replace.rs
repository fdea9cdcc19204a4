//! A new journal in the place of an old one, which is kept.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use super::{JournalError, PREVIOUS_FILE_NAME, read};

/// Moves `draft` to `path`, and what is there out of the way. Whoever looks sees the old journal or the new one, whole.
pub(super) fn replace(path: &Path, draft: &Path) -> io::Result<()> {
    let previous = path.with_file_name(PREVIOUS_FILE_NAME);
    if !(holds_nothing(path) && previous.exists()) {
        absent_is_fine(fs::rename(path, &previous))?;
    }
    fs::rename(draft, path)?;
    // The rename itself is durable once the directory is; where directories cannot be synced, nothing is lost but a study
    // that has not run a trial yet.
    let _ = path.parent().map(|study| File::open(study).and_then(|directory| directory.sync_all()));
    Ok(())
}

/// Whether nothing is lost with a journal: no trial in it went well. One that cannot be read may hold anything.
fn holds_nothing(path: &Path) -> bool {
    match read(path) {
        Ok(contents) => !contents.finished().any(|(record, _)| record.completed()),
        Err(error) => matches!(error, JournalError::NoHeader { .. }),
    }
}

/// A result in which a file that is not there is no failure.
pub(super) fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
