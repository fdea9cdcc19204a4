//! The journal: everything that a study did, one JSON object a line, never rewritten.
//!
//! ```text
//! {"schema":"batchtune/journal/v1","config_sha256":"…","plan":{…},"version":"0.1.0","started":"…"}
//! {"entry":"device","facts":{…}}
//! {"entry":"trial_started","spec":{…}}
//! {"entry":"trial_ended","record":{…},"verdict":{…}}
//! {"entry":"skipped","point":{…},"reason":"…"}
//! {"entry":"whole_run","point":{…},"outlook":{…},"runs":[…]}
//! {"entry":"remedies","point":{…},"remedies":{…}}
//! {"entry":"allocator_tuned","point":{…},"found":{…},"tried":[…]}
//! {"entry":"play_unfinished","point":{…},"play":"whole_run","step":812,"total":10000}
//! {"entry":"recommended","recommendation":{…}}
//! {"entry":"forecast","curve":{…}}
//! {"entry":"block_map","point":{…},"map":{…}}
//! {"entry":"concluded","status":"safe"}
//! ```
//!
//! A study resumes by replaying its journal, and every report is rendered from it. This room does not know the search,
//! so verdicts and recommendations are JSON values here and typed where they are made.
//!
//! # What survives what
//! - `kill -9` of the driver: every line is one write, so at most the last line is torn. A line without its newline is
//!   cut off when the journal is opened again; a bad line anywhere else is damage, reported with its number.
//! - Power loss: entries that cost something to get again ([`Entry::is_durable`]) are synced before
//!   [`Journal::append`] returns.
//! - A full disk: a write that fails half-way is taken back, so the entries before it stay readable.
//! - A newer version: entries of a kind unknown here are passed over, a schema unknown here is refused.
//! - A run that starts no trial: a new journal takes the old one's place once a device is open ([`Journal::take_place`]).
//! - A second run on the same study directory is refused while the first lives ([`lock`]).

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::outcome::TrialRecord;
use super::outlook::{Outlook, PlayedRun};
use super::remedies::RunRemedies;
use super::spec::{Point, TrialSpec};
use super::tuned_run::{TriedSetting, TunedRun};
use super::unfinished_play::{PlayKind, UnfinishedPlay};
use crate::device::DeviceFacts;
use crate::memory::blocks::BlockMap;
use crate::memory::forecast::curve::Curve;

mod error;
pub mod lock;
mod read;
mod replace;
#[cfg(test)]
mod tests;

pub use error::JournalError;
pub use lock::StudyLock;
pub use read::read;

/// The schema of the journals that this version writes.
pub const SCHEMA: &str = "batchtune/journal/v1";
/// The journal's name in a study directory.
pub const FILE_NAME: &str = "journal.jsonl";
/// What the journal before the last fresh start is kept as.
pub const PREVIOUS_FILE_NAME: &str = "journal.previous.jsonl";
/// What a journal is called before it takes its place.
const DRAFT_FILE_NAME: &str = "journal.draft.jsonl";
/// The longest line that is written or read: a soak of 10,000 samples takes about 6 MiB.
pub const MAX_ENTRY_BYTES: usize = 64 << 20;

/// The first line: whose journal this is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`SCHEMA`].
    pub schema: String,
    /// The hash of the plan, without budget, output and progress. A study is resumed under the same hash alone.
    pub config_sha256: String,
    /// The resolved plan, for people and reports.
    pub plan: Value,
    /// batchtune's version.
    pub version: String,
    /// When the study began, RFC 3339.
    pub started: String,
}

impl Header {
    /// The header of a study that begins now.
    pub fn new(config_sha256: &str, plan: Value) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            config_sha256: config_sha256.to_owned(),
            plan,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: jiff::Timestamp::now().to_string(),
        }
    }
}

impl Header {
    /// Refuses a journal that another plan wrote.
    pub fn expect_plan(&self, config_sha256: &str) -> Result<(), JournalError> {
        if self.config_sha256 == config_sha256 { Ok(()) } else { Err(JournalError::OtherPlan) }
    }
}

/// One thing that happened in a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "most entries of a journal are the large one")]
pub enum Entry {
    /// The device was opened.
    Device {
        /// What it is.
        facts: DeviceFacts,
    },
    /// A trial began. One without an end was interrupted.
    TrialStarted {
        /// What is run.
        spec: TrialSpec,
    },
    /// A trial ended.
    TrialEnded {
        /// What happened.
        record: TrialRecord,
        /// What the safety rules say of it.
        verdict: Value,
    },
    /// A point was ruled out without running it.
    Skipped {
        /// Which.
        point: Point,
        /// Why.
        reason: String,
    },
    /// A better recommendation was written.
    Recommended {
        /// The recommendation.
        recommendation: Value,
    },
    /// What the probes foretell of many batch sizes, for the report.
    Forecast {
        /// The curve.
        curve: Curve,
    },
    /// Where the blocks of a point lie at its worst moment, by replay of its forecast: for the report.
    BlockMap {
        /// Which point.
        point: Point,
        /// The map.
        map: BlockMap,
    },
    /// What is forecast of the whole run of a point.
    WholeRun {
        /// Which point.
        point: Point,
        /// What came of it.
        outlook: Outlook,
        /// Its figures under each allocator that it was played to: for the report.
        runs: Vec<PlayedRun>,
    },
    /// What other shapes would do to the whole run of a point, by forecast.
    Remedies {
        /// Which point.
        point: Point,
        /// What came of each.
        remedies: RunRemedies,
    },
    /// Settings of the allocator were searched for over the whole run of a point.
    AllocatorTuned {
        /// Which point.
        point: Point,
        /// What came of it.
        found: TunedRun,
        /// Everything that was tried: for the report.
        tried: Vec<TriedSetting>,
    },
    /// The study ended in the middle of a play of the whole run of a point, and this is all that is kept of it.
    PlayUnfinished(UnfinishedPlay),
    /// The search came to its end.
    Concluded {
        /// `safe`, `unverified` or `none`.
        status: String,
    },
}

impl Entry {
    /// The kinds that this version knows, as the field `entry` holds them.
    const KINDS: [&str; 12] = [
        "device",
        "trial_started",
        "trial_ended",
        "skipped",
        "recommended",
        "forecast",
        "block_map",
        "whole_run",
        "remedies",
        "allocator_tuned",
        "play_unfinished",
        "concluded",
    ];

    /// Whether it is on the disk before [`Journal::append`] returns: what took a trial to learn is.
    pub fn is_durable(&self) -> bool {
        matches!(self, Self::TrialEnded { .. } | Self::Recommended { .. } | Self::Concluded { .. })
    }
}

/// A journal as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Contents {
    /// Its first line.
    pub header: Header,
    /// All entries of known kinds.
    pub entries: Vec<Entry>,
    /// Entries of kinds that this version does not know.
    pub unknown_entries: usize,
    /// Length of all whole lines. What lies beyond is a torn line.
    pub whole_bytes: u64,
}

impl Contents {
    /// The finished trials with their verdicts, in order.
    pub fn finished(&self) -> impl Iterator<Item = (&TrialRecord, &Value)> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::TrialEnded { record, verdict } => Some((record, verdict)),
            _ => None,
        })
    }

    /// The runs that were played, in order.
    pub fn foretold(&self) -> impl Iterator<Item = (&Point, &Outlook)> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::WholeRun { point, outlook, .. } => Some((point, outlook)),
            _ => None,
        })
    }

    /// The other ways that were played, in order.
    pub fn remedied(&self) -> impl Iterator<Item = (&Point, &RunRemedies)> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Remedies { point, remedies } => Some((point, remedies)),
            _ => None,
        })
    }

    /// What searches for settings of the allocator came to, in order.
    pub fn tuned(&self) -> impl Iterator<Item = (&Point, &TunedRun)> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::AllocatorTuned { point, found, .. } => Some((point, found)),
            _ => None,
        })
    }
}

impl Contents {
    /// The plays that were left in the middle and have no result yet, the last of each run.
    pub fn unfinished_plays(&self) -> Vec<&UnfinishedPlay> {
        let mut left: Vec<&UnfinishedPlay> = Vec::new();
        for entry in &self.entries {
            let (of, play) = match entry {
                Entry::PlayUnfinished(unfinished) => (&unfinished.point, unfinished.play),
                Entry::WholeRun { point, .. } => (point, PlayKind::WholeRun),
                Entry::AllocatorTuned { point, .. } => (point, PlayKind::Allocator),
                _ => continue,
            };
            left.retain(|known| (&known.point, known.play) != (of, play));
            if let Entry::PlayUnfinished(unfinished) = entry {
                left.push(unfinished);
            }
        }
        left
    }
}

/// An open journal, for appending. The study is locked while it lives.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    whole_bytes: u64,
    /// Where it is written until it takes its place.
    draft: Option<PathBuf>,
    _lock: StudyLock,
}

impl Journal {
    /// Whether `study` holds a journal.
    pub fn exists(study: &Path) -> bool {
        study.join(FILE_NAME).exists()
    }

    /// Begins a journal in the locked study, in the place of one that is there: [`draft`](Self::draft) and
    /// [`take_place`](Self::take_place).
    pub fn create(lock: StudyLock, header: &Header) -> Result<Self, JournalError> {
        let mut journal = Self::draft(lock, header)?;
        journal.take_place()?;
        Ok(journal)
    }

    /// Begins a journal beside the one that is there. Dropped before it [takes its place](Self::take_place) it leaves
    /// nothing: a run that starts no trial, for want of a device say, must not cost an answer.
    pub fn draft(lock: StudyLock, header: &Header) -> Result<Self, JournalError> {
        let path = lock.study().join(FILE_NAME);
        let failed = |source| JournalError::Write { path: path.clone(), source };
        let line = line_of(header).map_err(|source| JournalError::Encode { path: path.clone(), source })?;
        let draft = lock.study().join(DRAFT_FILE_NAME);
        // Left by one that was killed: whoever holds the lock is alone.
        replace::absent_is_fine(fs::remove_file(&draft)).map_err(failed)?;
        let mut file = OpenOptions::new().append(true).create_new(true).open(&draft).map_err(failed)?;
        let written = file.write_all(&line).and_then(|()| file.sync_all());
        let whole_bytes = line.len() as u64;
        let journal = Self { file, path: path.clone(), whole_bytes, draft: Some(draft), _lock: lock };
        written.map(|()| journal).map_err(failed)
    }

    /// Makes a draft the study's journal. The one before it is kept as [`PREVIOUS_FILE_NAME`], unless no trial in it
    /// went well and it would take the place of one that may hold more.
    pub fn take_place(&mut self) -> Result<(), JournalError> {
        let Some(draft) = self.draft.clone() else { return Ok(()) };
        replace::replace(&self.path, &draft)
            .map_err(|source| JournalError::Write { path: self.path.clone(), source })?;
        self.draft = None;
        Ok(())
    }

    /// Opens the journal of the locked study, reads it, and cuts off a torn last line.
    pub fn resume(lock: StudyLock) -> Result<(Self, Contents), JournalError> {
        let path = lock.study().join(FILE_NAME);
        let contents = read(&path)?;
        let failed = |source| JournalError::Write { path: path.clone(), source };
        let file = OpenOptions::new().append(true).open(&path).map_err(failed)?;
        file.set_len(contents.whole_bytes).and_then(|()| file.sync_data()).map_err(failed)?;
        Ok((Self { file, path, whole_bytes: contents.whole_bytes, draft: None, _lock: lock }, contents))
    }

    /// Adds an entry. After an error the entries before it are still whole, and appending may be tried again.
    pub fn append(&mut self, entry: &Entry) -> Result<(), JournalError> {
        let line = line_of(entry).map_err(|source| JournalError::Encode { path: self.path.clone(), source })?;
        if line.len() > MAX_ENTRY_BYTES {
            return Err(JournalError::EntryTooLong { path: self.path.clone(), bytes: line.len() });
        }
        let written =
            self.file.write_all(&line).and_then(|()| if entry.is_durable() { self.file.sync_data() } else { Ok(()) });
        match written {
            Ok(()) => {
                self.whole_bytes += line.len() as u64;
                Ok(())
            }
            Err(source) => {
                // Take a half-written line back; should that fail too, it is a torn last line, which resuming cuts off.
                let _ = self.file.set_len(self.whole_bytes);
                let _ = self.file.seek(SeekFrom::End(0));
                Err(JournalError::Write { path: self.path.clone(), source })
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Some(draft) = &self.draft {
            // One that stays is in nobody's way.
            let _ = fs::remove_file(draft);
        }
    }
}

fn line_of(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}
