//! `tune report`: the page of a study, or of two side by side, made from their journals.

use std::path::{Path, PathBuf};

use super::ReportArgs;
use super::output::{Page, PageArg, keep_apart};
use crate::error::Error;
use crate::exit_code;
use crate::progress::say;
use crate::report::html;
use crate::report::recommendation::{ReportError, write_whole};
use crate::search::driver::DriverError;
use crate::trial::journal::{self, Contents};

/// The page of two studies, in the folder of the first.
const COMPARISON_FILE_NAME: &str = "comparison.html";

pub(super) fn run(args: &ReportArgs) -> Result<u8, Error> {
    let journals = args.studies.iter().map(|study| read(study)).collect::<Result<Vec<Contents>, Error>>()?;
    for (study, journal) in args.studies.iter().zip(&journals) {
        remark(study, journal);
    }
    let (page, name) = match journals.as_slice() {
        [left, right] => (html::comparison(left, right), COMPARISON_FILE_NAME),
        [one, ..] => (html::page(one), html::FILE_NAME),
        [] => (String::new(), html::FILE_NAME),
    };
    let usual = || args.studies.first().map(|study| folder_of(study).join(name)).unwrap_or_default();
    let asked = args.output.clone().map_or(PageArg::Usual, |path| PageArg::from(path.into_os_string()));
    let output = Page::of(&asked, usual);
    if let Some(path) = output.path() {
        keep_apart(path, &args.studies.iter().map(|study| journal_of(study)).collect::<Vec<PathBuf>>())?;
    }
    output.write(&page)?;
    Ok(exit_code::SAFE)
}

/// What the page does not show, and what its times say of this machine's clock.
fn remark(study: &Path, journal: &Contents) {
    let study = study.display();
    for what in html::left_out(journal) {
        say(&format!("warning: `{study}`: left out of the page, since it cannot be: {what}"));
    }
    let started = &journal.header.started;
    if started.parse::<jiff::Timestamp>().is_ok_and(|started| started > jiff::Timestamp::now()) {
        say(&format!("warning: `{study}` is of a study that began in the future, at {started} by its own clock"));
    }
}

/// Writes the page of a study directory, or of the journal that is named itself, beside the journal; gives its path.
pub(super) fn write_beside_journal(study: &Path) -> Result<PathBuf, Error> {
    let path = folder_of(study).join(html::FILE_NAME);
    write_whole(&path, html::page(&read(study)?).as_bytes()).map_err(|error: ReportError| Error::Report(error))?;
    Ok(path)
}

/// The journal of a study directory, or the journal that is named itself.
fn journal_of(study: &Path) -> PathBuf {
    if study.is_dir() { study.join(journal::FILE_NAME) } else { study.to_owned() }
}

fn read(study: &Path) -> Result<Contents, Error> {
    journal::read(&journal_of(study)).map_err(|error| Error::Driver(DriverError::Journal(error)))
}

fn folder_of(study: &Path) -> &Path {
    if study.is_dir() { study } else { study.parent().unwrap_or(Path::new("")) }
}
