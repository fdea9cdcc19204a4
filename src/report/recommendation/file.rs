//! The recommendation as a file: whole or not at all, and read back with care.

use std::io::Write;
use std::path::Path;

use super::{Recommendation, SCHEMA};

/// The largest recommendation file that is read back.
const MAX_FILE_BYTES: u64 = 16 << 20;

impl Recommendation {
    /// The file's text.
    pub fn to_yaml(&self) -> Result<String, ReportError> {
        Ok(serde_yaml::to_string(self)?)
    }

    /// Writes the file so that a reader sees either the old one or the new one, never a part.
    pub fn write(&self, path: &Path) -> Result<(), ReportError> {
        let failed = |source| ReportError::Write { path: path.to_owned(), source };
        let text = self.to_yaml()?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = tempfile::Builder::new().prefix(".recommendation").tempfile_in(folder).map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
        readable_by_all(file.as_file()).map_err(failed)?;
        file.persist(path).map_err(|error| failed(error.error))?;
        Ok(())
    }

    /// Reads a recommendation back.
    pub fn read(path: &Path) -> Result<Self, ReportError> {
        let failed = |source| ReportError::Read { path: path.to_owned(), source };
        let length = std::fs::metadata(path).map_err(failed)?.len();
        if length > MAX_FILE_BYTES {
            let source = std::io::Error::other(format!("{length} bytes are too many for a recommendation"));
            return Err(failed(source));
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let read: Self =
            serde_yaml::from_str(&text).map_err(|source| ReportError::Parse { path: path.to_owned(), source })?;
        if read.schema == SCHEMA {
            Ok(read)
        } else {
            Err(ReportError::Schema { path: path.to_owned(), found: read.schema })
        }
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
    /// The file is of another schema.
    #[error("`{}` has the schema `{found}`, expected `{SCHEMA}`", path.display())]
    Schema {
        /// Which.
        path: std::path::PathBuf,
        /// What it says.
        found: String,
    },
    /// A value that YAML cannot hold.
    #[error("cannot write the recommendation as YAML")]
    Yaml(#[from] serde_yaml::Error),
}
