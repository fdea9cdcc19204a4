//! A file in memory without being read: the only `unsafe` of this room.
//!
//! A map is as long as the file was when it was opened. Should the file become shorter, the pages behind its end are
//! still mapped, and touching one is a bus error that ends the process. So every read asks for the file's length first,
//! and copies what it takes: half a microsecond a read. That closes the common case (a file that is written anew while a
//! study runs) and leaves the moment between the look and the copy.
#![expect(unsafe_code, reason = "a file may change under its map, which no type can rule out")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::DataError;

/// A file, mapped read-only.
#[derive(Debug)]
pub(crate) struct Mapped {
    path: PathBuf,
    file: File,
    map: Mmap,
}

impl Mapped {
    pub(crate) fn open(path: &Path) -> Result<Self, DataError> {
        let failed = |source: io::Error| DataError::Read { path: path.to_owned(), source };
        // To open a pipe is to wait for whoever writes into it.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(DataError::NotAFile { path: path.to_owned() });
        }
        let file = File::open(path).map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(DataError::NotAFile { path: path.to_owned() });
        }
        // SAFETY: the map is private to this type, which hands out no reference into it: `read` copies bytes, any of which is a
        // valid `u8` whatever another process writes, and stays within the file's present length.
        let map = unsafe { Mmap::map(&file) }.map_err(failed)?;
        Ok(Self { path: path.to_owned(), file, map })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file when it was opened.
    pub(crate) fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// Hands the bytes of a range to `take`, which copies them.
    pub(crate) fn read<T>(&self, range: Range<u64>, take: impl FnOnce(&[u8]) -> T) -> Result<T, DataError> {
        let found = self.file.metadata().map_err(|source| DataError::Read { path: self.path.clone(), source })?.len();
        let shortened =
            || DataError::Shortened { path: self.path.clone(), found: found.min(self.len()), needed: range.end };
        if range.end > found {
            return Err(shortened());
        }
        let bytes = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
        bytes.and_then(|(start, end)| self.map.get(start..end)).map(take).ok_or_else(shortened)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_range_is_read_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"0123456789").unwrap();
        let mapped = Mapped::open(&path).unwrap();
        assert_eq!(mapped.len(), 10);
        assert_eq!(mapped.read(3..5, <[u8]>::to_vec).unwrap(), b"34");
        assert_eq!(mapped.read(10..10, <[u8]>::to_vec).unwrap(), b"");
        assert!(matches!(mapped.read(8..11, <[u8]>::len), Err(DataError::Shortened { found: 10, needed: 11, .. })));
        assert!(mapped.read(0..u64::MAX, <[u8]>::len).is_err());
    }

    #[test]
    fn a_file_that_becomes_shorter_is_an_error_and_no_bus_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, vec![7; 100_000]).unwrap();
        let mapped = Mapped::open(&path).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
        assert_eq!(mapped.read(0..5000, |bytes| bytes.iter().all(|byte| *byte == 7)).ok(), Some(true));
        let error = mapped.read(90_000..90_010, <[u8]>::to_vec);
        assert!(matches!(error, Err(DataError::Shortened { found: 5000, needed: 90_010, .. })));
    }

    #[test]
    fn an_empty_file_is_mapped_and_a_folder_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"").unwrap();
        assert_eq!(Mapped::open(&path).unwrap().len(), 0);
        assert!(Mapped::open(folder.path()).is_err());
        assert!(Mapped::open(&folder.path().join("missing")).is_err());
    }
}
