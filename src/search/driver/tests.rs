//! Whole studies over a scripted machine.

use std::path::Path;

use super::super::scripted::{Script, ScriptedExecutor, plan};
use super::*;
use crate::progress::Quiet;
use crate::search::recommend::Status;
use crate::trial::journal::{self, Header, StudyLock};

fn study_in(
    folder: &Path,
    plan: &Plan,
    executor: &mut dyn Executor,
    finished: Vec<TrialRecord>,
) -> Result<StudyResult, DriverError> {
    let study = folder.join("study");
    let lock = StudyLock::acquire(&study).unwrap();
    let header = Header::new(&plan.sha256(), serde_json::Value::Null);
    let mut journal = Journal::create(lock, &header).unwrap();
    Study {
        plan,
        executor,
        journal: &mut journal,
        reporter: &mut Quiet,
        output: folder.join("recommendation.yaml"),
        interrupt: Interrupt::default(),
        finished,
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
    assert!(read.rejected.iter().any(|rejected| rejected.outcome == "out_of_memory" && rejected.batch_size == 14));
    assert!(read.rejected.iter().any(|rejected| rejected.outcome == "skipped" && rejected.batch_size == 16));
    let contents = journal::read(&folder.path().join("study").join(journal::FILE_NAME)).unwrap();
    assert_eq!(contents.finished().count(), executor.ran.len());
}

#[test]
fn a_resumed_study_runs_only_what_is_missing_and_ends_the_same() {
    let plan = plan(64);
    let script = |spec: &TrialSpec| match spec.point.batch_size {
        45.. => Script::out_of_memory(),
        _ => Script::healthy(&spec.point),
    };
    let whole = tempfile::tempdir().unwrap();
    let mut uninterrupted = ScriptedExecutor::new(script);
    let expected = study_in(whole.path(), &plan, &mut uninterrupted, Vec::new()).unwrap();
    let records: Vec<TrialRecord> = expected.history.trials().iter().map(|trial| trial.record.clone()).collect();
    for known in 0..=records.len() {
        let folder = tempfile::tempdir().unwrap();
        let mut executor = ScriptedExecutor::new(script);
        let result = study_in(folder.path(), &plan, &mut executor, records[..known].to_vec()).unwrap();
        assert_eq!(executor.ran.len(), records.len() - known);
        assert_eq!(result.recommendation.recommended, expected.recommendation.recommended);
        assert_eq!(result.history, expected.history);
    }
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
