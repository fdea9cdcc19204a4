//! One run at a time in a study directory.
//!
//! The lock is the kernel's (`flock`), so it ends with the process however that ends; the file stays and is no sign of
//! a running study by itself. It holds the process number for the message to a second run.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::JournalError;

/// The lock file's name in a study directory.
const FILE_NAME: &str = "study.lock";

/// The right to write in a study directory, for as long as it lives.
#[derive(Debug)]
pub struct StudyLock {
    study: PathBuf,
    /// Closing the file gives the lock back. Workers do not inherit it: Rust opens every file close-on-exec.
    _file: File,
}

impl StudyLock {
    /// Locks `study`, which is made if it is not there.
    pub fn acquire(study: &Path) -> Result<Self, JournalError> {
        let failed = |source| JournalError::Study { study: study.to_owned(), source };
        // Workers are told of it in JSON, which holds no other path: they would wait for it in vain.
        if study.to_str().is_none() {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "its path is not UTF-8")));
        }
        fs::create_dir_all(study).map_err(failed)?;
        let path = study.join(FILE_NAME);
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(JournalError::Locked { study: study.to_owned(), pid: pid_in(&mut file) });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        // The number is a courtesy: a full disk must not keep a study from being read.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(format!("{}\n", std::process::id()).as_bytes()));
        Ok(Self { study: study.to_owned(), _file: file })
    }

    /// The study directory.
    pub fn study(&self) -> &Path {
        &self.study
    }
}

fn pid_in(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_workers_cannot_be_told_is_refused_before_anything_is_made() {
        use std::os::unix::ffi::OsStrExt;
        let folder = tempfile::tempdir().unwrap();
        let study = folder.path().join(std::ffi::OsStr::from_bytes(b"\xff"));
        assert!(matches!(StudyLock::acquire(&study), Err(JournalError::Study { .. })));
        assert!(!study.exists());
    }
}
