use std::{fs, io};

use serde_json::json;

use super::*;
use crate::memory::blocks::Run;
use crate::memory::forecast::Method;
use crate::memory::forecast::batching::BatchedRun;
use crate::memory::forecast::curve::CurvePoint;
use crate::memory::forecast::long_run::{LongRunFigures, LongRunPoint};
use crate::memory::{MemorySample, Rates};
use crate::trial::outcome::{Measurement, Outcome};
use crate::trial::outlook::RunBreach;
use crate::trial::remedies::{Changes, RunRemedy};
use crate::trial::spec::{Purpose, TrialId};
use crate::trial::tuned_run::{TriedSetting, TunedRun};

fn spec(id: u32) -> TrialSpec {
    TrialSpec {
        id: TrialId(id),
        purpose: Purpose::Ladder,
        point: Point { accumulation_steps: 2, loader_workers: 1, prefetch_depth: 2, ..Point::plain(8 * id as usize) },
        warmup_steps: 2,
        steps: 10,
        sample_every: 2,
        sample_size: None,
    }
}

fn ended(id: u32) -> Entry {
    let rates = Rates { peak: Some(0.125), external: None, reserved: Some(0.5) };
    let record = TrialRecord {
        spec: spec(id),
        outcome: Outcome::Completed,
        rank: None,
        measurement: Some(Measurement { steps: 10, samples_per_second: 123.456, ..Measurement::default() }),
        samples: vec![MemorySample { step: 2, rates, ..MemorySample::default() }; 3],
        warnings: vec!["a \"quoted\" warning\nof two lines".to_owned()],
        outlook: None,
        seconds: 1.25,
        worker: None,
        ranks: Vec::new(),
    };
    Entry::TrialEnded { record, verdict: json!({"checks": []}) }
}

fn header() -> Header {
    Header::new("abc", json!({"name": "toy"}))
}

fn entries() -> Vec<Entry> {
    let facts = DeviceFacts {
        device: "cpu".to_owned(),
        name: "a processor".to_owned(),
        uuid: None,
        driver: None,
        total_bytes: 8,
        free_bytes: 7,
        external_bytes: 0,
        limit_bytes: 4,
        allocator: "native".to_owned(),
        alloc_conf: None,
        cpus: 2,
        hostname: "here".to_owned(),
    };
    let point = CurvePoint { batch_size: 2, peak_allocated_bytes: 5, peak_reserved_bytes: 6, fits: true };
    let curve = Curve {
        method: Method::Exact,
        reason: "they align".to_owned(),
        limit_bytes: 4,
        accumulation_steps: 1,
        points: vec![point],
    };
    let run = Run { bytes: 2, live_bytes: 1, kept_bytes: 1, blocks: 2, opens_segment: true };
    let map = BlockMap { event: 9, reserved_bytes: 2, runs: vec![run], ..BlockMap::default() };
    vec![
        Entry::Device { facts },
        Entry::TrialStarted { spec: spec(1) },
        ended(1),
        Entry::Skipped { point: spec(2).point, reason: "the forecast is 9 GiB".to_owned() },
        ended(3),
        Entry::Recommended { recommendation: json!({"status": "unverified"}) },
        Entry::Forecast { curve },
        Entry::BlockMap { point: spec(1).point, map },
        Entry::WholeRun { point: spec(1).point, outlook: outlook(), runs: vec![played()] },
        Entry::Remedies { point: spec(1).point, remedies: remedies() },
        Entry::AllocatorTuned { point: spec(1).point, found: tuned(), tried: vec![tried()] },
        Entry::PlayUnfinished(left(2, PlayKind::WholeRun)),
        Entry::Concluded { status: "safe".to_owned() },
    ]
}

fn left(number: u32, play: PlayKind) -> UnfinishedPlay {
    UnfinishedPlay { point: spec(number).point, play, step: 5, total: 10 }
}

#[test]
fn a_play_that_was_left_is_so_until_it_has_a_result() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::create(StudyLock::acquire(folder.path()).unwrap(), &header()).unwrap();
    let (whole_run, search) = (left(1, PlayKind::WholeRun), left(1, PlayKind::Allocator));
    let further = UnfinishedPlay { step: 9, ..search.clone() };
    for unfinished in [&whole_run, &search, &further] {
        journal.append(&Entry::PlayUnfinished(unfinished.clone())).unwrap();
    }
    drop(journal);
    let read = || super::read(&folder.path().join(FILE_NAME)).unwrap();
    assert_eq!(read().unfinished_plays(), [&whole_run, &further]);
    let (mut journal, _) = Journal::resume(StudyLock::acquire(folder.path()).unwrap()).unwrap();
    journal.append(&Entry::WholeRun { point: whole_run.point, outlook: outlook(), runs: Vec::new() }).unwrap();
    assert_eq!(read().unfinished_plays(), [&further]);
}

fn tuned() -> TunedRun {
    let (conf, reason) = (Some("expandable_segments:True".to_owned()), "it holds less".to_owned());
    TunedRun { method: Method::Affine, steps: 7, horizon_steps: 10, conf, next: Vec::new(), reason }
}

fn tried() -> TriedSetting {
    TriedSetting {
        name: "defaults".to_owned(),
        stage: "as it is".to_owned(),
        peak_reserved_bytes: 6,
        is_cut_short: true,
        device_calls: 3,
        result: "out of memory at step 7".to_owned(),
        is_best: false,
    }
}

fn outlook() -> Outlook {
    let breach = RunBreach { step: 7, reason: "out of memory at step 7".to_owned() };
    Outlook { method: Method::Exact, breach: Some(breach), ..Outlook::unknown("they align".to_owned()) }
}

fn played() -> PlayedRun {
    let point = LongRunPoint { step: 3, peak_reserved_bytes: 6, against_need: Some(0.5), ..LongRunPoint::default() };
    let figures = LongRunFigures { steps: 7, points: vec![point], ..LongRunFigures::default() };
    PlayedRun { allocator: "native".to_owned(), rank: None, figures }
}

fn remedies() -> RunRemedies {
    let as_it_is = BatchedRun { peak_reserved_bytes: 9, padding_share: Some(0.25), ..BatchedRun::default() };
    let run = BatchedRun { peak_reserved_bytes: 6, ..as_it_is };
    let changes = Changes { pad_to_multiple_of: Some(64), ..Changes::default() };
    let way = RunRemedy { changes, run, reason: "holds 3 B less".to_owned(), offered: true };
    RunRemedies { as_it_is, ways: vec![way], unplayed: 1 }
}

/// An empty directory, in memory where that can be had: every durable entry waits for the disk otherwise.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A study with a journal of all kinds of entries.
fn study() -> tempfile::TempDir {
    let study = directory();
    let mut journal = Journal::create(StudyLock::acquire(study.path()).unwrap(), &header()).unwrap();
    for entry in entries() {
        journal.append(&entry).unwrap();
    }
    study
}

fn resume(study: &Path) -> Result<(Journal, Contents), JournalError> {
    Journal::resume(StudyLock::acquire(study).unwrap())
}

#[test]
fn every_kind_of_entry_survives_and_is_known_by_name() {
    let study = study();
    let (_, contents) = resume(study.path()).unwrap();
    assert_eq!(contents.entries, entries());
    assert_eq!((contents.header.config_sha256.as_str(), contents.unknown_entries), ("abc", 0));
    assert_eq!(contents.finished().count(), 2);
    let names: Vec<String> = entries()
        .iter()
        .map(|entry| serde_json::to_value(entry).unwrap()["entry"].as_str().unwrap().to_owned())
        .collect();
    for kind in Entry::KINDS {
        assert!(names.iter().any(|name| name == kind), "{kind} has no entry in this test");
    }
}

#[test]
fn a_tail_torn_at_any_byte_leaves_the_whole_lines_before_it() {
    let study = study();
    let path = study.path().join(FILE_NAME);
    let bytes = fs::read(&path).unwrap();
    let header_bytes = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for length in 0..bytes.len() {
        fs::write(&path, &bytes[..length]).unwrap();
        if length < header_bytes {
            assert!(matches!(read(&path), Err(JournalError::NoHeader { .. })), "cut at {length}");
            continue;
        }
        let whole = bytes[header_bytes..length].split(|byte| *byte == b'\n').count() - 1;
        assert_eq!(read(&path).unwrap().entries, entries()[..whole], "cut at {length}");
        // Every append waits for the disk, so that is tried at a few of the places.
        if length % 251 != 0 {
            continue;
        }
        let (mut journal, contents) = resume(study.path()).unwrap();
        assert_eq!(contents.entries, entries()[..whole], "cut at {length}");
        // What is appended next starts on a line of its own.
        journal.append(&ended(9)).unwrap();
        drop(journal);
        let after = read(&path).unwrap();
        assert_eq!((after.entries.len(), after.entries.last()), (whole + 1, Some(&ended(9))), "cut at {length}");
    }
}

#[test]
fn a_bad_line_before_the_last_is_damage_with_its_number() {
    let study = study();
    let path = study.path().join(FILE_NAME);
    let good = fs::read_to_string(&path).unwrap();
    for bad in ["", "nonsense", "{\"entry\":\"trial_ended\"}", "[]", "\u{0}\u{0}", "{\"no\":\"kind\"}"] {
        let mut lines: Vec<&str> = good.lines().collect();
        lines[2] = bad;
        fs::write(&path, lines.join("\n") + "\n").unwrap();
        let error = resume(study.path()).unwrap_err();
        assert!(matches!(error, JournalError::Damaged { line: 3, .. }), "{bad:?} gives {error}");
    }
}

#[test]
fn entries_of_a_newer_version_are_passed_over() {
    let study = study();
    let path = study.path().join(FILE_NAME);
    let mut text = fs::read_to_string(&path).unwrap();
    text.push_str("{\"entry\":\"telemetry\",\"anything\":[1,2]}\n");
    fs::write(&path, text).unwrap();
    let (_, contents) = resume(study.path()).unwrap();
    assert_eq!((contents.entries, contents.unknown_entries), (entries(), 1));
}

#[test]
fn another_schema_is_refused_by_name_and_not_called_damage() {
    let study = directory();
    fs::write(study.path().join(FILE_NAME), "{\"schema\":\"batchtune/journal/v9\"}\n").unwrap();
    let error = resume(study.path()).unwrap_err();
    assert!(matches!(&error, JournalError::Schema { found, .. } if found == "batchtune/journal/v9"), "{error}");
    fs::write(study.path().join(FILE_NAME), "{}\n").unwrap();
    assert!(matches!(resume(study.path()).unwrap_err(), JournalError::Damaged { line: 1, .. }));
}

#[test]
fn a_missing_journal_and_one_that_is_a_directory_are_read_errors() {
    let study = directory();
    assert!(!Journal::exists(study.path()));
    assert!(matches!(resume(study.path()).unwrap_err(), JournalError::Read { .. }));
    fs::create_dir(study.path().join(FILE_NAME)).unwrap();
    assert!(matches!(resume(study.path()).unwrap_err(), JournalError::Read { .. }));
}

#[test]
fn a_full_disk_is_a_write_error_and_the_journal_goes_on_afterwards() {
    let study = study();
    let (mut journal, contents) = resume(study.path()).unwrap();
    for round in 1..=20 {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let disk = std::mem::replace(&mut journal.file, full);
        let error = journal.append(&ended(4)).unwrap_err();
        let JournalError::Write { source, .. } = &error else { panic!("{error}") };
        assert_eq!(source.kind(), io::ErrorKind::StorageFull);
        assert_eq!(read(journal.path()).unwrap().entries.len(), contents.entries.len() + round - 1);
        journal.file = disk;
        journal.append(&ended(4)).unwrap();
    }
    let after = read(journal.path()).unwrap();
    assert_eq!(after.entries[..contents.entries.len()], contents.entries, "nothing that was finished is lost");
}

#[test]
fn a_second_run_on_a_study_is_refused_with_the_first_one_s_process() {
    let study = directory();
    let first = StudyLock::acquire(study.path()).unwrap();
    let error = StudyLock::acquire(study.path()).unwrap_err();
    assert!(matches!(error, JournalError::Locked { pid: Some(pid), .. } if pid == std::process::id()), "{error}");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())));
    drop(first);
    StudyLock::acquire(study.path()).unwrap();
}

#[test]
fn a_draft_changes_nothing_until_it_takes_its_place() {
    let study = study();
    let before = fs::read(study.path().join(FILE_NAME)).unwrap();
    // One of a run that was killed is no hindrance.
    fs::write(study.path().join(DRAFT_FILE_NAME), "half").unwrap();
    let draft = || Journal::draft(StudyLock::acquire(study.path()).unwrap(), &header()).unwrap();
    drop(draft());
    assert!(!study.path().join(DRAFT_FILE_NAME).exists());
    assert_eq!(fs::read(study.path().join(FILE_NAME)).unwrap(), before);
    let mut journal = draft();
    journal.take_place().unwrap();
    journal.append(&ended(7)).unwrap();
    drop(journal);
    assert_eq!(resume(study.path()).unwrap().1.entries, [ended(7)]);
    assert_eq!(fs::read(study.path().join(PREVIOUS_FILE_NAME)).unwrap(), before);
}

#[test]
fn a_fresh_start_keeps_the_journal_before_it() {
    let study = study();
    let before = fs::read(study.path().join(FILE_NAME)).unwrap();
    drop(Journal::create(StudyLock::acquire(study.path()).unwrap(), &header()).unwrap());
    assert_eq!(fs::read(study.path().join(PREVIOUS_FILE_NAME)).unwrap(), before);
    assert!(resume(study.path()).unwrap().1.entries.is_empty());
    let left: Vec<_> = fs::read_dir(study.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "journal, previous journal and lock: {left:?}");
}
