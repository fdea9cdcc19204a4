//! The recommendation as a file: whole or not at all, and read back with care.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use super::nesting::{DEEPEST, too_deep_at};
use super::{Impossible, Recommendation, SCHEMA};

/// The largest recommendation file that is read back: one with ten thousand rejected points.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// As many as Linux follows.
const MOST_LINKS: usize = 40;

impl Recommendation {
    /// The file's text.
    pub fn to_yaml(&self) -> Result<String, ReportError> {
        Ok(serde_yaml::to_string(self)?)
    }

    /// Writes the file so that a reader sees either the old one or the new one, never a part. What is no file, such as
    /// `/dev/null`, is written to as it is.
    pub fn write(&self, path: &Path) -> Result<(), ReportError> {
        write_whole(path, self.to_yaml()?.as_bytes())
    }

    /// Refuses a path that [`write`](Self::write) could not write to, so that no trial is run in vain.
    pub fn check_writable(path: &Path) -> Result<(), ReportError> {
        let failed = |source| ReportError::Write { path: path.to_owned(), source };
        match destination(path).map_err(failed)? {
            Destination::File(path) => draft(&path).map(drop).map_err(failed),
            Destination::Device => Ok(()),
        }
    }

    /// Reads a recommendation back.
    pub fn read(path: &Path) -> Result<Self, ReportError> {
        let failed = |source| ReportError::Read { path: path.to_owned(), source };
        let mut text = String::new();
        // The length is no bound: a device has none.
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > MAX_FILE_BYTES {
            let source = std::io::Error::other(format!("over {MAX_FILE_BYTES} bytes are no recommendation"));
            return Err(failed(source));
        }
        if let Some((line, column)) = too_deep_at(&text) {
            return Err(ReportError::TooDeep { path: path.to_owned(), line, column });
        }
        let read: Self =
            serde_yaml::from_str(&text).map_err(|source| ReportError::Parse { path: path.to_owned(), source })?;
        if read.schema != SCHEMA {
            return Err(ReportError::Schema { path: path.to_owned(), found: read.schema });
        }
        read.validate().map_err(|source| ReportError::Impossible { path: path.to_owned(), source })?;
        Ok(read)
    }
}

/// Writes a result for a launch: the whole of it or nothing, as [`Recommendation::write`] does.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), ReportError> {
    let failed = |source| ReportError::Write { path: path.to_owned(), source };
    let path = match destination(path).map_err(failed)? {
        Destination::File(path) => path,
        Destination::Device => return std::fs::write(path, bytes).map_err(failed),
    };
    let mut file = draft(&path).map_err(failed)?;
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
    readable_by_all(file.as_file()).map_err(failed)?;
    file.persist(&path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Where a recommendation goes.
enum Destination {
    /// A file, which is replaced as a whole. Links are followed: what they point to is meant.
    File(PathBuf),
    /// A character device. Replacing it would take `/dev/null` away from everybody.
    Device,
}

fn destination(path: &Path) -> std::io::Result<Destination> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::metadata(path).map(|metadata| metadata.file_type()) {
        Ok(kind) if kind.is_file() => std::fs::canonicalize(path).map(Destination::File),
        Ok(kind) if kind.is_char_device() => Ok(Destination::Device),
        Ok(kind) if kind.is_dir() => Err(std::io::Error::from(std::io::ErrorKind::IsADirectory)),
        Ok(_) => Err(std::io::Error::other("it is neither a file nor a character device")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Destination::File(behind_links(path))),
        Err(error) => Err(error),
    }
}

/// Where a link to nothing yet leads: a file written there is what the link is for. Links that lead in a circle were
/// refused before.
fn behind_links(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(target) = std::fs::read_link(&path) else { break };
        path = path.parent().map_or_else(|| target.clone(), |folder| folder.join(&target));
    }
    path
}

/// A file beside `path` that can take its place, and is gone unless it does.
fn draft(path: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::Builder::new().prefix(".recommendation").tempfile_in(folder).map_err(without_its_name)
}

/// An error without the name of a file that nobody asked for: what was to be written is named beside it.
fn without_its_name(error: std::io::Error) -> std::io::Error {
    let said = error.to_string();
    match said.rsplit_once(" at path ") {
        Some((why, _)) => std::io::Error::new(error.kind(), why.to_owned()),
        None => error,
    }
}

/// Temporary files are private to their owner; a recommendation is for the job that runs next.
fn readable_by_all(file: &std::fs::File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

/// Why a recommendation cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The file cannot be written.
    #[error("cannot write `{}`", path.display())]
    Write {
        /// Which.
        path: std::path::PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The file cannot be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// Which.
        path: std::path::PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The file is no recommendation.
    #[error("`{}` is not a recommendation of this version", path.display())]
    Parse {
        /// Which.
        path: std::path::PathBuf,
        /// Why not.
        #[source]
        source: serde_yaml::Error,
    },
    /// The file is nested as no recommendation is.
    #[error("`{}` is no recommendation: it is nested more than {DEEPEST} levels deep at line {line} column {column}", path.display())]
    TooDeep {
        /// Which.
        path: std::path::PathBuf,
        /// Where.
        line: usize,
        /// Where in that line.
        column: usize,
    },
    /// The file is of another schema.
    #[error("`{}` has the schema `{found}`, expected `{SCHEMA}`", path.display())]
    Schema {
        /// Which.
        path: std::path::PathBuf,
        /// What it says.
        found: String,
    },
    /// The file says what cannot be.
    #[error("`{}` cannot be right", path.display())]
    Impossible {
        /// Which.
        path: std::path::PathBuf,
        /// Why not.
        #[source]
        source: Impossible,
    },
    /// A value that YAML cannot hold.
    #[error("cannot write the recommendation as YAML")]
    Yaml(#[from] serde_yaml::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_written_to_and_not_replaced() {
        assert!(matches!(destination(Path::new("/dev/null")), Ok(Destination::Device)));
    }

    #[test]
    fn a_link_is_kept_and_what_it_points_to_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let meant = file.canonicalize().unwrap();
        assert!(matches!(destination(&link), Ok(Destination::File(path)) if path == meant));
    }

    #[test]
    fn what_is_neither_a_file_nor_a_device_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(Recommendation::check_writable(&socket).is_err());
        assert!(Recommendation::check_writable(folder.path()).is_err());
    }

    #[test]
    fn an_error_names_what_was_to_be_written_alone() {
        let error = Recommendation::check_writable(Path::new("/nonexistent/report.html")).unwrap_err();
        let said = crate::text::with_causes(&error);
        assert_eq!(said, "cannot write `/nonexistent/report.html`: No such file or directory (os error 2)");
    }

    #[test]
    fn brackets_without_end_are_no_recommendation() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[".repeat(400_000)).unwrap();
        assert!(matches!(Recommendation::read(file.path()), Err(ReportError::TooDeep { line: 1, .. })));
    }

    #[test]
    fn what_has_no_end_is_no_recommendation() {
        assert!(matches!(Recommendation::read(Path::new("/dev/zero")), Err(ReportError::Read { .. })));
    }
}
