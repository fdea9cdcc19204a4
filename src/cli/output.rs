//! Where results go: never over what they were made from, nor over each other.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Refuses to write over a file that was read, under whatever name.
pub(super) fn keep_apart(output: &Path, sources: &[PathBuf]) -> Result<(), Error> {
    let Some(target) = identity(output) else { return Ok(()) };
    if sources.iter().any(|source| identity(source) == Some(target)) {
        return Err(Error::OverSource { path: output.to_owned() });
    }
    Ok(())
}

/// Refuses two results of one name.
pub(super) fn keep_each_apart(outputs: &[&Path]) -> Result<(), Error> {
    for (place, output) in outputs.iter().enumerate() {
        let twin = outputs
            .iter()
            .take(place)
            .any(|other| other == output || identity(other).is_some_and(|other| Some(other) == identity(output)));
        if twin {
            return Err(Error::SameOutput { path: (*output).to_owned() });
        }
    }
    Ok(())
}

/// What a file is, whatever it is called: device and number. `None` for one that is not there yet, and for those that
/// are written to and stay what they are (a terminal, `/dev/null`).
fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_itself_under_every_name() {
        let folder = tempfile::tempdir().unwrap();
        let [source, link, other] = ["source", "link", "other"].map(|name| folder.path().join(name));
        fs::write(&source, "x").unwrap();
        std::os::unix::fs::symlink(&source, &link).unwrap();
        let sources = [source.clone()];
        for output in [&source, &link, &folder.path().join("./source")] {
            assert!(matches!(keep_apart(output, &sources), Err(Error::OverSource { .. })), "{output:?}");
        }
        assert!(keep_apart(&other, &sources).is_ok());
        assert!(keep_apart(Path::new("/dev/null"), &[PathBuf::from("/dev/null")]).is_ok());
        assert!(matches!(keep_each_apart(&[&other, &source, &link]), Err(Error::SameOutput { .. })));
        assert!(matches!(keep_each_apart(&[&other, &other]), Err(Error::SameOutput { .. })));
        assert!(keep_each_apart(&[&other, &source]).is_ok());
    }
}
