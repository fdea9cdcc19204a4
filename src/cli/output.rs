//! Where results go: never over what they were made from, nor over each other.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Form, print_result};
use crate::error::Error;
use crate::progress::say;
use crate::report::recommendation::write_whole;

/// What was said of where a page goes: `--html PATH`, `--html` alone for its usual place, `--html -` for standard output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PageArg {
    /// Nothing.
    Usual,
    /// `-`.
    Printed,
    /// A path.
    File(PathBuf),
}

impl From<OsString> for PageArg {
    fn from(path: OsString) -> Self {
        if path.is_empty() {
            Self::Usual
        } else if path == "-" {
            Self::Printed
        } else {
            Self::File(path.into())
        }
    }
}

/// Where a page goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// To standard output, in place of what the command would print there.
    Printed,
    /// Into a file.
    Written(PathBuf),
}

impl Page {
    /// What was asked for, with its usual place.
    pub(super) fn of(asked: &PageArg, usual: impl FnOnce() -> PathBuf) -> Self {
        match asked {
            PageArg::Usual => Self::Written(usual()),
            PageArg::Printed => Self::Printed,
            PageArg::File(path) => Self::Written(path.clone()),
        }
    }

    /// The page of a command that may print JSON as well, if one was asked for. Standard output has place for one of them.
    pub(super) fn asked(
        asked: Option<&PageArg>,
        form: Form,
        usual: impl FnOnce() -> PathBuf,
    ) -> Result<Option<Self>, Error> {
        let page = asked.map(|asked| Self::of(asked, usual));
        if page == Some(Self::Printed) && form == Form::Json { Err(Error::TwoPrinted) } else { Ok(page) }
    }

    /// The file, if it is one.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::Printed => None,
            Self::Written(path) => Some(path),
        }
    }

    /// Writes it whole and says where it is.
    pub(super) fn write(&self, html: &str) -> Result<(), Error> {
        match self {
            Self::Printed => print_result(html),
            Self::Written(path) => {
                write_whole(path, html.as_bytes())?;
                say(&format!("page: {}", path.display()));
                Ok(())
            }
        }
    }
}

/// `snapshot.pickle.html` beside `snapshot.pickle`.
pub(super) fn beside(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".html");
    file.with_file_name(name)
}

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
    fn a_page_goes_to_its_path_its_usual_place_or_standard_output() {
        let asked = |text: &str, form| Page::asked(Some(&PageArg::from(OsString::from(text))), form, || "usual".into());
        for (text, place) in [("", "usual"), ("x.html", "x.html"), ("./-", "./-")] {
            assert_eq!(asked(text, Form::Json).unwrap(), Some(Page::Written(place.into())));
        }
        assert_eq!(asked("-", Form::Table).unwrap(), Some(Page::Printed));
        assert!(matches!(asked("-", Form::Json), Err(Error::TwoPrinted)));
        assert_eq!(Page::asked(None, Form::Json, || "usual".into()).unwrap(), None);
    }

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
