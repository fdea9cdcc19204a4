//! Files that a user hands to a command: read whole, within bounds.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::memory::recording::{Recording, RecordingError};

/// The largest recording that is read: a PyTorch snapshot of ten million events has about 1 GiB.
const MAX_RECORDING_BYTES: u64 = 2 << 30;
/// The longest error text that is read; what matters stands within a few hundred bytes.
const MAX_TEXT_BYTES: u64 = 16 << 20;

/// The longest recording of a watch that is read; one that we write has at most 96 MiB.
const MAX_WATCH_BYTES: u64 = 128 << 20;

/// Why an input is not read.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// It cannot be opened or read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It is too large.
    #[error("`{}` is over {limit}, which is more than this command reads", path.display(), limit = crate::units::Bytes(*.limit_bytes))]
    TooLarge {
        /// Which.
        path: PathBuf,
        /// What is read at most.
        limit_bytes: u64,
    },
    /// It is no recording.
    #[error("`{}`", path.display())]
    Recording {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: RecordingError,
    },
}

/// Reads a memory recording: a PyTorch snapshot, our own trace or RMM's log.
pub(super) fn recording(path: &Path) -> Result<Recording, InputError> {
    let data = bytes(path, MAX_RECORDING_BYTES)?;
    Recording::read(&data).map_err(|source| InputError::Recording { path: path.to_owned(), source })
}

/// Reads a text from a file, or from standard input where the path is `-`. Bytes that are no UTF-8 are replaced: logs
/// hold anything.
pub(super) fn text(path: &Path) -> Result<String, InputError> {
    let data = if path == Path::new("-") {
        bounded(io::stdin().lock(), path, MAX_TEXT_BYTES)?
    } else {
        bytes(path, MAX_TEXT_BYTES)?
    };
    Ok(String::from_utf8_lossy(&data).into_owned())
}

/// Reads the recording of a watch.
pub(super) fn watch(path: &Path) -> Result<String, InputError> {
    Ok(String::from_utf8_lossy(&bytes(path, MAX_WATCH_BYTES)?).into_owned())
}

fn bytes(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, InputError> {
    let failed = |source| InputError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    // A directory opens and does not read; its length says nothing. A large file is refused before it is read.
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(failed(io::Error::from(io::ErrorKind::IsADirectory)));
    }
    if metadata.len() > limit_bytes {
        return Err(InputError::TooLarge { path: path.to_owned(), limit_bytes });
    }
    bounded(file, path, limit_bytes)
}

fn bounded(input: impl Read, path: &Path, limit_bytes: u64) -> Result<Vec<u8>, InputError> {
    let mut data = Vec::new();
    input
        .take(limit_bytes + 1)
        .read_to_end(&mut data)
        .map_err(|source| InputError::Read { path: path.to_owned(), source })?;
    if data.len() as u64 > limit_bytes {
        return Err(InputError::TooLarge { path: path.to_owned(), limit_bytes });
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_is_cut_off() {
        let endless = io::repeat(b'x');
        assert!(matches!(bounded(endless, Path::new("-"), 1000), Err(InputError::TooLarge { .. })));
    }

    #[test]
    fn a_directory_is_no_input() {
        assert!(matches!(bytes(Path::new("/"), 10), Err(InputError::Read { .. })));
    }
}
