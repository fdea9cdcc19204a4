//! Studies on several scripted devices, whose trials end in any order.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;

use super::super::scripted::{Script, facts, plan, record};
use super::*;
use crate::search::StrategyKind;
use crate::search::machine::Machine;
use crate::trial::journal::{self, Header, StudyLock};
use crate::trial::launcher::Place;
use crate::trial::{Executor, TrialRecord};
use crate::units::MIB;

/// What happens to a trial on a device.
type Fate<'a> = Box<dyn Fn(&TrialSpec) -> Result<TrialRecord, ExecutorError> + Send + 'a>;

/// A device of a study.
struct Scripted<'a> {
    facts: Result<DeviceFacts, ExecutorError>,
    fate: Fate<'a>,
    /// What ran, on which device; shared by all of them.
    ran: &'a Mutex<Vec<(usize, TrialSpec)>>,
    /// Trials that run now.
    busy: &'a AtomicUsize,
    /// Whether a trial that needs the host to itself had company.
    disturbed: &'a AtomicUsize,
    index: usize,
    seed: u64,
}

impl Executor for Scripted<'_> {
    fn start(&mut self) -> Result<DeviceFacts, ExecutorError> {
        std::mem::replace(&mut self.facts, Ok(facts()))
    }

    fn run(&mut self, spec: &TrialSpec, observe: &mut dyn FnMut(Observation)) -> Result<TrialRecord, ExecutorError> {
        self.ran.lock().unwrap().push((self.index, spec.clone()));
        self.busy.fetch_add(1, Ordering::SeqCst);
        observe(Observation::Warning("of every trial".to_owned()));
        // Which of them ends first is nobody's choice; what comes of it must not depend on it.
        let pause = (u64::from(spec.id.0) + 1).wrapping_mul(self.seed | 1).wrapping_mul(0x9e37_79b9) >> 16;
        std::thread::sleep(Duration::from_micros(pause % 1500));
        if !spec.purpose.shares_host() && self.busy.load(Ordering::SeqCst) > 1 {
            self.disturbed.fetch_add(1, Ordering::SeqCst);
        }
        let ended = (self.fate)(spec);
        self.busy.fetch_sub(1, Ordering::SeqCst);
        ended
    }

    /// Each on a machine of its own.
    fn places(&self) -> Vec<Place> {
        vec![Place { machine: Some(self.index.to_string()), ..Place::default() }]
    }
}

/// Devices by what each is and does.
type Devices<'a> = Vec<(Result<DeviceFacts, ExecutorError>, Fate<'a>)>;

/// A study and what was seen of it.
struct Seen {
    result: Result<StudyResult, DriverError>,
    ran: Vec<(usize, TrialSpec)>,
    disturbed: usize,
    warnings: Vec<String>,
    journal: Vec<TrialRecord>,
}

impl Seen {
    fn history(&self) -> &History {
        &self.result.as_ref().unwrap().history
    }

    fn recommendation(&self) -> &Recommendation {
        &self.result.as_ref().unwrap().recommendation
    }
}

#[derive(Default)]
struct Warnings(Vec<String>);

impl Reporter for Warnings {
    fn report(&mut self, event: &Event) {
        if let Event::Warning { text } = event {
            self.0.push(text.clone());
        }
    }
}

fn study(folder: &Path, plan: &Plan, devices: Devices<'_>, finished: Vec<TrialRecord>) -> Seen {
    let (ran, busy, disturbed) = (Mutex::default(), AtomicUsize::new(0), AtomicUsize::new(0));
    let seed = devices.len() as u64 + 7;
    let slot = |(index, (facts, fate))| Slot {
        name: format!("device {index}"),
        executor: Box::new(Scripted {
            facts,
            fate,
            ran: &ran,
            busy: &busy,
            disturbed: &disturbed,
            index,
            seed: seed + index as u64,
        }),
    };
    let slots = devices.into_iter().enumerate().map(slot).collect();
    let path = folder.join("study");
    let header = Header::new(&plan.sha256(), serde_json::Value::Null);
    let mut journal = Journal::create(StudyLock::acquire(&path).unwrap(), &header).unwrap();
    let mut warnings = Warnings::default();
    let result = Study {
        plan,
        slots: Slots { slots, halt: Interrupt::default() },
        journal: &mut journal,
        reporter: &mut warnings,
        output: folder.join("recommendation.yaml"),
        interrupt: Interrupt::default(),
        finished,
        foretold: Vec::new(),
        remedied: Vec::new(),
        tuned: Vec::new(),
        unfinished: Vec::new(),
        started: header.started.clone(),
    }
    .run();
    let contents = journal::read(&path.join(journal::FILE_NAME)).unwrap();
    let journal = contents.finished().map(|(record, _)| record.clone()).collect();
    let disturbed = disturbed.load(Ordering::SeqCst);
    Seen { result, ran: ran.into_inner().unwrap(), disturbed, warnings: warnings.0, journal }
}

/// So many devices alike, with trials that end as a script says.
fn alike<'a>(count: usize, script: impl Fn(&TrialSpec) -> Script + Send + Copy + 'a) -> Devices<'a> {
    (0..count).map(|_| (Ok(facts()), scripted(script))).collect()
}

fn scripted<'a>(script: impl Fn(&TrialSpec) -> Script + Send + 'a) -> Fate<'a> {
    Box::new(move |spec| Ok(record(spec, &script(spec))))
}

fn healthy() -> Fate<'static> {
    scripted(|spec| Script::healthy(&spec.point))
}

fn broken() -> ExecutorError {
    ExecutorError::DeviceUnavailable("it fell off the bus".to_owned())
}

fn grid(target: usize) -> Plan {
    let mut plan = plan(target);
    plan.search.strategy = StrategyKind::Grid;
    plan
}

/// Trials as far as they do not depend on where they ran.
fn told(history: &History) -> Vec<(u32, Purpose, Point, String)> {
    let told = |trial: &JudgedTrial| {
        let spec = &trial.record.spec;
        (spec.id.0, spec.purpose, spec.point.clone(), trial.record.outcome.name().to_owned())
    };
    history.trials().iter().map(told).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_grid_on_many_devices_has_the_history_of_one(
        target in 4usize..40, devices in 2usize..5, oom in 1usize..40, crash in 2usize..40,
    ) {
        let plan = grid(target);
        let script = move |spec: &TrialSpec| match spec.point.batch_size {
            size if size > oom => Script::out_of_memory(),
            size if size == crash => Script::Ends(Outcome::Crashed { signal: Some(9), status: None, log: String::new() }),
            _ => Script::healthy(&spec.point),
        };
        let (one, many) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let one = study(one.path(), &plan, alike(1, script), Vec::new());
        let many = study(many.path(), &plan, alike(devices, script), Vec::new());
        prop_assert_eq!(told(one.history()), told(many.history()));
        prop_assert_eq!(&one.recommendation().recommended, &many.recommendation().recommended);
        prop_assert_eq!(&one.recommendation().rejected, &many.recommendation().rejected);
        prop_assert_eq!(one.ran.len(), many.ran.len(), "no trial is run in vain");
        prop_assert_eq!(many.disturbed, 0);
    }

    #[test]
    fn a_staged_search_on_many_devices_finds_what_one_finds(
        target in 4usize..100, devices in 2usize..5, limit in 100u64..1200, data_wait in 0.0..0.6_f64,
    ) {
        let mut plan = plan(target);
        plan.search.loader_workers = vec![0, 1, 2];
        let found = |count: usize| {
            let folder = tempfile::tempdir().unwrap();
            let machine = |_| {
                let study = Some(folder.path().join("study"));
                let machine = Machine { limit_bytes: limit * MIB, data_wait, study, ..Machine::new() };
                let facts = DeviceFacts { limit_bytes: limit * MIB, cpus: 8, ..facts() };
                let fate: Fate<'_> = Box::new(move |spec| machine.clone().run(spec, &mut |_| {}));
                (Ok(facts), fate)
            };
            study(folder.path(), &plan, (0..count).map(machine).collect(), Vec::new())
        };
        let (one, many) = (found(1), found(devices));
        let trials = |seen: &Seen| told(seen.history()).into_iter().map(|(_, purpose, point, _)| (purpose, point)).collect::<Vec<_>>();
        prop_assert_eq!(trials(&one), trials(&many));
        prop_assert_eq!(&one.recommendation().recommended, &many.recommendation().recommended);
        prop_assert_eq!(&one.recommendation().measured, &many.recommendation().measured);
        prop_assert_eq!(many.disturbed, 0);
        // Of full size never more than would have run anyway.
        let full = |seen: &Seen| seen.ran.iter().filter(|(_, spec)| spec.is_judged()).count();
        prop_assert_eq!(full(&one), full(&many));
    }
}

#[test]
fn trials_of_a_grid_run_on_every_device() {
    let folder = tempfile::tempdir().unwrap();
    let seen = study(folder.path(), &grid(64), alike(2, |spec| Script::healthy(&spec.point)), Vec::new());
    for device in 0..2 {
        assert!(seen.ran.iter().any(|(index, _)| *index == device), "{:?}", seen.ran);
    }
    assert_eq!(seen.warnings.iter().filter(|text| *text == "of every trial").count(), 1);
    assert_eq!(seen.recommendation().notes[0], "trials ran side by side on device 0, device 1");
    assert!(seen.journal.iter().all(|record| record.worker.as_ref().is_some_and(|worker| worker.node == "test")));
}

#[test]
fn a_trial_that_ran_ahead_and_was_not_needed_is_told_of_and_is_no_candidate() {
    let found = |count: usize| {
        let folder = tempfile::tempdir().unwrap();
        let device = |_| {
            let machine = Machine { study: Some(folder.path().join("study")), ..Machine::new() };
            let fate: Fate<'_> = Box::new(move |spec| {
                let mut record = machine.clone().run(spec, &mut |_| {})?;
                // Far faster than could be foreseen, so that the next pair, which may run beside it, cannot win any more.
                if let Some(measurement) = record.measurement.as_mut().filter(|_| spec.point.batch_size == 16) {
                    measurement.samples_per_second *= 10.0;
                }
                Ok(record)
            });
            (Ok(DeviceFacts { cpus: 8, ..facts() }), fate)
        };
        study(folder.path(), &plan(16), (0..count).map(device).collect(), Vec::new())
    };
    let (one, many) = (found(1), found(2));
    assert_eq!(told(many.history()).len(), told(one.history()).len());
    assert_eq!(one.recommendation().recommended, many.recommendation().recommended);
    assert_eq!(one.recommendation().alternatives, many.recommendation().alternatives);
    let notes = &many.recommendation().notes;
    assert_eq!(many.journal.len(), many.history().trials().len() + 1, "{:?}", many.ran);
    assert!(notes.iter().any(|note| note.contains("(batch 4 × 4, ") && note.contains("ran ahead")), "{notes:?}");
    assert!(!one.recommendation().notes.iter().any(|note| note.contains("ran ahead")));
}

#[test]
fn a_device_that_fails_twice_is_given_up_and_the_others_find_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    let devices: Devices<'_> = vec![(Ok(facts()), healthy()), (Ok(facts()), Box::new(|_: &TrialSpec| Err(broken())))];
    let seen = study(folder.path(), &grid(64), devices, Vec::new());
    assert_eq!(seen.result.as_ref().unwrap().end, End::Safe);
    assert_eq!(seen.ran.iter().filter(|(index, _)| *index == 1).count(), 2);
    assert_eq!(seen.warnings.iter().filter(|text| text.contains("device 1 has failed")).count(), 2);
    assert!(seen.warnings.iter().any(|text| text.contains("is not used any more: it fell off the bus")));
    let alone = tempfile::tempdir().unwrap();
    let alone = study(alone.path(), &grid(64), vec![(Ok(facts()), healthy())], Vec::new());
    let points = |seen: &Seen| told(seen.history()).into_iter().map(|(_, _, point, _)| point).collect::<Vec<_>>();
    assert_eq!(points(&seen), points(&alone), "no trial is lost and the order is the same");
}

#[test]
fn a_device_error_is_held_against_the_trial_only_where_two_devices_have_it() {
    let fails = |spec: &TrialSpec| match spec.point.batch_size {
        16 => Script::Ends(Outcome::DeviceError { message: "an illegal address".to_owned() }),
        _ => Script::healthy(&spec.point),
    };
    let folder = tempfile::tempdir().unwrap();
    let seen = study(folder.path(), &grid(64), alike(3, fails), Vec::new());
    assert_eq!(seen.ran.iter().filter(|(_, spec)| spec.point.batch_size == 16).count(), 2);
    assert!(seen.recommendation().rejected.iter().any(|rejected| rejected.outcome == "device_error"));
    assert_eq!(seen.result.as_ref().unwrap().end, End::Safe);
}

#[test]
fn a_device_that_cannot_be_opened_is_left_out_unless_it_is_the_only_one() {
    let folder = tempfile::tempdir().unwrap();
    let devices: Devices<'_> = vec![(Err(broken()), healthy()), (Ok(facts()), healthy())];
    let seen = study(folder.path(), &grid(8), devices, Vec::new());
    assert_eq!(seen.result.as_ref().unwrap().end, End::Safe);
    assert_eq!(seen.warnings[0], "device 0 is not used: it fell off the bus");
    let folder = tempfile::tempdir().unwrap();
    let seen = study(folder.path(), &grid(8), vec![(Err(broken()), healthy()), (Err(broken()), healthy())], Vec::new());
    assert!(matches!(seen.result, Err(DriverError::Executor(ExecutorError::DeviceUnavailable(_)))));
    let workload = || Err(ExecutorError::Workload("no such file".to_owned()));
    let folder = tempfile::tempdir().unwrap();
    let seen = study(folder.path(), &grid(8), vec![(Ok(facts()), healthy()), (workload(), healthy())], Vec::new());
    assert!(matches!(seen.result, Err(DriverError::Executor(ExecutorError::Workload(_)))));
}

#[test]
fn the_answer_holds_for_the_device_with_the_least_memory_which_soaks_it() {
    let weak = DeviceFacts { limit_bytes: 200 * MIB, ..facts() };
    let folder = tempfile::tempdir().unwrap();
    let seen = study(folder.path(), &grid(64), vec![(Ok(facts()), healthy()), (Ok(weak), healthy())], Vec::new());
    let answer = seen.recommendation();
    assert_eq!(answer.environment.limit_bytes, 200 * MIB);
    let note = "trials ran side by side on device 0, device 1; the answer holds for the weakest, device 1: 200.0 MiB for \
                tensors, under which all were judged, against up to 1000.0 MiB";
    assert_eq!(answer.notes[0], note);
    // 100 MiB and 4 a sample, on either: beside 16 samples too little would stay free on the weaker.
    assert_eq!(answer.recommended.as_ref().unwrap().batch_size, 8);
    assert!(seen.ran.iter().filter(|(_, spec)| spec.is_soak()).all(|(index, _)| *index == 1));
}

#[test]
fn devices_of_another_model_run_nothing() {
    let other = DeviceFacts { name: "another".to_owned(), limit_bytes: 2000 * MIB, ..facts() };
    let folder = tempfile::tempdir().unwrap();
    let seen = study(folder.path(), &grid(64), vec![(Ok(other), healthy()), (Ok(facts()), healthy())], Vec::new());
    assert!(seen.ran.iter().all(|(index, _)| *index == 1));
    assert!(
        seen.warnings[0].starts_with("device 0 (another) runs nothing: it is another model"),
        "{:?}",
        seen.warnings
    );
}

#[test]
fn what_ended_out_of_turn_before_an_interruption_is_not_run_again() {
    let plan = grid(64);
    let whole = tempfile::tempdir().unwrap();
    let whole = study(whole.path(), &plan, alike(1, |spec| Script::healthy(&spec.point)), Vec::new());
    // Of seven points the third was cut short; the two after it had ended.
    let kept: Vec<TrialRecord> =
        whole.journal.iter().filter(|record| [1, 2, 4, 5].contains(&record.spec.id.0)).cloned().collect();
    let folder = tempfile::tempdir().unwrap();
    let resumed = study(folder.path(), &plan, alike(2, |spec| Script::healthy(&spec.point)), kept);
    assert_eq!(resumed.ran.len(), whole.ran.len() - 4);
    let points = |seen: &Seen| told(seen.history()).into_iter().map(|(_, _, point, _)| point).collect::<Vec<_>>();
    assert_eq!(points(&resumed), points(&whole));
    assert_eq!(resumed.recommendation().recommended, whole.recommendation().recommended);
}

#[test]
fn a_trial_that_is_cut_short_on_one_device_ends_the_study_and_what_the_other_finishes_is_kept() {
    let script = |spec: &TrialSpec| match spec.id.0 {
        3 => Script::Ends(Outcome::Cancelled),
        _ => Script::healthy(&spec.point),
    };
    let folder = tempfile::tempdir().unwrap();
    let seen = study(folder.path(), &grid(64), alike(2, script), Vec::new());
    assert_eq!(seen.result.as_ref().unwrap().end, End::BudgetEnded);
    assert_eq!(seen.ran.len(), seen.journal.len() + 1, "all but the one that was cut short");
    assert!((1..=2).contains(&seen.history().trials().len()), "no trial is told before its turn");
}
