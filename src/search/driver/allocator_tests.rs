//! Whole studies with settings of the allocator to choose from, over a machine whose memory is simulated.

use std::path::Path;
use std::sync::Mutex;

use super::*;
use crate::search::machine::Machine;
use crate::search::scripted::varying_plan;
use crate::trial::PlayKind;
use crate::trial::journal::{self, Contents, Header, StudyLock};
use crate::trial::spec::recording_path;

fn varying() -> Plan {
    varying_plan(60)
}

/// Its weights do not fill the segments that the native allocator takes for them.
fn machine(folder: &Path) -> Machine {
    let study = Some(folder.join("study"));
    Machine { study, ..Machine::wasteful() }
}

/// Hears everything, and asks for an end where it is told to.
struct Listener<'a> {
    heard: &'a Mutex<Vec<Event>>,
    leaves_at: fn(&Event) -> bool,
    interrupt: Interrupt,
}

impl Reporter for Listener<'_> {
    fn report(&mut self, event: &Event) {
        if (self.leaves_at)(event) {
            self.interrupt.request();
        }
        self.heard.lock().unwrap().push(event.clone());
    }
}

/// What became of a study.
struct Seen {
    result: StudyResult,
    journal: Contents,
    heard: Vec<Event>,
}

impl Seen {
    fn reason(&self) -> String {
        self.result.recommendation.recommended.as_ref().unwrap().allocator.reason.clone().unwrap()
    }

    fn conf(&self) -> Option<String> {
        self.result.recommendation.recommended.as_ref().unwrap().allocator.conf.clone()
    }

    fn searches(&self) -> usize {
        self.journal.tuned().count()
    }
}

/// A study that goes on from what a journal holds.
fn study(plan: &Plan, machine: &mut Machine, known: Option<&Contents>, leaves_at: fn(&Event) -> bool) -> Seen {
    let path = machine.study.clone().unwrap();
    let header = Header::new(&plan.sha256(), serde_json::Value::Null);
    let mut journal = Journal::create(StudyLock::acquire(&path).unwrap(), &header).unwrap();
    let (heard, interrupt) = (Mutex::default(), Interrupt::default());
    let mut listener = Listener { heard: &heard, leaves_at, interrupt: interrupt.clone() };
    let result = Study {
        plan,
        slots: Slots::one(&mut *machine),
        journal: &mut journal,
        reporter: &mut listener,
        output: path.join("recommendation.yaml"),
        interrupt,
        finished: known.map(|known| known.finished().map(|(record, _)| record.clone()).collect()).unwrap_or_default(),
        foretold: known.map(|known| known.foretold().map(owned).collect()).unwrap_or_default(),
        remedied: known.map(|known| known.remedied().map(owned).collect()).unwrap_or_default(),
        tuned: known.map(|known| known.tuned().map(owned).collect()).unwrap_or_default(),
        unfinished: known.map(|known| known.unfinished_plays().into_iter().cloned().collect()).unwrap_or_default(),
        started: header.started,
    };
    let result = result.run().unwrap();
    drop(journal);
    let journal = journal::read(&path.join(journal::FILE_NAME)).unwrap();
    Seen { result, journal, heard: heard.into_inner().unwrap() }
}

fn owned<T: Clone>((point, found): (&Point, &T)) -> (Point, T) {
    (point.clone(), found.clone())
}

fn never(_: &Event) -> bool {
    false
}

#[test]
fn a_study_searches_for_settings_over_the_run_and_says_what_both_soaks_came_to() {
    let folder = tempfile::tempdir().unwrap();
    let seen = study(&varying(), &mut machine(folder.path()), None, never);
    assert_eq!((seen.result.end.clone(), seen.searches()), (End::Safe, 1));
    assert_eq!(seen.conf().as_deref(), Some("expandable_segments:True"));
    let reason = seen.reason();
    assert!(reason.starts_with("`expandable_segments:True` holds "), "{reason}");
    let soaked = |is_own: bool| {
        let trials = seen.result.history.trials().iter().map(|trial| &trial.record);
        let mut soaks = trials.filter(|record| record.spec.is_soak());
        let soak = soaks.find(|record| record.spec.point.alloc_conf.is_none() == is_own).unwrap();
        crate::units::Bytes(soak.measurement.as_ref().unwrap().peak_reserved_bytes)
    };
    let figures = format!("; soaked: {} reserved, {} under the program's own settings", soaked(false), soaked(true));
    assert!(reason.ends_with(&figures), "{reason} {figures}");
    // With progress, as JSON lines have it too.
    let progress = seen.heard.iter().filter_map(|event| match event {
        Event::AllocatorTuning { step, total, .. } => Some((*step, *total)),
        _ => None,
    });
    let progress: Vec<_> = progress.collect();
    assert_eq!(progress.first(), Some(&(0, 0)));
    assert!(progress.iter().all(|(step, total)| step <= total), "{progress:?}");
    let told = seen.heard.iter().filter(|event| matches!(event, Event::AllocatorTuned { .. })).count();
    assert_eq!(told, 1);
    let is_skipped = |rejected: &crate::report::recommendation::Rejected| rejected.outcome == "skipped";
    assert!(seen.result.recommendation.rejected.iter().all(is_skipped));
    let written = Recommendation::read(&folder.path().join("study/recommendation.yaml")).unwrap();
    assert_eq!(written, seen.result.recommendation);
}

#[test]
fn a_resumed_study_searches_no_more_and_comes_to_the_same_wherever_it_was_cut() {
    let folder = tempfile::tempdir().unwrap();
    let whole = study(&varying(), &mut machine(folder.path()), None, never);
    let cuts = whole.journal.entries.iter().enumerate().filter(|(_, entry)| {
        matches!(entry, Entry::AllocatorTuned { .. } | Entry::WholeRun { .. })
            || matches!(entry, Entry::TrialEnded { record, .. } if !record.spec.is_shape_probe())
    });
    for (cut, _) in cuts {
        let again = tempfile::tempdir().unwrap();
        std::fs::create_dir(again.path().join("study")).unwrap();
        let known = Contents { entries: whole.journal.entries[..=cut].to_vec(), ..whole.journal.clone() };
        for (record, _) in known.finished().filter(|(record, _)| record.spec.is_probe()) {
            let path = |folder: &Path| recording_path(&folder.join("study"), &record.spec);
            std::fs::copy(path(folder.path()), path(again.path())).unwrap();
        }
        let mut machine = machine(again.path());
        let resumed = study(&varying(), &mut machine, Some(&known), never);
        assert_eq!(resumed.searches() + known.tuned().count(), 1, "cut after {cut}");
        assert_eq!(machine.ran.len() + known.finished().count(), whole.journal.finished().count());
        assert_eq!(resumed.result.history.trials(), whole.result.history.trials());
        let (resumed, whole) = (&resumed.result.recommendation, &whole.result.recommendation);
        assert_eq!(resumed.recommended, whole.recommended);
    }
}

#[test]
fn listed_settings_are_journaled_reasoned_and_resumed_like_any() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = varying();
    plan.search.alloc_conf = ["max_split_size_mb:64", "expandable_segments:True"].map(str::to_owned).to_vec();
    let seen = study(&plan, &mut machine(folder.path()), None, never);
    assert_eq!((seen.searches(), seen.conf().as_deref()), (1, Some("expandable_segments:True")));
    let reason = seen.reason();
    assert!(reason.starts_with("`expandable_segments:True` holds ") && reason.contains("; soaked: "), "{reason}");
    let tried = seen.journal.entries.iter().find_map(|entry| match entry {
        Entry::AllocatorTuned { tried, .. } => Some(tried),
        _ => None,
    });
    let stages: Vec<_> = tried.unwrap().iter().map(|one| (one.name.as_str(), one.stage.as_str())).collect();
    let listed = [("max_split_size_mb:64", "as listed"), ("expandable_segments:True", "as listed")];
    assert_eq!((stages[0], &stages[1..]), (("defaults", "as it is"), listed.as_slice()));
    let mut machine = machine(folder.path());
    let resumed = study(&plan, &mut machine, Some(&seen.journal), never);
    assert_eq!((resumed.searches(), machine.ran.len(), resumed.reason()), (0, 0, reason));
}

#[test]
fn a_play_that_is_left_is_journaled_and_a_resumed_study_says_that_it_begins_it_again() {
    for play in [PlayKind::WholeRun, PlayKind::Allocator] {
        let leaves_at: fn(&Event) -> bool = match play {
            PlayKind::WholeRun => |event| matches!(event, Event::RunPlaying { .. }),
            PlayKind::Allocator => |event| matches!(event, Event::AllocatorTuning { .. }),
        };
        let folder = tempfile::tempdir().unwrap();
        let left = study(&varying(), &mut machine(folder.path()), None, leaves_at);
        assert_eq!(left.result.end, End::Interrupted);
        let unfinished = left.journal.unfinished_plays();
        let [unfinished] = unfinished.as_slice() else { panic!("{unfinished:?}") };
        assert_eq!((unfinished.play, unfinished.point.batch_size), (play, 16));
        let resumed = study(&varying(), &mut machine(folder.path()), Some(&left.journal), never);
        let begins_again = |event: &&Event| match event {
            Event::Warning { text } => text.starts_with(&format!("this study ended before in {play} of batch 16")),
            _ => false,
        };
        assert_eq!(resumed.heard.iter().filter(begins_again).count(), 1, "{play}");
        assert_eq!(resumed.result.end, End::Safe);
    }
}

#[test]
fn a_search_for_settings_ends_when_the_user_wants_to_leave_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let leaves_at: fn(&Event) -> bool = |event| matches!(event, Event::AllocatorTuning { .. });
    let seen = study(&varying(), &mut machine(folder.path()), None, leaves_at);
    assert_eq!((seen.result.end.clone(), seen.searches()), (End::Interrupted, 0));
    assert!(!seen.heard.iter().any(|event| matches!(event, Event::AllocatorTuned { .. })));
}

#[test]
fn a_budget_that_ends_before_the_second_soak_leaves_the_answer_safe_and_says_that_it_was_not_compared() {
    let folder = tempfile::tempdir().unwrap();
    let whole = study(&varying(), &mut machine(folder.path()), None, never);
    let trials = whole.result.history.trials().len();
    let again = tempfile::tempdir().unwrap();
    let mut plan = varying();
    plan.budget.trials = u32::try_from(trials - 1).unwrap();
    let seen = study(&plan, &mut machine(again.path()), None, never);
    assert_eq!(seen.result.end, End::Safe);
    assert_eq!((seen.result.recommendation.status, seen.conf()), (Status::Safe, whole.conf()));
    assert!(seen.reason().ends_with("(hint: `--resume`)"), "{}", seen.reason());
    assert!(seen.reason().contains("not compared with a soak under the program's own settings"), "{}", seen.reason());
    // With a larger one it is.
    let mut machine = machine(again.path());
    let resumed = study(&varying(), &mut machine, Some(&seen.journal), never);
    assert_eq!((resumed.reason(), machine.ran.len()), (whole.reason(), 1));
}

#[test]
fn a_soak_that_breaks_under_the_program_s_own_settings_is_told_and_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let mut machine = Machine { soak_breaks: |point| point.alloc_conf.is_none(), ..machine(folder.path()) };
    let seen = study(&varying(), &mut machine, None, never);
    assert_eq!(seen.result.end, End::Safe);
    assert_eq!(seen.conf().as_deref(), Some("expandable_segments:True"));
    let reason = seen.reason();
    assert!(reason.contains("reserved; under the program's own settings the soak broke: out of memory"), "{reason}");
    let rejected = &seen.result.recommendation.rejected;
    let broken = rejected.iter().find(|rejected| rejected.outcome == "out_of_memory").unwrap();
    let words = "under the program's own settings of the allocator: out of memory";
    assert!(broken.reason.starts_with(words), "{}", broken.reason);
}
