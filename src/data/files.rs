//! The files that a source is read from.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use super::DataError;
use crate::units::Bytes;

/// The most files of a folder whose files are joined.
const MAX_FILES: usize = 100_000;

/// The files of a source, in the order of their names: the file itself, or those of the folder (not of its subfolders,
/// and none whose name starts with a dot) that `is_wanted`.
pub(super) fn files(path: &Path, is_wanted: &dyn Fn(&Path) -> bool) -> Result<Vec<PathBuf>, DataError> {
    let failed = |source| DataError::Read { path: path.to_owned(), source };
    let kind = fs::metadata(path).map_err(failed)?;
    if kind.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    if !kind.is_dir() {
        return Err(DataError::NotAFile { path: path.to_owned() });
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let file = entry.path();
        if is_hidden(&entry) || !is_wanted(&file) || !fs::metadata(&file).is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        if files.len() == MAX_FILES {
            return Err(DataError::TooManyFiles { path: path.to_owned(), limit: MAX_FILES });
        }
        files.push(file);
    }
    if files.is_empty() {
        return Err(DataError::NoFiles { path: path.to_owned() });
    }
    files.sort_unstable();
    Ok(files)
}

/// Whether a name starts with a dot.
pub(super) fn is_hidden(entry: &fs::DirEntry) -> bool {
    entry.file_name().as_encoded_bytes().starts_with(b".")
}

/// Appends a file to `bytes`, as long as the whole source, at `source_path`, stays under the limit.
pub(super) fn append(file: &Path, source_path: &Path, limit: u64, bytes: &mut Vec<u8>) -> Result<(), DataError> {
    let failed = |source| DataError::Read { path: file.to_owned(), source };
    let left = limit.saturating_sub(bytes.len() as u64);
    // Opening a device can do something, and a pipe would keep whoever opens it waiting.
    if !fs::metadata(file).map_err(failed)?.is_file() {
        return Err(DataError::NotAFile { path: file.to_owned() });
    }
    // It may have become a pipe since.
    let opened = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(file).map_err(failed)?;
    let kind = opened.metadata().map_err(failed)?;
    if !kind.is_file() {
        return Err(DataError::NotAFile { path: file.to_owned() });
    }
    let too_large = || DataError::TooLarge { path: source_path.to_owned(), limit: Bytes(limit) };
    if kind.len() > left {
        return Err(too_large());
    }
    bytes.try_reserve(kind.len() as usize + 1).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
    // The size is only a promise: a file may grow while it is read.
    let read = opened.take(left + 1).read_to_end(bytes).map_err(failed)?;
    if read as u64 > left { Err(too_large()) } else { Ok(()) }
}
