//! Whole studies over a scripted machine.

use std::path::Path;

use super::super::scripted::{Script, ScriptedExecutor, plan};
use super::*;
use crate::memory::forecast::Method;
use crate::progress::Quiet;
use crate::search::machine::Machine;
use crate::search::recommend::Status;
use crate::trial::journal::{self, Header, StudyLock};
use crate::trial::spec::trace_path;
use crate::trial::{Executor, Measurement};

fn study_in(
    folder: &Path,
    plan: &Plan,
    executor: &mut (dyn Executor + Send),
    finished: Vec<TrialRecord>,
) -> Result<StudyResult, DriverError> {
    let study = folder.join("study");
    let lock = StudyLock::acquire(&study).unwrap();
    let header = Header::new(&plan.sha256(), serde_json::Value::Null);
    let mut journal = Journal::draft(lock, &header).unwrap();
    Study {
        plan,
        slots: Slots::one(executor),
        journal: &mut journal,
        reporter: &mut Quiet,
        output: folder.join("recommendation.yaml"),
        interrupt: Interrupt::default(),
        finished,
        foretold: Vec::new(),
        remedied: Vec::new(),
        tuned: Vec::new(),
        unfinished: Vec::new(),
        started: header.started,
    }
    .run()
}

#[test]
fn a_finished_study_writes_what_it_found_and_journals_every_trial() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(16);
    let mut executor = ScriptedExecutor::new(|spec| match spec.point.batch_size {
        13.. => Script::out_of_memory(),
        _ => Script::healthy(&spec.point),
    });
    let result = study_in(folder.path(), &plan, &mut executor, Vec::new()).unwrap();
    assert_eq!(result.end, End::Safe);
    let read = Recommendation::read(&folder.path().join("recommendation.yaml")).unwrap();
    assert_eq!(read, result.recommendation);
    assert_eq!(read.status, Status::Safe);
    let recommended = read.recommended.unwrap();
    assert_eq!((recommended.batch_size, recommended.accumulation_steps, recommended.effective_batch_size), (8, 2, 16));
    assert_eq!(read.provenance.oom_trials, 1);
    assert!(
        read.rejected.iter().any(|rejected| rejected.outcome == "out_of_memory" && rejected.point.batch_size == 14)
    );
    assert!(read.rejected.iter().any(|rejected| rejected.outcome == "skipped" && rejected.point.batch_size == 16));
    let contents = journal::read(&folder.path().join("study").join(journal::FILE_NAME)).unwrap();
    assert_eq!(contents.finished().count(), executor.ran.len());
}

/// A device that cannot be opened.
struct Gone;

impl Executor for Gone {
    fn start(&mut self) -> Result<DeviceFacts, ExecutorError> {
        Err(ExecutorError::DeviceUnavailable("no such card".to_owned()))
    }

    fn run(&mut self, _: &TrialSpec, _: &mut dyn FnMut(Observation)) -> Result<TrialRecord, ExecutorError> {
        unreachable!("it was not opened")
    }
}

#[test]
fn studies_that_start_nothing_cost_no_answer_of_an_earlier_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut executor = ScriptedExecutor::new(|spec| Script::healthy(&spec.point));
    study_in(folder.path(), &plan(16), &mut executor, Vec::new()).unwrap();
    let journal = || std::fs::read(folder.path().join("study").join(journal::FILE_NAME)).unwrap();
    let before = journal();
    for _ in 0..2 {
        let error = study_in(folder.path(), &plan(8), &mut Gone, Vec::new()).unwrap_err();
        assert!(matches!(error, DriverError::Executor(ExecutorError::DeviceUnavailable(_))), "{error}");
        assert_eq!(journal(), before);
    }
    // One that starts is kept beside, however many come to nothing after it.
    let mut fails = ScriptedExecutor::new(|_| Script::Ends(Outcome::Failed { message: "typo".to_owned() }));
    for _ in 0..2 {
        let ended = study_in(folder.path(), &plan(8), &mut fails, Vec::new()).unwrap().end;
        assert!(matches!(ended, End::WorkloadFails(_)), "{ended:?}");
        let previous = folder.path().join("study").join(journal::PREVIOUS_FILE_NAME);
        assert_eq!(std::fs::read(previous).unwrap(), before);
    }
}

/// A program of which something is never seen.
struct HalfSeen<E>(E, fn(&mut Measurement));

impl<E: Executor> Executor for HalfSeen<E> {
    fn start(&mut self) -> Result<DeviceFacts, ExecutorError> {
        self.0.start()
    }

    fn run(&mut self, spec: &TrialSpec, observe: &mut dyn FnMut(Observation)) -> Result<TrialRecord, ExecutorError> {
        let mut record = self.0.run(spec, observe)?;
        if let Some(measurement) = &mut record.measurement {
            (self.1)(measurement);
        }
        Ok(record)
    }
}

#[test]
fn an_answer_that_was_not_seen_on_every_rank_or_at_its_batch_size_is_not_safe() {
    let folder = tempfile::tempdir().unwrap();
    let one_rank = |found: &mut Measurement| found.unseen_ranks = vec![1];
    for (hide, end) in [
        (one_rank as fn(&mut Measurement), End::RanksUnseen(1)),
        (|found: &mut Measurement| found.is_batch_size_unseen = true, End::BatchSizeUnseen),
    ] {
        let mut executor = HalfSeen(ScriptedExecutor::new(|spec| Script::healthy(&spec.point)), hide);
        let result = study_in(folder.path(), &plan(16), &mut executor, Vec::new()).unwrap();
        assert_eq!(result.end, end);
        let read = Recommendation::read(&folder.path().join("recommendation.yaml")).unwrap();
        assert_eq!(read.status, Status::Unverified);
        assert_eq!(read.recommended.map(|recommended| recommended.batch_size), Some(16));
    }
}

/// A machine whose probes leave their recordings in the study of [`study_in`].
fn machine_in(folder: &Path) -> Machine {
    Machine { study: Some(folder.join("study")), ..Machine::new() }
}

#[test]
fn a_resumed_study_runs_only_what_is_missing_and_ends_the_same() {
    let mut plan = plan(256);
    plan.search.loader_workers = vec![0, 1];
    let whole = tempfile::tempdir().unwrap();
    let mut uninterrupted = Machine { data_wait: 0.4, ..machine_in(whole.path()) };
    let expected = study_in(whole.path(), &plan, &mut uninterrupted, Vec::new()).unwrap();
    assert_eq!(expected.end, End::Safe);
    let records: Vec<TrialRecord> = expected.history.trials().iter().map(|trial| trial.record.clone()).collect();
    for known in 0..=records.len() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("study")).unwrap();
        for record in records.iter().take(known).filter(|record| record.spec.is_probe()) {
            let path = |study: &Path| trace_path(&study.join("study"), &record.spec.point);
            std::fs::copy(path(whole.path()), path(folder.path())).unwrap();
        }
        let mut machine = Machine { data_wait: 0.4, ..machine_in(folder.path()) };
        let result = study_in(folder.path(), &plan, &mut machine, records[..known].to_vec()).unwrap();
        assert_eq!(machine.ran.len(), records.len() - known);
        assert_eq!(result.recommendation.recommended, expected.recommendation.recommended);
        assert_eq!(result.recommendation.forecast, expected.recommendation.forecast);
        assert_eq!(result.history, expected.history);
    }
}

#[test]
fn a_loader_alone_makes_whole_rounds_is_not_judged_and_is_no_candidate() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(8);
    plan.search.loader_workers = vec![0, 1, 2];
    let mut executor = ScriptedExecutor::new(|spec| match (spec.purpose, spec.point.loader_workers) {
        (Purpose::Throughput, _) => Script::Ends(Outcome::Failed { message: "no such file".to_owned() }),
        (_, 0) => Script::Completes { samples_per_second: 100.0, peak_rate: 0.0, data_wait: 0.6 },
        _ => Script::Completes { samples_per_second: 200.0, peak_rate: 0.0, data_wait: 0.0 },
    });
    let result = study_in(folder.path(), &plan, &mut executor, Vec::new()).unwrap();
    let alone: Vec<_> = executor.ran.iter().filter(|spec| spec.is_throughput()).collect();
    let sizes: Vec<_> = alone.iter().map(|spec| (spec.point.loader_workers, spec.warmup_steps, spec.steps)).collect();
    assert_eq!(sizes, [(2, 2, 10)]);
    assert_eq!(loader_batches(&Point { loader_workers: 16, ..alone[0].point.clone() }, plan.trial), (16, 64));
    assert_eq!(loader_batches(&Point { loader_workers: 0, ..alone[0].point.clone() }, plan.trial), (2, 10));
    assert!(result.history.trials().iter().any(|trial| trial.record.spec.is_throughput() && trial.verdict.passed()));
    assert!(result.recommendation.rejected.is_empty(), "{:?}", result.recommendation.rejected);
    assert_eq!(result.recommendation.recommended.map(|recommended| recommended.loader_workers), Some(2));
}

#[test]
fn a_probe_whose_recording_is_lost_runs_again_on_resume() {
    let plan = plan(256);
    let folder = tempfile::tempdir().unwrap();
    let expected = study_in(folder.path(), &plan, &mut machine_in(folder.path()), Vec::new()).unwrap();
    let records: Vec<TrialRecord> = expected.history.trials().iter().map(|trial| trial.record.clone()).collect();
    let probe = records.iter().find(|record| record.spec.is_probe()).unwrap();
    std::fs::write(trace_path(&folder.path().join("study"), &probe.spec.point), "torn").unwrap();
    let mut machine = machine_in(folder.path());
    let result = study_in(folder.path(), &plan, &mut machine, records.clone()).unwrap();
    assert_eq!(machine.ran.iter().map(|spec| &spec.point).collect::<Vec<_>>(), [&probe.spec.point]);
    assert!(machine.ran[0].id.0 > records.len() as u32);
    assert_eq!(result.recommendation.recommended, expected.recommendation.recommended);
}

#[test]
fn the_recommendation_says_what_was_forecast_and_how_far_off_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let result = study_in(folder.path(), &plan(256), &mut machine_in(folder.path()), Vec::new()).unwrap();
    let forecast = result.recommendation.forecast.unwrap();
    assert_eq!((forecast.method, forecast.error_percent), (Method::Exact, Some(0.0)));
    assert!(forecast.largest_batch_size.is_some_and(|size| (64..256).contains(&size)));
    assert_eq!(result.recommendation.provenance.oom_trials, 0);
    let skipped = result.recommendation.rejected.iter().find(|rejected| rejected.point.batch_size == 256).unwrap();
    assert!(skipped.reason.contains("by forecast"), "{}", skipped.reason);
}

#[test]
fn a_probe_that_does_not_fit_leaves_the_search_to_measuring() {
    let folder = tempfile::tempdir().unwrap();
    let mut executor = ScriptedExecutor::new(|spec| match spec.purpose {
        Purpose::Probe => Script::out_of_memory(),
        _ => Script::healthy(&spec.point),
    });
    let result = study_in(folder.path(), &plan(8), &mut executor, Vec::new()).unwrap();
    assert_eq!(result.end, End::Safe);
    assert_eq!(executor.ran.iter().filter(|spec| spec.is_probe()).count(), 1, "the second would tell nothing");
    let forecast = result.recommendation.forecast.unwrap();
    assert_eq!((forecast.method, forecast.largest_batch_size), (Method::None, None));
    assert!(result.recommendation.rejected.is_empty());
}

#[test]
fn a_budget_of_trials_ends_with_an_unverified_answer() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(64);
    plan.budget.trials = 3;
    let mut executor = ScriptedExecutor::new(|spec| Script::healthy(&spec.point));
    let result = study_in(folder.path(), &plan, &mut executor, Vec::new()).unwrap();
    assert_eq!(result.end, End::BudgetEnded);
    assert_eq!(result.recommendation.status, Status::Unverified);
    assert_eq!(executor.ran.len(), 3);
}

#[test]
fn a_study_cut_short_with_nothing_found_leaves_an_earlier_answer_alone() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(64);
    let output = folder.path().join("recommendation.yaml");
    std::fs::write(&output, "an earlier answer").unwrap();
    let mut executor = ScriptedExecutor::new(|_| Script::Ends(Outcome::Cancelled));
    let result = study_in(folder.path(), &plan, &mut executor, Vec::new()).unwrap();
    assert_eq!(result.end, End::BudgetEnded);
    assert_eq!(std::fs::read_to_string(&output).unwrap(), "an earlier answer");
}

#[test]
fn a_cancelled_trial_is_not_held_against_its_point() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(64);
    let mut executor = ScriptedExecutor::new(|spec| match spec.id.0 {
        2 => Script::Ends(Outcome::Cancelled),
        _ => Script::healthy(&spec.point),
    });
    let result = study_in(folder.path(), &plan, &mut executor, Vec::new()).unwrap();
    assert_eq!(result.end, End::BudgetEnded);
    assert_eq!(result.history.trials().len(), 1);
    assert!(result.recommendation.rejected.is_empty());
}

#[test]
fn a_workload_that_fails_says_how() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(64);
    let mut executor =
        ScriptedExecutor::new(|_| Script::Ends(Outcome::Failed { message: "shape mismatch".to_owned() }));
    let result = study_in(folder.path(), &plan, &mut executor, Vec::new()).unwrap();
    assert_eq!(result.end, End::WorkloadFails("failed: shape mismatch".to_owned()));
    assert_eq!(result.recommendation.status, Status::None);
}

#[test]
fn an_output_that_cannot_be_written_is_refused_before_any_trial() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("recommendation.yaml")).unwrap();
    let mut executor = ScriptedExecutor::new(|spec| Script::healthy(&spec.point));
    let error = study_in(folder.path(), &plan(8), &mut executor, Vec::new()).unwrap_err();
    assert!(matches!(error, DriverError::Report(ReportError::Write { .. })));
    assert!(executor.ran.is_empty());
}

#[test]
fn a_launcher_that_starts_nothing_ends_the_study_and_says_nothing_of_the_point() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(16);
    let mut executor = ScriptedExecutor::new(|spec| match spec.id.0 {
        2.. => Script::Ends(Outcome::NotStarted { seconds: 600.0, log: "job 7 queued".to_owned() }),
        _ => Script::healthy(&spec.point),
    });
    let result = study_in(folder.path(), &plan, &mut executor, Vec::new()).unwrap();
    let End::NotStarted(reason) = &result.end else { panic!("{:?}", result.end) };
    assert!(reason.contains("within 600 s") && reason.contains("job 7 queued"), "{reason}");
    assert_eq!((executor.ran.len(), result.history.trials().len()), (2, 1), "a resumed study runs it");
    assert!(result.recommendation.rejected.iter().all(|rejected| rejected.outcome != "not_started"));
}

#[test]
fn plays_are_left_when_their_time_is_over_or_the_user_asks() {
    use super::whole_run::watching;
    use crate::search::knowledge::probed::PlayedSteps;
    let interrupt = Interrupt::default();
    let playing = |PlayedSteps { step, total }| Event::RunPlaying { point: rules::testing::point(8), step, total };
    let goes_on = |until: Option<Instant>| {
        let (mut quiet, steps) = (Quiet, PlayedSteps { step: 1, total: 2 });
        watching(&mut quiet, &interrupt, until, playing)(steps).is_continue()
    };
    assert!(goes_on(None) && goes_on(Instant::now().checked_add(std::time::Duration::from_secs(600))));
    assert!(!goes_on(Some(Instant::now())));
    interrupt.request();
    assert!(!goes_on(None));
}
